"""Options of the commands of the siblings: bad ones are named, good ones are taken."""

import shlex

import numpy as np
import pytest
import torch

from grids import for_each
from torchmcl.app import _parser, main
from torchmcl.errors import option_text
from torchmcl.io import read_checkpoint

TABLE = ["fit", "a.csv", "--target", "y", "-o", "model"]
ANSWERS = ["predict", "model", "a.csv", "-o", "b.csv"]


@for_each(
    "command, option",
    [
        ([*ANSWERS, "--keep", "c,c"], "--keep"),
        ([*ANSWERS, "--keep", "c", "--keep", "c"], "--keep"),
        ([*TABLE, "--seed", "-1"], "--seed"),
        ([*TABLE, "--learning-rate", "inf"], "--learning-rate"),
        ([*TABLE, "--learning-rate", "-1"], "--learning-rate"),
        ([*TABLE, "--learning-rate", "-inf"], "--learning-rate"),
        ([*TABLE, "--weight-decay", "nan"], "--weight-decay"),
        ([*TABLE, "--test", "2"], "--test"),
        ([*TABLE, "--validation", "1"], "--validation"),
        ([*ANSWERS, "--interval", "90"], "--interval"),
        ([*TABLE, "--rule", "wta"], "--rule"),
        ([*TABLE, "--target", ","], "--target"),
        (["fit", "a.csv"], "--out"),
        (["fly"], "COMMAND"),
        (["demo", "--seeds", "0"], "--seeds"),
        (["demo", "--seeds", "1.5"], "--seeds"),
        (["reproduce", "uci", "--folds", "x"], "--folds"),
        (["reproduce", "uci", "--sets", "yacht,yacht"], "--sets"),
    ],
)
def test_a_bad_option_is_named_and_nothing_is_written(command, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert f": `{option}` " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


NAMES = ["price", "Individual ID", "Last, first", 'the "old" one', '"', " x", "-1", "it's", "$HOME", "a\nb", "ü;&|"]


@for_each("name", NAMES)
def test_an_advised_option_can_be_pasted_whatever_the_name(name):
    pasted = shlex.split(f"fit a.csv --target y -o m {option_text('--drop', name, 'city')}")
    assert _parser().parse_args(pasted).drop == [name, "city"]


def test_an_option_of_names_may_be_given_several_times():
    options = _parser().parse_args([*TABLE, "--drop", "a,b", "--drop", "c", "--target", "z"])
    assert options.drop == ["a", "b", "c"]
    assert options.target == ["y", "z"]
    assert _parser().parse_args(TABLE).drop == []


@pytest.mark.slow
def test_fit_has_the_same_bits_with_any_number_of_threads(tmp_path):
    pytest.importorskip("polars")
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    rows = [f"{x:.4f},{x * (-1) ** i:.4f}" for i, x in enumerate(rng.uniform(size=60))]
    (tmp_path / "table.csv").write_text("\n".join(["a,y", *rows]) + "\n")
    found, before = [], torch.get_num_threads()
    for n_threads in (1, 2):
        out = tmp_path / str(n_threads)
        torch.set_num_threads(n_threads)
        try:
            size = ["--target", "y", "--epochs", "30", "--quiet"]
            assert main(["fit", str(tmp_path / "table.csv"), "-o", str(out), *size]) == 0
        finally:
            torch.set_num_threads(before)
        found.append(read_checkpoint(out / "model.safetensors").tensors)
    assert found[0].keys() == found[1].keys()
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name
