"""Edges that read files: tables, recordings, packs, mixtures, models, checkpoints, records, configurations."""

import atexit
import gzip
import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import torchmcl as mcl
from fuzz.feed import Feed
from torchmcl.sklearn import MCLClassifier, MCLRegressor, load_estimator

__all__ = ["checkpoints", "configurations", "models", "records", "speech", "tables"]


@cache
def folder() -> Path:
    """Return a folder of this process, in memory where there is such a place and no other is asked for."""
    shared = Path("/dev/shm")
    in_memory = "TMPDIR" not in os.environ and os.access(shared, os.W_OK)
    made = Path(tempfile.mkdtemp(prefix="torchmcl-fuzz-", dir=shared if in_memory else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def forget_folder() -> None:
    """Remove the folder of this process."""
    shutil.rmtree(folder(), ignore_errors=True)


# ---- tables

_CSV = b'name,"a, b",c\nx,1.5,2\ny,,3\n"z ""q""",-2e3,NA\n' * 2


@cache
def _table_seeds() -> list[tuple[str, bytes]]:
    import polars as pl

    frame = pl.DataFrame({"a": [1.5, None, -2.0], "b": ["x", "y", None], "c": [1, 2, 3], "d": [True, False, None]})
    seeds = [(".csv", _CSV), (".tsv", _CSV.replace(b",", b"\t")), (".csv.gz", gzip.compress(_CSV, mtime=0))]
    for options in ({}, {"compression": "uncompressed"}, {"compression": "snappy", "statistics": False}):
        buffer = io.BytesIO()
        frame.write_parquet(buffer, **options)
        seeds.append((".parquet", buffer.getvalue()))
    import pyarrow.parquet as pq

    deltas = {"b": "DELTA_BYTE_ARRAY", "c": "DELTA_BINARY_PACKED", "a": "BYTE_STREAM_SPLIT"}
    for options in (
        {"compression": "none", "store_schema": False, "row_group_size": 2},
        {"compression": "gzip", "data_page_version": "2.0"},
        {"compression": "none", "use_dictionary": False, "column_encoding": deltas, "data_page_version": "2.0"},
    ):
        buffer = io.BytesIO()
        pq.write_table(frame.to_arrow(), buffer, **options)
        seeds.append((".parquet", buffer.getvalue()))
    lines = b'{"a": 1.5, "b": "x", "c": [1, {"d": 2}]}\n{"a": null, "b": "y"}\n'
    return [*seeds, (".jsonl", lines), (".ndjson.gz", gzip.compress(lines, mtime=0))]


def tables(feed: Feed) -> None:
    """A table is read or refused; so is its schema."""
    from torchmcl_tables.data import infer_schema, read_table

    suffix, seed = feed.pick(_table_seeds())
    path = folder() / f"table{suffix}"
    content = feed.mutated(gzip.decompress(seed) if suffix.endswith(".gz") and feed.below(2) else seed)
    if suffix.endswith(".gz") and feed.below(2):
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)
    table = read_table("fuzz", path)
    target = feed.pick([*table.columns[:3], "c"])
    schema = infer_schema("fuzz", table, [target], categorical=table.columns[-1:] if feed.one_in(4) else ())
    values = schema.values("fuzz", table)
    if np.isinf(values).any():
        raise AssertionError("an infinite value came through")


# ---- speech


@cache
def _speech_seeds() -> list[tuple[str, bytes]]:
    import soundfile

    from torchmcl_speech.data import AudioPack

    samples = (0.3 * np.sin(np.arange(400) / 5)).astype(np.float32)
    seeds = []
    for form, subtype in (
        ("WAV", "PCM_16"),
        ("WAV", "FLOAT"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
        ("AIFF", "PCM_24"),
    ):
        buffer = io.BytesIO()
        two = np.stack([samples, samples], axis=1) if form == "AIFF" else samples
        soundfile.write(buffer, two, 8000, format=form, subtype=subtype)
        seeds.append((form.lower(), buffer.getvalue()))
    path = folder() / "seed.npz"
    AudioPack({"ann/1": np.arange(300, dtype=np.int16), "bob/1": np.arange(0, 3000, 30, dtype=np.int16)}).save(path)
    seeds += [("npz", path.read_bytes())] * 2
    seeds.append(("tables.csv", b"mixture_ID,length,s1_path,s1_gain_db\nm,400,a.wav,0.5\nn,300,b.wav,-1\n"))
    seeds.append(("libri.csv", b"mixture_ID,mixture_path,source_1_path,length\n1-2-3,m.wav,a.wav,400\n"))
    return seeds


def speech(feed: Feed) -> None:
    """A recording, a pack or a list of mixtures is read or refused; samples are finite."""
    from torchmcl_speech.data import AudioFolder, AudioPack, librimix_mixtures, read_audio, table_mixtures

    kind, seed = feed.pick(_speech_seeds())
    content = feed.mutated(seed)
    if kind == "npz":
        path = folder() / "pack.npz"
        path.write_bytes(content)
        pack = AudioPack.load(path)
        _finite(*(pack.read(name) for name in pack.names))
    elif kind == "tables.csv":
        path = folder() / "metadata" / "mix_1_spk_tr.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        for mixture in table_mixtures(folder(), "tr", 1):
            AudioFolder(folder()).length(mixture.tracks[0].name)
    elif kind == "libri.csv":
        path = folder() / "libri.csv"
        path.write_bytes(content)
        for mixture in librimix_mixtures(path, 1):
            AudioFolder(folder()).read(mixture.recorded or "")
    else:
        path = folder() / f"sound.{kind}"
        path.write_bytes(content)
        _finite(read_audio(path, feed.pick((None, 8000, 16000))))


def _finite(*arrays: Any) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise AssertionError("a sample that is not finite")


# ---- models


@cache
def _model_folders() -> list[tuple[dict[str, bytes], Callable[[Path], Any]]]:
    import polars as pl
    import torch

    from torchmcl.annealing import Snapshots
    from torchmcl_speech.nn import DPRNN, load_model, save_model
    from torchmcl_tables.data import Table
    from torchmcl_tables.model import TableFit, fit_table, load_table_model, save_table_model, table_records

    torch.manual_seed(0)
    place = folder() / "seeds"
    save_model(place / "0", DPRNN(n_outputs=2, n_filters=4, segment_size=4, hidden_size=3, n_blocks=1), {"rate": 8000})
    inputs = np.random.default_rng(0).normal(size=(40, 2))
    parameters: dict[str, Any] = {"n_hypotheses": 2, "hidden": (3,), "n_epochs": 2}
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 2))
    MCLRegressor(**parameters, rule=rule, random_state=0).fit(inputs, inputs[:, 0]).save(place / "1")
    MCLClassifier(**parameters, random_state=0).fit(inputs, np.where(inputs[:, 0] > 0, "p", "q")).save(place / "2")
    frame = pl.DataFrame({"a": inputs[:, 0], "b": ["x", "y"] * 20, "t": inputs[:, 1]})
    how = TableFit(["t"], parameters={**parameters, "n_epochs": 1})
    save_table_model(fit_table("fuzz", Table("t.csv", frame), how), place / "3")
    snapshots = Snapshots(mcl.MultiHypothesisMLP(1, 1, n_hypotheses=2, hidden=(3,)))
    snapshots.add(1.0, mcl.MultiHypothesisMLP(1, 1, n_hypotheses=2, hidden=(3,)))
    snapshots.save(place / "4")

    def load_snapshots(path: Path) -> None:
        Snapshots.load(path, mcl.MultiHypothesisMLP(1, 1, n_hypotheses=2, hidden=(3,)))

    def load_table(path: Path) -> None:
        table_records("fuzz", load_table_model("fuzz", path))

    loaders = (load_model, load_estimator, load_estimator, load_table, load_snapshots)
    files = [{path.name: path.read_bytes() for path in (place / str(i)).iterdir()} for i in range(5)]
    return list(zip(files, loaders, strict=True))


def _changed_json(feed: Feed, content: bytes) -> bytes:
    """Return JSON with other values at some places: what passes a parser gets further."""
    value = json.loads(content)
    for _ in range(1 + feed.below(3)):
        inner = value
        for _ in range(1 + feed.below(6)):
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            if not keys:
                break
            key = feed.pick(keys[:256])
            if isinstance(inner[key], dict | list) and feed.below(4):
                inner = inner[key]
                continue
            if feed.one_in(6) and isinstance(inner, dict):
                inner[feed.pick(("$AnnealedWTA", "$array", "$known", "__class__", "$network", "", "a"))] = inner.pop(
                    key
                )
            else:
                inner[key] = feed.pick(
                    (
                        None,
                        True,
                        -1,
                        0,
                        10**30,
                        1e308,
                        "",
                        "x",
                        [],
                        {},
                        [[]],
                        "$array",
                        {"$WTA": {}},
                        [1],
                    )
                )
            break
    return json.dumps(value).encode()


def models(feed: Feed) -> None:
    """A folder of a model is loaded or refused."""
    from torchmcl.persistence import read_checkpoint, write_checkpoint

    files, load = feed.pick(_model_folders())
    place = folder() / "model"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content)
    path = place / "model.safetensors"
    if feed.below(3):  # whoever forges a file computes the checksum too
        kind, state, tensors, _ = read_checkpoint(path)
        state = json.loads(_changed_json(feed, json.dumps(state).encode()))
        write_checkpoint(path, kind, state=state, tensors=tensors)
    else:
        path.write_bytes(feed.mutated(path.read_bytes()))
    load(place)


# ---- checkpoints


@cache
def _half_trained() -> tuple[Path, Callable[[Path], Any], list[Path]]:
    """Return the folder of a fleet that was saved during training, a function that resumes it, and its saved states."""
    import torch

    from torchmcl.fleet import Checkpointing, Fleet, FleetData

    data = FleetData.shared(torch.linspace(0, 1, 6).view(6, 1), torch.linspace(1, 0, 6).view(6, 1, 1), 2)

    def resume(place: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged state is passed over with a warning
            fleet = Fleet(lambda: mcl.MultiHypothesisMLP(1, 1, 2, hidden=(3,)), 2, seeds=[0, 1])
            fleet.fit(data, 4, checkpoint=Checkpointing(place, every=1), progress=False)

    place = folder() / "half trained"
    resume(place)
    return place, resume, sorted(place.glob("chunk-*"))


def checkpoints(feed: Feed) -> None:
    """A saved state is read or refused, also one with a forged checksum; a fleet resumes from what is intact."""
    from torchmcl.persistence import decode, read_checkpoint, write_checkpoint

    trained, resume, states = _half_trained()
    place = folder() / "checkpoint"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(trained, place)
    newest = place / states[-1].name
    if feed.one_in(2):
        newest.write_bytes(feed.mutated(newest.read_bytes()))
        if feed.one_in(2):
            found = read_checkpoint(newest)
            decode(found.state, found.tensors)
    else:
        whole = read_checkpoint(newest)
        state = json.loads(_changed_json(feed, json.dumps(whole.state).encode()))
        tensors = dict(whole.tensors)
        if feed.one_in(3):
            tensors.pop(feed.pick(sorted(tensors)))
        elif feed.one_in(2):
            name = feed.pick(sorted(tensors))
            tensors[name] = tensors[name].flatten()[: feed.below(3)]
        write_checkpoint(newest, whole.kind, state=state, tensors=tensors)
    resume(place)


# ---- records and pages


def records(feed: Feed) -> None:
    """Records of trainings are read or refused, and so are the pages of them."""
    from torchmcl.annealing import AnnealingRecords
    from torchmcl_studies.reports.uci import write_uci_page
    from torchmcl_studies.uci.records import Records

    kind = feed.below(3)
    path = folder() / "records.jsonl"
    if kind == 0:
        row = {"step": 1, "temperature": 0.5, "usage": [0.5, 0.5], "hypotheses": [[[0.0], [1.0]]], "probes": None}
        row |= dict.fromkeys(("distortion", "soft_distortion", "entropy", "free_energy", "rate"), 0.1) | {
            "scores": None
        }
    else:
        row = {
            "set": "yacht",
            "fold": 0,
            "method": "mcl",
            "protocol": "last",
            "seed": 0,
            "distortion": 1.0,
            "rmse": 1.0,
        }
        row |= {"usage": [0.5, 0.5], "seconds": 0.1, "epochs": 5}
    line = json.dumps(row).encode()
    second = _changed_json(feed, line) if feed.below(2) else feed.mutated(line)
    path.write_bytes(line + b"\n" + second + b"\n")
    if kind == 0:
        AnnealingRecords.load(path)
    elif kind == 1:
        Records(path, {"epochs": 5})
    else:
        write_uci_page(path.parent)


# ---- configurations


def configurations(feed: Feed) -> None:
    """A configuration in YAML, and changes of it, are read or refused."""
    from importlib import resources

    from torchmcl_speech.separation import load_config, shipped_configs

    shipped = resources.files("torchmcl_speech.separation") / "configs" / feed.pick(shipped_configs())
    path = folder() / "config.yaml"
    path.write_bytes(feed.mutated(shipped.read_bytes()))
    config = load_config(path)
    if feed.below(2):
        value = feed.pick(
            ("1", "[1]", "{a: 1}", "!!python/none", "&a [*a]", "null", "1e-3", "0.1", "", "'", "2020-13-01")
        )
        option = feed.pick(
            ("data.root", "data.crop", "training.epochs", "objective.rule", "model.n_outputs", "x.y", "data")
        )
        config = config.changed([f"{option}={value}"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        json.dumps(config.as_dict())
