"""Models of tables: answers in the units of the file, a folder that describes itself, and records of its worth."""

import dataclasses
import itertools
import json
import re

import numpy as np
import polars as pl
import pytest

from forged import forge
from house_tables import houses, write_csv
from torchmcl_tables.data import Table, infer_schema, read_table
from torchmcl_tables.model import TableFit, fit_summary, fit_table, load_table_model, save_table_model, table_records
from torchmcl_tables.model.fitting import _rows

# One network: for tests that do not look at what was learned.
ONE = {"n_epochs": 1, "hidden": (4,), "n_restarts": 1, "ensemble": False}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("table") / "houses.csv", houses(300))


@pytest.fixture(scope="module")
def model(path):
    how = TableFit(["price"], drop=["days"], parameters={"n_epochs": 60, "hidden": (32,), "n_restarts": 2})
    return fit_table(read_table(path), how)


@pytest.fixture(scope="module")
def two(path):
    small = {"n_epochs": 3, "hidden": (8,), "n_hypotheses": 3, "n_restarts": 1}
    return fit_table(read_table(path), TableFit(["price", "days"], test_fraction=0.2, parameters=small))


def test_answers_are_in_the_units_of_the_target_and_the_most_probable_comes_first(model, path):
    table = read_table(path)
    answers = model.predict(table)
    assert answers.columns == [
        "price_mean",
        *(f"price_{k}" for k in range(1, 6)),
        *(f"probability_{k}" for k in range(1, 6)),
    ]
    assert answers.height == len(table)
    probabilities = answers.select(pl.col("^probability_.*$")).to_numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (np.diff(probabilities, axis=1) <= 0).all()
    values = answers.select([f"price_{k}" for k in range(1, 6)]).to_numpy()
    np.testing.assert_allclose(answers.get_column("price_mean"), (values * probabilities).sum(axis=1), rtol=0.02)
    truth = table.frame.get_column("price").cast(pl.Float64).to_numpy()
    nearest = np.abs(values - truth[:, None]).min(axis=1)
    assert np.sqrt((nearest**2).mean()) < 40 < truth.std()


def test_answers_do_not_depend_on_how_many_rows_are_asked_at_once(model, path, monkeypatch):
    table = read_table(path)
    whole = model.predict(table, interval=0.8)
    monkeypatch.setattr("torchmcl_tables.model.model._ROWS_AT_ONCE", 64)
    monkeypatch.setattr("torchmcl_tables.model.model._ROWS_IN_CACHE", 10)
    parts = model.predict(table, interval=0.8)
    for name in whole.columns:
        left, right = whole.get_column(name), parts.get_column(name)
        if left.dtype == pl.String:  # intervals, whose last digit may be rounded to either side
            ends = [[re.findall(r"[-+.e\d]+", text) for text in column] for column in (left, right)]
            for one, other in zip(*ends, strict=True):
                np.testing.assert_allclose(np.array(one, float), np.array(other, float), rtol=1e-4)
        else:
            np.testing.assert_allclose(left, right, rtol=1e-4)


def test_messages_count_rows_from_the_start_of_the_table(model, path, monkeypatch):
    monkeypatch.setattr("torchmcl_tables.model.model._ROWS_AT_ONCE", 64)
    rows = houses(150)
    rows[130]["city"] = "Rome"
    table = Table("new.csv", pl.DataFrame(rows))
    with pytest.raises(ValueError, match="'Rome' in row 131"):
        model.predict(table, strict=True)
    notices = []
    assert model.predict(table, notify=notices.append).height == 150
    assert notices == ["city: 1 cell (first 'Rome' in row 131) encoded as none of the known categories"]


def test_a_file_is_read_alike_in_all_its_parts_and_the_decisions_are_told(model, tmp_path, monkeypatch):
    rows = [{"area": f"1.{i:03d}", "rooms": row["rooms"], "city": row["city"]} for i, row in enumerate(houses(150))]
    rows[130]["area"] = "1130,5"
    table = read_table(write_csv(tmp_path / "new.csv", [*rows[:70], dict.fromkeys(rows[0], ""), *rows[70:]], ";"))
    german = dataclasses.replace(model, schema=dataclasses.replace(model.schema, decimal=","))
    whole = german.predict(table, notify=(notices := []).append)
    assert whole.height == 150
    assert notices[1:] == [
        "1 rows without any value are left out",
        "numbers have decimal commas, such as '1130,5' in column 'area'",
    ]
    monkeypatch.setattr("torchmcl_tables.model.model._ROWS_AT_ONCE", 64)
    np.testing.assert_allclose(german.predict(table).to_numpy(), whole.to_numpy(), rtol=1e-4)


def test_sets_hold_their_ends_and_columns_can_be_kept(model, path):
    table = read_table(path)
    answers = model.predict(table, interval=0.9, keep=["city", "price"])
    assert answers.columns[:2] == ["city", "price"]
    low, high = answers.get_column("price_low"), answers.get_column("price_high")
    assert (low < high).all()
    for text, *hull in zip(answers.get_column("price_set"), low, high, strict=True):
        ends = [float(x) for x in text.replace(" or ", ", ").replace("[", "").replace("]", "").split(", ")]
        assert ends == sorted(ends)
        assert [ends[0], ends[-1]] == pytest.approx(hull, rel=1e-14)
    with pytest.raises(ValueError, match=r"`--keep` must name a column of houses.csv, got 'cty'"):
        model.predict(table, keep=["cty"])
    with pytest.raises(ValueError, match="`--interval` must lie in"):
        model.predict(table, interval=90)


@pytest.mark.parametrize(
    ("targets", "kept"),
    [
        (["probability"], ["probability_1", "probability"]),
        (["probability", "answer_probability"], ["answer_answer_probability_1"]),
        (["price", "price_1"], ["price_1_1", "price_1_1_kept", "price_mean", "price_set"]),
        (["mean", "set"], ["mean_mean", "set_low", "probability_2"]),
    ],
)
def test_no_column_of_the_answers_takes_the_name_of_another(targets, kept):
    columns = {name: list(range(i, i + 30)) for i, name in enumerate(dict.fromkeys(["x", *targets, *kept]))}
    table = Table("t", pl.DataFrame(columns))
    how = TableFit(targets, drop=[name for name in kept if name not in targets], test_fraction=0.0)
    how.parameters.update(ONE, n_hypotheses=2)
    answers = fit_table(table, how).predict(table, interval=0.5, keep=kept)
    # Each target has a mean, two answers, two ends and a set; then there are two probabilities.
    assert len(set(answers.columns)) == len(answers.columns) == len(kept) + 6 * len(targets) + 2
    for place, name in enumerate(kept):
        assert answers.to_series(place).to_list() == columns[name]
        assert answers.columns[place] == name or answers.columns[place].startswith(f"{name}_kept")
    np.testing.assert_allclose(answers.to_numpy()[:, -2:].astype(float).sum(axis=1), 1, rtol=1e-5)


def test_answers_far_from_zero_keep_the_digits_that_tell_them_apart():
    # 170 000 +- 1: six digits would show one number; single precision can hold the difference.
    x = np.arange(80) % 4
    table = Table("t", pl.DataFrame({"x": x, "y": 170_000 + np.sin(x) + 0.1 * np.cos(np.arange(80))}))
    how = TableFit(["y"], parameters={"n_epochs": 60, "hidden": (16,), "n_hypotheses": 2, "n_restarts": 1})
    made = fit_table(table, how)
    answers = made.predict(table, interval=0.5)
    ends = re.findall(r"[0-9.]+", answers.get_column("y_set")[1])
    assert float(ends[0]) == pytest.approx(answers.get_column("y_low")[1], abs=1e-4)
    assert float(ends[-1]) - float(ends[0]) > 0.01
    truths = made.evaluation["held_out"]["answers"]["truth"]
    assert {truth for (truth,) in truths} <= set(table.frame.get_column("y"))


@pytest.mark.parametrize("seed", range(4))
def test_numbers_as_categories_are_known_in_every_part_of_the_table(seed):
    values = [1.0, 2.0] * 14 + [2.5, 2.5]
    table = Table("t", pl.DataFrame({"c": values, "y": np.arange(30) % 7}))
    how = TableFit(["y"], categorical=["c"], seed=seed, parameters=ONE)
    made = fit_table(table, how)
    assert made.schema.categories[0].categories == ("1", "2", "2.5")
    texts = Table("t", pl.DataFrame({"c": ["1", "1.0", "+1", "1e0", "2.50", ""][:5]}))
    inputs = made.inputs(texts)
    assert (inputs[:4] == inputs[0]).all()
    assert (inputs[4] != inputs[0]).any()


def test_several_targets_have_columns_of_their_own(two, path):
    answers = two.predict(read_table(path), interval=0.5)
    expected = ["mean", "1", "2", "3", "low", "high", "set"]
    names = [f"{target}_{end}" for target in ("price", "days") for end in expected]
    assert answers.columns == [*names, "probability_1", "probability_2", "probability_3"]


def test_a_saved_model_answers_to_the_same_bits(model, path, tmp_path):
    save_table_model(model, tmp_path / "model")
    files = {p.name for p in (tmp_path / "model").iterdir()}
    assert files == {"model.safetensors", "metrics.json", "evaluation.json"}
    again = load_table_model(tmp_path / "model")
    table = read_table(path)
    assert again.predict(table, interval=0.9).equals(model.predict(table, interval=0.9))
    assert again.schema == model.schema
    assert again.metrics == model.metrics
    save_table_model(again, tmp_path / "model")  # replaces
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "has no model.safetensors"),
        (b"torn", "torchmcl fit.*damaged"),
        ({"schema": {}}, "must be as `torchmcl fit` wrote it"),
        ({"schema": {"$TableSchema": {"name": 1}}}, "must be as `torchmcl fit` wrote it"),
        ({"metrics": [1]}, "must be as `torchmcl fit` wrote it, got TypeError"),
        ({"evaluation": "0"}, "got ValueError: evaluation.json has changed since it was written"),
        ({"regressor": {"estimator": "os.system"}}, "must be as `torchmcl fit` wrote it"),
    ],
)
def test_folders_without_an_intact_model_are_refused(model, tmp_path, change, message):
    folder = tmp_path / "model"
    save_table_model(model, folder)
    if change is None:
        (folder / "model.safetensors").unlink()
    elif isinstance(change, bytes):
        (folder / "model.safetensors").write_bytes(change)
    else:
        forge(folder, **change)
    with pytest.raises(ValueError, match=message):
        load_table_model(folder)


def test_the_evaluation_can_be_removed_and_the_model_answers(model, path, tmp_path):
    save_table_model(model, tmp_path / "model")
    (tmp_path / "model" / "evaluation.json").unlink()
    again = load_table_model(tmp_path / "model")
    assert again.evaluation is None
    assert again.predict(read_table(path)).equals(model.predict(read_table(path)))


def test_a_folder_with_something_else_is_never_replaced(model, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="`folder` must be new"):
        save_table_model(model, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_save_that_fails_leaves_the_old_model(model, path, tmp_path, monkeypatch):
    save_table_model(model, tmp_path / "model")
    before = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()}

    def full(path, content):
        raise OSError("No space left on device")

    monkeypatch.setattr("torchmcl.io.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        save_table_model(model, tmp_path / "model")
    assert {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_rows_without_a_target_are_left_out_and_counted():
    rows = houses(80)
    for i in (3, 30, 60):
        rows[i]["price"] = ""
    how = TableFit(["price"], parameters=ONE)
    fitted = fit_table(Table("t", pl.DataFrame(rows)), how)
    assert fitted.metrics["rows"] == {"learned_from": 69, "set_apart": 8, "without_target": 3}
    assert "3 rows without a target" in fit_summary(fitted)


@pytest.mark.parametrize(
    ("rows", "how", "message"),
    [
        (houses(1), TableFit(["price"]), "have at least 10 rows, got 1"),
        (houses(40), TableFit(["price"], test_fraction=1.5), r"`--test` must lie in \[0, 1\)"),
        (
            [row | {"price": ""} if i > 5 else row for i, row in enumerate(houses(40))],
            TableFit(["price"]),
            "have a target in at least 10 rows, got 6",
        ),
    ],
)
def test_too_little_to_learn_from_is_refused(rows, how, message):
    with pytest.raises(ValueError, match=message):
        fit_table(Table("t", pl.DataFrame(rows)), how)


def test_records_are_measures_of_the_rows_set_apart(model, path):
    records = table_records(model)
    json.dumps(records, allow_nan=False)
    found = records["evaluation"]
    assert found["n_rows"] == 30
    assert records["set_apart"]
    # recomputed from the answers, by hand
    table = read_table(path)
    test = np.sort(np.random.default_rng(0).permutation(300)[:30])
    answers = model.predict(table.take(test))
    truth = table.frame.get_column("price").cast(pl.Float64).to_numpy()[test]
    values = answers.select([f"price_{k}" for k in range(1, 6)]).to_numpy()
    error = np.sqrt(((answers.get_column("price_mean").to_numpy() - truth) ** 2).mean())
    assert found["measures"]["rmse"][0] == pytest.approx(error, rel=1e-4)
    scale = model.estimator.target_scale_[0]
    nearest = ((np.abs(values - truth[:, None]).min(axis=1) / scale) ** 2).mean()
    kept = found["by_number"]["distortion"]
    assert kept[-1] == pytest.approx(nearest, rel=1e-3)
    assert kept == sorted(kept, reverse=True)
    shown = found["ambiguous"][0]
    cells = dict(shown["cells"])
    assert shown["row"] - 1 in test
    assert cells["rooms"] == table.frame.row(shown["row"] - 1, named=True)["rooms"]
    assert shown["truth"][0] == pytest.approx(float(table.frame.get_column("price")[shown["row"] - 1]), rel=1e-4)


def test_records_of_another_table_leave_those_of_the_fit(model, path, tmp_path):
    other = write_csv(tmp_path / "other.csv", houses(20, seed=1))
    records = table_records(model, read_table(other))
    assert records["evaluation"]["source"] == "other.csv"
    assert records["evaluation"]["n_rows"] == 20
    assert not records["set_apart"]


def test_without_rows_set_apart_the_report_asks_for_data(tmp_path):
    how = TableFit(["price"], test_fraction=0.0, parameters=ONE)
    fitted = fit_table(Table("t", pl.DataFrame(houses(40))), how)
    with pytest.raises(ValueError, match=r"`--data` must be given for a model without test rows"):
        table_records(fitted)
    no_target = write_csv(tmp_path / "no.csv", [row | {"price": ""} for row in houses(5)])
    with pytest.raises(ValueError, match="have a row with a value for each target"):
        table_records(fitted, read_table(no_target))


def test_the_floor_lies_below_what_the_model_reaches_in_expectation(model):
    found = table_records(model)["evaluation"]["by_number"]
    floor = [value for value in found["floor"] if value is not None]
    assert len(floor) >= 3
    assert all(a > b for a, b in itertools.pairwise(floor))
    assert floor[0] > 0


def test_a_model_of_another_format_is_refused_with_the_way_out(model, tmp_path):
    save_table_model(model, tmp_path / "model")
    forge(tmp_path / "model", format=1)
    with pytest.raises(ValueError, match=r"hold a model of format 5, got .* with format 1. Fit it again"):
        load_table_model(tmp_path / "model")


def _set_apart(frame, **how):
    table = Table("made", frame)
    options = TableFit(["y"], parameters=ONE, **how)
    schema = infer_schema(table, ["y"], interpret=True)
    values, targets = schema.values(table), schema.target_values(table)
    return [np.c_[values, targets][rows] for rows in _rows(table, schema, values, targets, options)[1:]]


def test_copies_of_rows_are_set_apart_together():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2)).repeat(3, axis=0)
    train, test = _set_apart(pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": X.sum(axis=1)}), test_fraction=0.2)
    assert (len(train), len(test)) == (240, 60)
    assert not {tuple(row) for row in train} & {tuple(row) for row in test}


def test_equal_rows_of_a_coarse_table_are_set_apart_one_by_one():
    rng = np.random.default_rng(0)
    answers = rng.integers(1, 4, size=(400, 3))
    train, test = _set_apart(pl.DataFrame(answers, schema=["a", "b", "y"]), test_fraction=0.2)
    assert (len(train), len(test)) == (320, 80)
    assert {tuple(row) for row in test} <= {tuple(row) for row in train}
