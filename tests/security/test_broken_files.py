"""Damaged files of each format: each reader gives a result or an error in words, never a traceback or a hang."""

import gzip
import io
import json
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchmcl as mcl
from torchmcl.annealing import AnnealingRecords
from torchmcl.io import read_checkpoint, write_checkpoint

pl = pytest.importorskip("polars")
pytest.importorskip("safetensors")
pytest.importorskip("sklearn")
soundfile = pytest.importorskip("soundfile")

from torchmcl_speech.data import AudioPack, read_audio  # noqa: E402
from torchmcl_tables import MCLRegressor  # noqa: E402
from torchmcl_tables.data import infer_schema, read_table  # noqa: E402


@st.composite
def damaged(draw, content):
    """Draw a copy of `content` that is cut, has other bytes at some places, or repeats a part of itself."""
    places = st.integers(0, len(content) - 1)
    for _ in range(draw(st.integers(1, 3))):
        place, end = sorted((draw(places), draw(places)))
        change = draw(st.sampled_from(["cut", "byte", "repeat", "insert", "remove"]))
        middle = {
            "byte": bytes([draw(st.integers(0, 255))]) + content[place + 1 : end + 1],
            "repeat": content[place:end] * 2,
            "insert": draw(st.binary(max_size=8)) + content[place:end],
        }.get(change, b"")
        content = content[:place] + middle + (b"" if change == "cut" else content[end:])
        content = content or b"\0"
        places = st.integers(0, len(content) - 1)
    return content


CSV = b'name,"a, b",c\nx,1.5,2\ny,,3\n"z ""q""",-2e3,NA\n' * 2
LINES = b'{"a": 1.5, "b": "x", "c": [1, {"d": 2}]}\n{"a": null, "b": "y"}\n'


def parquet():
    frame = pl.DataFrame({"a": [1.5, None, -2.0], "b": ["x", "y", None], "c": [1, 2, 3], "d": [True, False, None]})
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="uncompressed")
    return buffer.getvalue()


TABLES = {
    ".csv": CSV,
    ".tsv": CSV.replace(b",", b"\t"),
    ".csv.gz": gzip.compress(CSV, mtime=0),
    ".jsonl": LINES,
    ".parquet": parquet(),
}


def answer(read, path, content):
    """Return what a reader makes of content: a result, or the words of its error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read(path)
    except ValueError as error:
        return str(error)


def is_answer(found):
    """Return whether a reader gave a result, or an error in the house form."""
    return not isinstance(found, str) or re.search(r"must |is not a|cannot|has \d+ problems", found)


def table_values(path):
    table = read_table(path)
    return infer_schema(table, table.columns[:1]).values(table)


@pytest.mark.parametrize("suffix", TABLES)
def test_damaged_tables_are_read_or_refused(suffix, tmp_path):
    @given(damaged(TABLES[suffix]))
    def check(content):
        found = answer(table_values, tmp_path / f"table{suffix}", content)
        assert is_answer(found)
        assert isinstance(found, str) or not np.isinf(found).any()

    check()


def save_estimator(folder):
    inputs = np.random.default_rng(0).normal(size=(40, 2))
    MCLRegressor(n_hypotheses=2, hidden=(3,), n_epochs=1, rule=mcl.WTA()).fit(inputs, inputs[:, 0]).save(folder)


def save_checkpoint(folder):
    write_checkpoint(folder / "model.safetensors", "mine", state={"a": [1, 2]}, tensors=SMALL.state_dict())


SMALL = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=2, hidden=(3,))
MODELS = {
    "estimator": (save_estimator, MCLRegressor.load),
    "checkpoint": (save_checkpoint, lambda folder: read_checkpoint(folder / "model.safetensors")),
}


@pytest.mark.parametrize("kind", MODELS)
def test_damaged_models_are_refused(kind, tmp_path):
    save, load = MODELS[kind]
    save(tmp_path / "whole")
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()

    @given(damaged(whole))
    def check(content):
        found = answer(lambda path: load(path.parent), tmp_path / "model.safetensors", content)
        assert is_answer(found)
        assert isinstance(found, str) or content == whole

    check()


RECORDS = "".join(json.dumps({"epoch": i, "temperature": 1.0, "distortion": 0.5}) + "\n" for i in range(3)).encode()


@given(damaged(RECORDS))
def test_damaged_records_are_read_or_refused(tmp_path_factory, content):
    assert is_answer(answer(AnnealingRecords.load, tmp_path_factory.getbasetemp() / "records.jsonl", content))


@pytest.mark.parametrize("form", ["wav", "flac"])
def test_damaged_recordings_are_read_or_refused(form, tmp_path):
    samples = (0.3 * np.sin(np.arange(400) / 5)).astype(np.float32)
    soundfile.write(tmp_path / f"whole.{form}", samples, 8000)

    @given(damaged((tmp_path / f"whole.{form}").read_bytes()))
    def check(content):
        found = answer(read_audio, tmp_path / f"sound.{form}", content)
        assert "sound" in found if isinstance(found, str) else np.isfinite(found).all()

    check()


def test_damaged_packs_are_read_or_refused(tmp_path):
    AudioPack({"ann/1": np.arange(300, dtype=np.int16)}).save(tmp_path / "whole.npz")

    @given(damaged((tmp_path / "whole.npz").read_bytes()))
    def check(content):
        found = answer(AudioPack.load, tmp_path / "pack.npz", content)
        assert "pack.npz" in found if isinstance(found, str) else found.names

    check()
