"""`torchmcl reproduce ...`: values that cannot be used are named, and nothing is written."""

import re

import pytest
import torch

from torchmcl.app import main

OUT = ["--out", "new"]
UNUSABLE = [
    (["separation", "--data", "x", "--seeds", "0"], "--seeds"),
    (["separation", "--data", "x", "--limit", "-1"], "--limit"),
    (["uci", "--seeds", "inf"], "--seeds"),
    (["uci", "--epochs", "1e3"], "--epochs"),
    (["uci", "--folds", "-1"], "--folds"),
    (["trajectories", "--seeds", "nan"], "--seeds"),
    (["figure1", "--device", "tpu"], "--device"),
]


@pytest.mark.parametrize(("command", "option"), UNUSABLE, ids=lambda value: " ".join(value) if value else "")
def test_a_value_that_cannot_be_used_is_named(tmp_path, monkeypatch, command, option, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *command, *OUT])
    assert stop.value.code == 2
    words = f"reproduce {command[0]}"
    assert re.match(rf"torchmcl {words}: `{option}` must .+, got .+\. See `torchmcl {words} --help`", _said(capsys))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "command", [["separation", "--data", "x"], ["figure1"], ["uci"], ["trajectories"]], ids=" ".join
)
def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch, command, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *command, *OUT, "--device", "cuda"]) == 2
    assert "`device` must be available, got 'cuda'. This machine has no CUDA device." in _said(capsys)
    assert not list(tmp_path.iterdir())


def _said(capsys):
    return capsys.readouterr().err


@pytest.mark.parametrize(("sets", "words"), [("yacht", "got no-folder"), ("yaht", "Did you mean 'yacht'?")])
def test_missing_data_are_noticed_before_the_figures_are_trained(tmp_path, monkeypatch, sets, words, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "all", *OUT, "--epochs", "1", "--quiet", "--data", "no-folder", "--sets", sets]) == 2
    assert words in _said(capsys)
    assert not list(tmp_path.iterdir())
