"""The UCI sets: official splits, standardisation, both folder layouts, bad files."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import places
from grids import for_each
from torchmcl.app import main
from torchmcl_studies.data import checksums, uci
from torchmcl_studies.data.uci import UCI_SETS, load_uci, official_splits

SHARED = places.SHARED / "uci"
NINE = [name for name in UCI_SETS if name != "year"]
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the UCI files are not in ../shared/data/uci")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """No test sees the user's cache or data folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHMCL_DATA", raising=False)
    return tmp_path / "cache/torchmcl/uci"


def yacht_table(seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, (308, 7))


def text_of(table, delimiter=" "):
    return "".join(delimiter.join(f"{value:.17g}" for value in row) + "\n" for row in table)


def put_npz(root, table, folder="yacht"):
    (root / folder).mkdir(parents=True)
    np.savez_compressed(root / folder / "data.npz", data=table)
    return root


def put_text(root, text, folder="yacht"):
    path = root / folder / "data/data.txt"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return root


# ---- official splits and standardisation ----


@needs_shared
@for_each("name", NINE)
def test_regenerated_splits_equal_the_published_ones_in_order(name):
    with np.load(SHARED / UCI_SETS[name].folder / "data.npz") as archive:
        published = archive["train_indices"], archive["test_indices"]
        n_rows, columns = archive["data"].shape
    splits = official_splits(UCI_SETS[name])
    assert (n_rows, columns) == (UCI_SETS[name].n_rows, UCI_SETS[name].n_columns)
    np.testing.assert_array_equal([train for train, _ in splits], published[0])
    np.testing.assert_array_equal([test for _, test in splits], published[1])


@needs_shared
@for_each("name", NINE)
def test_checksums_and_target_columns_are_those_of_the_published_files(name):
    entry = UCI_SETS[name]
    with np.load(SHARED / entry.folder / "data.npz") as archive:
        assert archive["index_features"].tolist() == list(range(entry.n_features))
        assert archive["index_target"].tolist() == [entry.n_features]
    checksum = checksums("torchmcl_studies.data", "uci_files.txt")[f"{entry.folder}/data/data.txt"]
    assert checksum in (SHARED / "README.md").read_text()


@needs_shared
@for_each("name", ["yacht", "boston", "wine", "naval"])
def test_training_part_has_mean_0_and_deviation_1_and_nothing_is_non_finite(name):
    fold = load_uci(name, SHARED, [1])[0]
    entry = UCI_SETS[name]
    n_train = round(0.9 * entry.n_rows)
    assert fold.train_inputs.shape == (n_train, entry.n_features)
    assert fold.test_inputs.shape == (entry.n_rows - n_train, entry.n_features)
    assert fold.train_targets.shape == (n_train, 1, 1)
    assert fold.test_targets.shape == (entry.n_rows - n_train, 1, 1)
    for part in fold[:4]:
        assert part.dtype == torch.float32
        assert part.isfinite().all()
    constant = torch.zeros(entry.n_features, dtype=torch.bool)
    if name == "naval":
        constant[[8, 11]] = True
    x = fold.train_inputs.double()
    torch.testing.assert_close(x.mean(dim=0), torch.zeros_like(x[0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(dim=0, correction=0), (~constant).double(), atol=1e-5, rtol=0)
    y = fold.train_targets.double()
    assert float(y.mean()) == pytest.approx(0, abs=1e-5)
    assert float(y.std(correction=0)) == pytest.approx(1, abs=1e-5)


@needs_shared
def test_constant_columns_of_naval_become_zero_in_train_and_test():
    for fold in load_uci("naval", SHARED, [0, 7]):
        assert (fold.train_inputs[:, [8, 11]] == 0).all()
        assert (fold.test_inputs[:, [8, 11]] == 0).all()


def test_a_constant_column_that_is_not_a_whole_number_becomes_zero(tmp_path):
    table = yacht_table()
    table[:, 2] = 0.1
    for fold in load_uci("yacht", put_npz(tmp_path / "data", table), [0, 1]):
        assert (fold.train_inputs[:, 2] == 0).all()
        assert (fold.test_inputs[:, 2] == 0).all()


def test_targets_come_back_in_original_units(tmp_path):
    table = yacht_table()
    fold = load_uci("yacht", put_npz(tmp_path / "data", table), [4])[0]
    train, test = official_splits(UCI_SETS["yacht"])[4]
    assert fold.target_mean == pytest.approx(table[train, 6].mean())
    assert fold.target_std == pytest.approx(table[train, 6].std())
    back = fold.test_targets.flatten().double() * fold.target_std + fold.target_mean
    np.testing.assert_allclose(back.numpy(), table[test, 6], rtol=0, atol=1e-5)


def test_test_rows_do_not_change_the_standardisation(tmp_path):
    table = yacht_table()
    before = load_uci("yacht", put_npz(tmp_path / "before", table), [0])[0]
    table[official_splits(UCI_SETS["yacht"])[0][1]] += 1000
    after = load_uci("yacht", put_npz(tmp_path / "after", table), [0])[0]
    assert after.target_mean == before.target_mean
    torch.testing.assert_close(after.train_inputs, before.train_inputs)


# ---- where the files are ----


def test_npz_layout_and_original_text_layout_give_the_same_folds(tmp_path):
    table = yacht_table()
    npz = load_uci("yacht", put_npz(tmp_path / "npz", table))
    text = load_uci("yacht", put_text(tmp_path / "text", text_of(table)))
    assert len(npz) == len(text) == 20
    for one, other in zip(npz, text, strict=True):
        torch.testing.assert_close(tuple(one), tuple(other), rtol=0, atol=0)


def test_the_environment_names_the_folder_and_an_argument_goes_before_it(tmp_path, monkeypatch):
    named = put_npz(tmp_path / "named", yacht_table(1))
    given = put_npz(tmp_path / "given", yacht_table(2))
    monkeypatch.setenv("TORCHMCL_DATA", str(named))
    assert load_uci("yacht", folds=[0])[0].target_mean == load_uci("yacht", named, [0])[0].target_mean
    assert load_uci("yacht", given, [0])[0].target_mean != load_uci("yacht", named, [0])[0].target_mean


# ---- the year set ----


def year_table(n_rows=100, seed=0):
    random = np.random.default_rng(seed)
    return np.column_stack([random.integers(1922, 2011, n_rows), random.normal(20, 50, (n_rows, 90)).round(5)])


def year_file(folder, table):
    path = folder / "YearPredictionMSD/YearPredictionMSD.txt"
    path.parent.mkdir(parents=True)
    path.write_text(text_of(table, ","))
    return path


def zipped(path):
    with zipfile.ZipFile(f"{path}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, path.name)
    path.unlink()
    return Path(f"{path}.zip")


@pytest.mark.parametrize("chunk_rows", [7, 100])
@pytest.mark.parametrize("pack", [lambda path: path, zipped], ids=["txt", "zip"])
def test_year_is_read_in_pieces_of_any_size_as_float32(tmp_path, pack, chunk_rows):
    table = year_table()
    inputs, years = uci.read_year(pack(year_file(tmp_path, table)), chunk_rows=chunk_rows)
    assert (inputs.dtype, years.dtype) == (np.float32, np.float32)
    np.testing.assert_array_equal(inputs, table[:, 1:].astype(np.float32))
    np.testing.assert_array_equal(years, table[:, 0])


@pytest.mark.parametrize("pack", [lambda path: path, zipped], ids=["txt", "zip"])
def test_year_has_one_fold_whose_first_rows_train(tmp_path, pack):
    table = year_table(1000)
    pack(year_file(tmp_path / "data", table))
    with pytest.warns(UserWarning, match="has 1000 rows instead of 515345; its first 90 % are used for training"):
        (fold,) = load_uci("year", tmp_path / "data")
    assert (len(fold.train_inputs), len(fold.test_inputs)) == (900, 100)
    assert fold.target_mean == pytest.approx(table[:900, 0].mean(), abs=1e-2)
    back = fold.test_targets.flatten() * fold.target_std + fold.target_mean
    np.testing.assert_allclose(back.numpy(), table[900:, 0], atol=1e-2)


@pytest.mark.filterwarnings("ignore:load_uci")
def test_the_command_trains_on_year_from_the_folder_of_its_file(tmp_path):
    year_file(tmp_path, year_table()).rename(tmp_path / "YearPredictionMSD.txt")
    assert main(["reproduce", "year", "--data", str(tmp_path), "--out", f"{tmp_path}/out", "--quick", "--quiet"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert [(row["set"], row["epochs"]) for row in rows] == [("year", 2)] * 12


def test_official_year_split_has_the_published_row_counts():
    ((train, test),) = official_splits(UCI_SETS["year"])
    assert (len(train), len(test)) == (463_715, 51_630)
    assert (train[0], train[-1], test[0], test[-1]) == (0, 463_714, 463_715, 515_344)


def test_standardising_many_float32_rows_loses_no_digits():
    # As many rows as the year set trains on: adding them up one by one in float32 is not good enough.
    n_train = 463_715
    inputs = np.random.default_rng(0).normal([43, 1900], [6, 10], (n_train + 10, 2)).astype(np.float32)
    rows = np.arange(len(inputs))
    fold = uci._standardised(inputs, inputs[:, 0], rows[:n_train], rows[n_train:])
    x = fold.train_inputs.double()
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(2, dtype=x.dtype), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(dim=0), torch.ones(2, dtype=x.dtype), atol=1e-4, rtol=0)


def test_year_is_found_in_a_zip_with_other_entries(tmp_path):
    path = zipped(year_file(tmp_path, year_table()))
    whole = path.read_bytes()
    text = zipfile.ZipFile(path).read("YearPredictionMSD.txt")
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("data")
        archive.writestr("__MACOSX/._data", "metadata")
        archive.writestr("data/YearPredictionMSD.txt", text)
    assert len(uci.read_year(path)[1]) == 100
    path.write_bytes(whole[:5000] + bytes(100) + whole[5100:])
    with pytest.raises(ValueError, match=r"\.zip cannot be read from line 1 on: .*\. Download the file again\."):
        uci.read_year(path)


@pytest.mark.parametrize("spoil", [lambda text: text[:-40], lambda text: "\ufeff" + text, lambda text: "<html>"])
def test_a_damaged_year_file_is_refused_by_name(tmp_path, spoil):
    path = year_file(tmp_path, year_table())
    path.write_text(spoil(path.read_text()), encoding="utf-8")
    with pytest.raises(ValueError, match=r"YearPredictionMSD\.txt cannot be read from line 1 on: [^;]*\. Download the"):
        uci.read_year(path)


def test_year_with_nan_is_refused(tmp_path):
    table = year_table()
    table[57, 3] = np.nan
    with pytest.raises(ValueError, match=r"YearPredictionMSD\.txt must hold finite numbers"):
        uci.read_year(year_file(tmp_path, table), chunk_rows=20)


# ---- bad input ----


@pytest.mark.parametrize("n_rows", [307, 0])
def test_a_file_cut_short_is_refused_with_both_counts(tmp_path, n_rows):
    with pytest.raises(ValueError, match=rf"must hold 308 rows and 7 columns, got {n_rows} and .*Delete the file"):
        load_uci("yacht", put_text(tmp_path, text_of(yacht_table()[:n_rows])))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("put", [put_npz, lambda root, table: put_text(root, text_of(table))], ids=["npz", "text"])
def test_a_file_with_a_number_that_is_not_finite_is_refused_with_its_row(tmp_path, put, bad):
    table = yacht_table()
    table[123, 4] = bad
    with pytest.raises(ValueError, match=f"must hold finite numbers, got {bad} in row 123"):
        load_uci("yacht", put(tmp_path, table))


def as_npy(path):
    with path.open("wb") as file:
        np.save(file, yacht_table())


def damaged(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(content)


SPOILT = {
    "text": lambda path: path.write_text("not an archive"),
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "damaged inside": damaged,
    "one array": as_npy,
    "without data": lambda path: np.savez(path, other=yacht_table()),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_npz_that_is_none_is_refused_by_name(tmp_path, spoil):
    path = put_npz(tmp_path, yacht_table()) / "yacht/data.npz"
    spoil(path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        load_uci("yacht", tmp_path)
