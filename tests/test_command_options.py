"""Options of the commands of the siblings: bad ones are named, good ones are taken."""

import re
import shlex

import pytest

from grids import for_each
from torchmcl.app import _parser, main
from torchmcl.errors import option_text

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


@for_each(
    "command, message",
    [
        (["fitt"], r"torchmcl: `COMMAND` must be .*, got 'fitt'\. Did you mean 'fit'\? See `torchmcl --help`"),
        ([*TABLE, "--tarhet", "y"], r"torchmcl fit: `--tarhet` is not .* Did you mean '--target'\? See `torchmcl fit"),
        (["play", "zz"], r"torchmcl play: `zz` is not an argument of this command\. See `torchmcl play --help`"),
    ],
)
def test_what_is_unknown_is_an_error_of_its_own_command(command, message, capsys):
    with pytest.raises(SystemExit):
        main(command)
    assert re.match(message, capsys.readouterr().err)


def test_every_output_has_the_same_options():
    parsers, outputs = [_parser()], []
    while parsers:
        actions = parsers.pop()._actions
        parsers += [p for a in actions if isinstance(a.choices, dict) for p in a.choices.values()]
        outputs += [a.option_strings for a in actions if "--out" in a.option_strings]
    assert len(outputs) > 10
    assert {tuple(options) for options in outputs} == {("-o", "--out")}


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
