"""The command line: any words, in any order, end with a sentence and an exit code of 0 or 2."""

import contextlib
import io
import os
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np

from fuzz.feed import Feed
from fuzz.files import folder
from fuzz.judge import NotAsPromised

__all__ = ["commands"]


class _Reached(Exception):
    """The arguments were good enough for hours of work, which is not done here."""


# What takes long, and is not the edge that is looked at.
_WORK = (
    "torchmcl.demo.training.run_demo",
    "torchmcl_tables.model.fit_table",
    "torchmcl_studies.uci.run.run_study",
    "torchmcl_studies.figures.run_figure",
    "torchmcl_speech.train.train_separator",
)
_WORDS = (
    "fit", "predict", "report", "demo", "reproduce", "uci", "figure1", "all", "separation", "train", "evaluate", "separate",
    "data", "mix", "pack", "--target", "price", "-o", "--out", "new", "--drop", "--categorical", "--hypotheses", "0", "3",
    "--hidden", "4,4", "--epochs", "--seeds", "-1", "1e9", "nan", "--validation", "--test", "0.5", "2", "--device", "cpu",
    "cuda:99", "meta", "houses.csv", "model", "none", "--interval", "0.9", "--keep", "area", "--quiet", "--help", "--version",
    "--model", "net", "--chunk", "sound.wav", "--set", "data.crop=1", "objective.rule=pit", "a=b", "quick", "--data", ".",
    "--speakers", "--counts", "tr=1", "tr=x", "--sample-rate", "--parts", "speech", "--sets", "yacht", "--methods", "mcl",
    "--protocol", "last", "--folds", "--preset", "paper", "", "\udcff", "--learning-rate", "--seed", "--restarts", "--rule",
    "annealed", "--", "-", "..", "answers.csv", "answers.xyz", "--all-pairs", "--limit", "--part", "tt", "²", "9" * 5000,
)  # fmt: skip
_STARTS = (
    (), ("fit", "houses.csv", "--target", "price", "-o", "new"), ("predict", "model", "houses.csv", "-o", "answers.csv"),
    ("report", "model"), ("reproduce", "uci"), ("separation", "separate", "sound.wav", "--model", "net", "-o", "new"),
    ("data", "pack", "speech", "--out", "pack.npz"), ("data", "mix", "speech", "--out", "mixed", "--counts", "tr=1"),
    ("separation", "train", "quick", "--out", "new"), ("separation", "evaluate", "--model", "net"), ("demo",),
)  # fmt: skip


@cache
def _place() -> Path:
    """Return a folder with a table, a model, a network and some speech."""
    import polars as pl

    from torchmcl_speech.data import write_audio
    from torchmcl_speech.nn import DPRNN, save_model
    from torchmcl_tables.data import Table
    from torchmcl_tables.model import TableFit, fit_table, save_table_model

    place = folder() / "commands"
    place.mkdir()
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"area": random.normal(size=40), "city": ["a", "b"] * 20, "price": random.normal(size=40)})
    frame.write_csv(place / "houses.csv")
    how = TableFit(["price"], parameters={"n_epochs": 1, "hidden": (3,), "n_hypotheses": 2})
    save_table_model(fit_table("fuzz", Table("houses.csv", frame), how), place / "model")
    network = DPRNN(n_outputs=2, n_filters=4, kernel_size=4, stride=2, segment_size=4, hidden_size=3, n_blocks=1)
    save_model(place / "net", network, {"sample_rate": 8000})
    write_audio(place / "sound.wav", 0.1 * np.sin(np.arange(600) / 7), 8000)
    for speaker in ("ann", "bob", "cat"):
        write_audio(place / "speech" / speaker / "1.wav", 0.1 * np.sin(np.arange(600) / 7), 8000)
    return place


def commands(feed: Feed) -> None:
    """Any words end with 0 or 2."""
    from torchmcl.cli import main

    words = list(feed.pick(_STARTS))
    for _ in range(feed.below(6)):
        kind, place = feed.below(4), feed.below(len(words) + 1)
        if kind == 0 and words:
            del words[min(place, len(words) - 1)]
        elif kind == 1 and words:
            words[min(place, len(words) - 1)] = feed.pick(_WORDS)
        else:
            words.insert(place, feed.pick(_WORDS))
    before, out = Path.cwd(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    os.chdir(_place())
    try:
        with contextlib.ExitStack() as stack:
            for name in _WORK:
                stack.enter_context(mock.patch(name, side_effect=_Reached))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(out))
            code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except _Reached:
        code = 0
    finally:
        os.chdir(before)
    if code not in (0, 2):
        raise NotAsPromised(f"exit code {code} for {words}")
