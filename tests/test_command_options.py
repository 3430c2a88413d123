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
    "command, message",
    [
        ([*ANSWERS, "--keep", "c,c"], "torchmcl predict: `--keep` must have no duplicates, got 'c' twice."),
        (
            [*ANSWERS, "--keep", "c", "--keep", "c"],
            "torchmcl predict: `--keep` must have no duplicates, got 'c' twice.",
        ),
        ([*TABLE, "--seed", "-1"], "torchmcl fit: `--seed` must be an integer from 0 to 4294967295, got '-1'."),
        ([*TABLE, "--learning-rate", "inf"], "torchmcl fit: `--learning-rate` must be a finite number > 0, got 'inf'."),
        ([*TABLE, "--learning-rate", "-1"], "`--learning-rate` must be a finite number > 0, got '-1'."),
        ([*TABLE, "--learning-rate", "-inf"], "`--learning-rate` must be followed by a value, got none."),
        ([*TABLE, "--weight-decay", "nan"], "`--weight-decay` must be a finite number >= 0, got 'nan'."),
        ([*TABLE, "--test", "2"], "`--test` must lie in [0, 1), got '2'."),
        ([*TABLE, "--validation", "1"], "`--validation` must lie in [0, 1), got '1'."),
        ([*ANSWERS, "--interval", "90"], "`--interval` must lie in (0, 1), got '90'."),
        ([*TABLE, "--rule", "wta"], "`--rule` must be one of "),
        ([*TABLE, "--target", ","], "`--target` must name at least one, separated by commas, got ','."),
        (["fit", "a.csv"], "torchmcl fit: `--out` is required."),
        (["reproduce", "uci", "--folds", "x"], "torchmcl reproduce uci: `--folds` must be an integer from 0 to "),
        (["reproduce", "uci", "--sets", "yacht,yacht"], "`--sets` must have no duplicates, got 'yacht' twice."),
        (["fly"], "must be one of "),
    ],
)
def test_a_bad_option_is_named_and_nothing_is_written(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
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
