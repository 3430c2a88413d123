"""The commands about speech: each flag is run once, each bad value is named."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grids import for_each
from places import PYTHONPATH
from torchmcl.app import _parser, main
from torchmcl_speech.config import DataConfig
from torchmcl_speech.evaluate import evaluate_separator
from voices import recordings

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")

# A network and a training so small that a run takes a second or two.
TINY = [
    *(f"--set={change}" for change in ("model.n_filters=8", "model.kernel_size=16", "model.stride=8")),
    *(f"--set={change}" for change in ("model.segment_size=20", "model.hidden_size=4", "model.n_blocks=1")),
    *(f"--set={change}" for change in ("training.epochs=1", "training.batch_size=2", "data.samples_per_epoch=2")),
    *(f"--set={change}" for change in ("data.validation_samples=2", "data.crop=0.3")),
]
ROOMS = ("separation", "data")  # the others are run in test_every_flag.py
TRAIN = ["separation", "train", "quick", "--data", "mixed", "--device", "cpu", *TINY]
EVALUATE = ["separation", "evaluate", "--model", "trained/model"]
SEPARATE = ["separation", "separate", "talk.wav", "--model", "trained/model"]
CALIBRATE = ["separation", "calibrate", "--model", "scored/model"]
MIX = ["data", "mix", "recordings", "--counts", "tr=4,cv=2,tt=2"]

# Every flag of every command about speech, in runs that take seconds. {out} is a new folder for each.
RUNS = [
    [*MIX, "--out", "{out}"],
    [*MIX, "--out", "{out}", "--speakers", "3", "--sample-rate", "16000", "--seed", "7", "--skip-bad", "--quiet"],
    ["data", "pack", "recordings", "--out", "{out}/a.npz"],
    ["data", "pack", "recordings", "--out", "{out}/a.npz", "--parts", "speaker0,speaker1", "--skip-bad", "--quiet"],
    ["data", "pack", "recordings", "--out", "{out}/a.npz", "--sample-rate", "16000", "--quiet"],
    [*TRAIN, "--out", "{out}", "--quiet"],
    [*TRAIN, "--out", "{out}", "--skip-bad", "--minutes", "0"],
    [*TRAIN, "--out", "{out}", "--quiet", "--set", "objective.rule=pit"],
    [*TRAIN, "--out", "{out}", "--json", "--from", "trained/model"],
    [*EVALUATE, "--out", "{out}"],
    [*EVALUATE, "--out", "{out}", "--data", "mixed", "--part", "cv", "--limit", "1", "--all-pairs", "--quiet"],
    [*EVALUATE, "--out", "{out}", "--set", "data.sample_rate=8000", "--skip-bad", "--device", "cpu", "--quiet"],
    [*SEPARATE, "--out", "{out}"],
    [*SEPARATE, "-o", "{out}", "--chunk", "0.25", "--device", "cpu", "--voices", "1", "--overwrite", "--quiet"],
    ["separation", "demo", "--out", "{out}", "--model", "trained/model", "--device", "cpu", "--overwrite", "--quiet"],
    ["separation", "models"],
    ["separation", "models", "--json"],
    [*CALIBRATE],
    [
        *CALIBRATE,
        "--data",
        "mixed",
        "--set",
        "data.sample_rate=8000",
        "--part",
        "tt",
        "--limit",
        "1",
        "--device",
        "cpu",
    ],
    [*CALIBRATE, "--quiet"],
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with recordings of seven speakers, mixtures of them and a model."""
    folder = tmp_path_factory.mktemp("speech")
    recordings(folder / "recordings", n_speakers=9, n_utterances=2, n_samples=4000)
    (folder / "talk.wav").write_bytes(next((folder / "recordings" / "speaker0").iterdir()).read_bytes())
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main([*MIX, "--out", "mixed", "--quiet"]) == 0
        assert main([*TRAIN, "--out", "trained", "--quiet"]) == 0
        assert main([*TRAIN, "--out", "scored", "--quiet", "--set", "model.scores=true"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("command", RUNS, ids=lambda command: " ".join(command[:2]))
def test_every_flag_works(place, tmp_path, monkeypatch, command, capsys):
    monkeypatch.chdir(place)
    assert main([argument.format(out=tmp_path / "out") for argument in command]) == 0, capsys.readouterr().err
    assert any("{out}" in argument for argument in command) == (tmp_path / "out").exists()


def parsers(parser, words=()):
    """Yield the words and the parser of every command below."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield words, parser
    for action in below:
        for name, child in action.choices.items():
            yield from parsers(child, (*words, name))


def options_of(words, parser):
    return {(words, max(action.option_strings, key=len)) for action in parser._actions if action.option_strings}


def test_the_runs_cover_every_flag():
    commands = {words: parser for words, parser in parsers(_parser()) if words[0] in ROOMS}
    known = set().union(*(options_of(words, parser) for words, parser in commands.items()))
    used = set()
    for run in RUNS:
        run = run if isinstance(run, list) else run.values[0]
        words = tuple(run[:2])
        names = {
            name: max(action.option_strings, key=len)
            for action in commands[words]._actions
            for name in action.option_strings
        }
        used |= {(words, names[argument.partition("=")[0]]) for argument in run if argument.partition("=")[0] in names}
    help_ = {(words, "--help") for words in commands}
    assert sorted(known - used - help_) == []


# ---------------------------------------------------------------------------- the documented path


def test_what_data_mix_wrote_is_trained_on_evaluated_and_separated_without_another_option(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recordings(tmp_path / "recordings", n_speakers=7, n_utterances=2, n_samples=14000)
    assert main(["data", "mix", "recordings", "--out", "mixed", "--speakers", "2", "--counts", "tr=6,cv=2,tt=2"]) == 0
    fast = ["--set", "training.epochs=1", "--set", "data.samples_per_epoch=8", "--quiet"]
    assert main(["separation", "train", "quick", "--data", "mixed", "--out", "out/quick", *fast]) == 0
    assert main(["separation", "evaluate", "--model", "out/quick/model", "--data", "mixed"]) == 0
    meeting = str(next(Path("mixed/wav8k/min/tt/mix").iterdir()))
    assert main(["separation", "separate", meeting, "--model", "out/quick/model", "-o", "out/separated"]) == 0
    assert len(list(Path("out/separated").glob("*.wav"))) == 3
    saved = json.loads(Path("out/quick/config.json").read_text())
    assert saved["data"]["layout"] == "auto"


# ---------------------------------------------------------------------------- values that cannot be used


OUT = ["--out", "new"]
UNUSABLE = [
    *(([*SEPARATE, *OUT, "--chunk", value], "--chunk") for value in ("inf", "0", "nan", "")),
    *(([*EVALUATE, *OUT, "--limit", value], "--limit") for value in ("0", "1.5")),
    *(([*TRAIN, *OUT, "--minutes", value], "--minutes") for value in ("nan", "-1")),
    *(([*MIX, *OUT, "--seed", value], "--seed") for value in ("-1", str(2**32))),
    *(([*MIX, *OUT, "--speakers", value], "--speakers") for value in ("0", "x")),
    *(([*MIX, *OUT, "--sample-rate", value], "--sample-rate") for value in ("0", "9" * 20)),
    *(([*MIX, *OUT, "--counts", value], "--counts") for value in ("tr", "tr=0", "xx=3", "tr=1,tr=2", "")),
    (["data", "pack", "recordings", *OUT, "--sample-rate", "nan"], "--sample-rate"),
    (["data", "pack", "recordings", *OUT, "--parts", ","], "--parts"),
    ([*SEPARATE, *OUT, "--device", "auto"], "--device"),
]


@for_each("command, option", UNUSABLE)
def test_a_value_that_cannot_be_used_is_named_and_nothing_is_written(tmp_path, monkeypatch, command, option, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert f"torchmcl {' '.join(command[:2])}: `{option}`" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@for_each(
    "change, message",
    [
        ("model.n_filter=8", "model: unknown option ['n_filter']"),
        ("model.n_filters=x", "DPRNN: `n_filters`"),
        ("training.batch_size=50", "training: `batch_size`"),
        ("data.crop=9.0", "none of 4 mixtures is usable"),
        ("data.crop=.nan", "data: `crop`"),
        ("data.n_workers=-1", "data: `n_workers`"),
        ("training.learning_rate=.inf", "training: `learning_rate`"),
        ("training.ema=2.0", "training: `ema`"),
        ("objective.epsilon=-1.0", "objective: `epsilon`"),
        ("objective.score_weight=.inf", "objective: `score_weight`"),
    ],
)
def test_a_change_that_cannot_be_used_is_named_and_nothing_is_written(
    place, tmp_path, monkeypatch, change, message, capsys
):
    monkeypatch.chdir(place)
    assert main([*TRAIN, "--out", str(tmp_path / "out"), "--quiet", "--set", change]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_outputs_that_cannot_be_written_are_refused_before_recordings_are_read(tmp_path, capsys):
    assert main(["data", "pack", "none", "--out", str(tmp_path)]) == 2
    assert "it is a folder. Give the name of a file." in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        evaluate_separator("none", DataConfig(root="none"), out=tmp_path / "file")


@pytest.mark.slow
def test_only_training_needs_lightning(place, tmp_path):
    commands = [
        [*SEPARATE, "-o", str(tmp_path / "separated")],
        [*EVALUATE, "--out", str(tmp_path / "evaluated"), "--quiet"],
        [*MIX, "--out", str(tmp_path / "mixed"), "--quiet"],
        ["data", "pack", "recordings", "--out", str(tmp_path / "pack.npz"), "--quiet"],
    ]
    program = (
        "import sys\n"
        "for name in ('lightning', 'sklearn'): sys.modules[name] = None\n"
        f"from torchmcl.app import main\nsys.exit(any(main(command) for command in {commands}))"
    )
    call = [sys.executable, "-W", "ignore", "-c", program]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    found = subprocess.run(call, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
