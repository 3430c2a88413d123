"""Files made to harm: each is refused in words, in no time and in little memory, and nothing in it is run."""

import gzip
import io
import pickle
import re
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from forged import forge
from places import PACKAGES
from torchmcl.annealing import AnnealingRecords
from torchmcl.io.files import limit
from torchmcl_tables import MCLRegressor

polars = pytest.importorskip("polars")
pytest.importorskip("safetensors")
pytest.importorskip("sklearn")

from torchmcl_speech.nn import DPRNN  # noqa: E402
from torchmcl_speech.nn.saving import load_model, save_model  # noqa: E402
from torchmcl_tables.data import read_table  # noqa: E402
from torchmcl_tables.model import load_table_model  # noqa: E402


class Opener:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.fixture
def trap(tmp_path):
    """Bytes that make a file when they are unpickled, and that file."""
    made = tmp_path / "the pickle was run"
    return pickle.dumps(Opener(made)), made


@pytest.fixture
def network(tmp_path):
    folder = tmp_path / "network"
    save_model(folder, DPRNN(n_outputs=2, n_filters=4, segment_size=4, hidden_size=3, n_blocks=1))
    return folder


@pytest.fixture(scope="module")
def fitted():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(60, 2))
    return MCLRegressor(n_hypotheses=2, hidden=(4,), n_epochs=2, random_state=0).fit(inputs, inputs[:, 0])


@pytest.fixture
def estimator(fitted, tmp_path):
    fitted.save(tmp_path / "estimator")
    return tmp_path / "estimator"


@pytest.fixture(scope="module")
def fitted_table():
    from house_tables import houses
    from torchmcl_tables.data import Table
    from torchmcl_tables.model import TableFit, fit_table

    how = TableFit(["price"], drop=["days"], parameters={"n_epochs": 2, "hidden": (4,), "n_hypotheses": 2})
    return fit_table(Table("houses.csv", polars.DataFrame(houses(120))), how)


@pytest.fixture
def table_model(fitted_table, tmp_path):
    from torchmcl_tables.model import save_table_model

    save_table_model(fitted_table, tmp_path / "table model")
    return tmp_path / "table model"


# ---- pickles


def test_a_pickle_named_safetensors_is_refused_and_not_run(network, estimator, table_model, trap):
    content, opened = trap
    for folder, load in loaders(network, estimator, table_model):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"`folder` must contain what .* wrote"):
            load(folder)
    assert not opened.exists()


def loaders(network, estimator, table_model):
    """Every reader of a saved model, with a folder for it."""
    return [
        (network, load_model),
        (estimator, MCLRegressor.load),
        (table_model, lambda folder: load_table_model(folder)),
    ]


def test_a_pickle_in_a_pack_or_a_data_set_is_refused_and_not_run(tmp_path, trap):
    from torchmcl_speech.data import AudioPack, BadAudio
    from torchmcl_studies.data.uci import load_uci

    content, made = trap
    (tmp_path / "pack.npz").write_bytes(content)
    with pytest.raises(BadAudio, match="is not a pack of utterances"):
        AudioPack.load(tmp_path / "pack.npz")
    objects = np.array([Opener(made)], dtype=object)
    np.savez(tmp_path / "pack.npz", names=objects, lengths=objects, sample_rate=8, differences=objects)
    with pytest.raises(BadAudio, match="is not a pack of utterances"):
        AudioPack.load(tmp_path / "pack.npz")
    (tmp_path / "yacht").mkdir()
    np.savez(tmp_path / "yacht" / "data.npz", data=objects)
    with pytest.raises(ValueError, match="cannot be read as an npz file"):
        load_uci("yacht", tmp_path)
    assert not made.exists()


# ---- sizes


def test_the_limit_of_a_table_holds_for_every_format(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMCL_LIMIT_TABLE_BYTES", "1K")
    text = b"a,b\n" + b"1,2\n" * 1000
    (tmp_path / "a.csv").write_bytes(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    polars.DataFrame({"a": ["x"] * 10_000}).write_parquet(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 1000
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        with pytest.raises(ValueError, match=r"1,024 bytes of a table.*set TORCHMCL_LIMIT_TABLE_BYTES"):
            read_table(tmp_path / name)


def test_json_lines_nested_without_end_do_not_end_the_process(tmp_path):
    depth = 100_000
    # The parser of polars overflows its stack at 1000 objects: in a process of its own, should it ever return.
    (tmp_path / "deep.jsonl").write_text('{"a": 1}\n{"a": ' + '{"a": ' * depth + "1" + "}" * depth + "}\n")
    code = "import sys; from pathlib import Path; from torchmcl_tables.data import read_table\n"
    code += "try: read_table(Path(sys.argv[1]))\nexcept ValueError as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "deep.jsonl"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "must have one JSON object in each line" in done.stdout


def pack_file(path, **changes):
    """Write a pack of two utterances with some of its parts replaced."""
    parts = {"names": np.array(["a", "b"]), "lengths": np.array([3, 5]), "sample_rate": np.int64(8000)}
    np.savez(path, **(parts | {"differences": np.zeros(8, dtype=np.int16)} | changes))
    return path


def test_a_zip_bomb_named_as_a_pack_is_refused(tmp_path):
    from torchmcl_speech.data import AudioPack, BadAudio

    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("names.npy", "w", force_zip64=True) as f,
    ):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (2 * 10**8,)})
        f.write(head.getvalue())
        for _ in range(20):
            f.write(bytes(10**7))
    assert path.stat().st_size < 1 << 20
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHMCL_LIMIT_AUDIO_SAMPLES", "50M")
        with pytest.raises(BadAudio, match="52,428,800 samples of a recording or a pack"):
            AudioPack.load(path)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": np.array([-1, 9])}, "lengths do not sum"),
        ({"lengths": np.array([3, 10**12])}, "lengths do not sum"),
        ({"lengths": np.array([4.0, 4.0])}, "wrong types"),
        ({"lengths": np.array([8])}, "number of lengths"),
        ({"names": np.array(["a", "a"])}, "not distinct"),
        ({"names": np.array([], dtype=str), "lengths": np.array([], dtype=int)}, "not distinct"),
        ({"sample_rate": np.int64(0)}, "sample rate is invalid"),
        ({"differences": np.zeros(8)}, "wrong types"),
        ({"differences": np.zeros((8, 1), dtype=np.int16)}, "lengths do not sum"),
    ],
)
def test_a_pack_that_contradicts_itself_is_refused(tmp_path, changes, message):
    from torchmcl_speech.data import AudioPack, BadAudio

    assert AudioPack.load(pack_file(tmp_path / "good.npz")).length("b") == 5
    with pytest.raises(BadAudio, match=message):
        AudioPack.load(pack_file(tmp_path / "bad.npz", **changes))


# ---- nesting, and JSON that is none


def test_a_file_of_records_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMCL_LIMIT_FILE_BYTES", "2K")
    (tmp_path / "records.jsonl").write_text("x" * 3000)
    with pytest.raises(ValueError, match=r"at most 2,048 bytes of another file.*got 3,000"):
        AnnealingRecords.load(tmp_path / "records.jsonl")


# ---- descriptions that ask for more than data


@pytest.mark.parametrize("kind", ["os.system", "builtins.eval", "torch.nn.Linear", "__main__.Opener", "DPRNN", ""])
def test_a_model_that_names_a_class_to_import_is_refused(network, kind):
    forge(network, config={f"${kind}": {}})
    with pytest.raises(ValueError, match=r"must be as `save` wrote it, got ValueError: decode: .*KeyError"):
        load_model(network)


def test_a_model_that_names_the_maker_of_its_layers_is_refused(network):
    forge(network, config__bilstm="os.system")
    with pytest.raises(ValueError, match="`bilstm` must be callable"):
        load_model(network)


@pytest.mark.parametrize(
    "changes",
    [{"config__n_blocks": 10**9}, {"config__hidden_size": 10**6}, {"config__n_filters": 10**30}, {"config__width": 5}],
)
def test_a_description_of_a_network_larger_than_its_weights_takes_no_memory(network, changes):
    forge(network, **changes)
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"must be as `save` wrote it"):
        load_model(network)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "value",
    [
        {"$os.system": {"command": "true"}},
        {"$annealed": {"rule": None}},
        {"$known": "eval"},
        {"$__import__": {"name": "os"}},
        {"$pickle": "gASVAAAA"},
    ],
)
def test_an_estimator_that_names_something_to_call_is_refused(estimator, value):
    forge(estimator, parameters__rule=value)
    with pytest.raises(ValueError, match=r"MCLRegressor.load: `folder` must be as `save` wrote it"):
        MCLRegressor.load(estimator)


@pytest.mark.parametrize("name", ["predict", "__class__", "save", "__reduce__"])
def test_an_estimator_cannot_replace_its_methods(estimator, name):
    forge(estimator, lambda state: state["fitted"].update({name: 3}))
    with pytest.raises(ValueError, match=f"{name}' is not a fitted attribute"):
        MCLRegressor.load(estimator)


def test_a_configuration_that_names_something_to_call_or_grows_without_end_is_refused(tmp_path):
    pytest.importorskip("yaml")
    from torchmcl_speech.config import load_config

    laughs = ["a0: &a0 [ha, ha]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    path = tmp_path / "hostile.yaml"
    for text, message in (
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("data: {root: !!python/object/new:os.system [true]}", "could not determine a constructor"),
        ("[" * 10_000, "too deeply nested lists"),
        ("\n".join(laughs), "aliases are not allowed"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_config(path)


# ---- names that lead elsewhere


@pytest.fixture
def speech(tmp_path):
    pytest.importorskip("soundfile")
    from torchmcl_speech.data import write_audio

    root = tmp_path / "speech"
    for path in (root / "ann" / "1.wav", root / "bob" / "1.wav", tmp_path / "secret.wav"):
        write_audio(path, 0.1 * np.sin(np.arange(4000)), 8000)
    return root


def test_a_list_of_files_cannot_lead_out_of_its_folder(speech):
    from torchmcl_speech.data import AudioFolder, AudioPack, BadAudio

    folder = AudioFolder(speech)
    assert folder.length("ann/../bob/1.wav") == folder.length(str(speech / "ann" / "1.wav")) == 4000
    names = [
        "../secret.wav",
        str(speech.parent / "secret.wav"),
        "ann/../../secret.wav",
        "ann/../../speech2/x.wav",
        "..",
    ]
    for name in names:
        with pytest.raises(BadAudio, match=r"is outside of .* use outside=True"):
            folder.read(name)
        with pytest.raises(BadAudio, match="is outside of"):
            folder.length(name)
        with pytest.raises(BadAudio, match="is outside of"):
            AudioPack.from_folder(speech, [name])
    with pytest.raises(BadAudio, match="is not a file name"):
        folder.read("ann/1.wav\0")
    assert len(AudioFolder(speech, outside=True).read("../secret.wav")) == 4000


# ---- the limits themselves


def test_a_limit_is_raised_by_its_variable(monkeypatch):
    assert limit("file_bytes") == 256 << 20
    monkeypatch.setenv("TORCHMCL_LIMIT_FILE_BYTES", "2M")
    assert limit("file_bytes") == 2 << 20
    for text in ("-1", "many", "1.5", "1T", "9" * 30):
        monkeypatch.setenv("TORCHMCL_LIMIT_FILE_BYTES", text)
        with pytest.raises(ValueError, match="`TORCHMCL_LIMIT_FILE_BYTES` must be an integer"):
            limit("file_bytes")


def test_the_sources_run_nothing_that_they_read():
    """No eval, no exec, no pickle, no unsafe loader anywhere in the packages (ruff's S rules see most of it too)."""
    import ast

    words = re.compile(r"\b(eval|exec|compile|__import__|load|pickle|shelve|marshal|joblib|dill)\b")
    texts = {path: path.read_text() for package in PACKAGES for path in package.rglob("*.py")}
    for path in (path for path, text in texts.items() if words.search(text)):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "yaml.load" and "Loader=_PlainLoader" in ast.unparse(node):  # a SafeLoader, tested above
                    continue
                assert called not in ("eval", "exec", "compile", "__import__", "yaml.load", "torch.load"), path
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"pickle", "shelve", "marshal", "joblib", "dill"} & set(names), path


def test_brackets_without_end_are_refused_everywhere(tmp_path, network, estimator, table_model):
    content = b"[" * 1_000_000
    for folder, load in loaders(network, estimator, table_model):
        (folder / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
        with pytest.raises(ValueError, match="got a file without its header"):
            load(folder)
    (tmp_path / "records.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"line 1 is not a record.*too deep"):
        AnnealingRecords.load(tmp_path / "records.jsonl")


def test_tables_of_mixtures_cannot_lead_out_of_their_folder(speech):
    from torchmcl_speech.data import AudioFolder, BadAudio, SpeechMixtures, librimix_mixtures, table_mixtures

    (speech / "metadata").mkdir()
    head = "mixture_ID,length,s1_path,s1_gain_db,s2_path,s2_gain_db\n"
    (speech / "metadata" / "mix_2_spk_tr.csv").write_text(head + "m,4000,ann/1.wav,0,../secret.wav,0\n")
    with pytest.raises(BadAudio, match="is outside of"):
        SpeechMixtures(table_mixtures(speech, "tr", 2), AudioFolder(speech), crop=None)
    secret = speech.parent / "secret.wav"
    text = f"mixture_ID,mixture_path,source_1_path,source_2_path,length\n1-1_2-1,{secret},ann/1.wav,bob/1.wav,4000\n"
    (speech / "libri.csv").write_text(text)
    with pytest.raises(BadAudio, match="is outside of"):
        SpeechMixtures(librimix_mixtures(speech / "libri.csv", 2), AudioFolder(speech), crop=None)
