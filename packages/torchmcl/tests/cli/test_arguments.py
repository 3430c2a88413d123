"""Options are checked before anything is loaded, and messages name the option."""

import math
import shlex

import pytest

from grids import for_each
from torchmcl._messages import option_text, split_names
from torchmcl.cli import _parser, main
from torchmcl.cli.arguments import (
    counts,
    fraction,
    natural,
    non_negative_number,
    positive,
    positive_number,
    probability,
    seed,
    sizes,
)

NEVER_NUMBERS = ["", " ", "x", "nan", "inf", "-inf", "1e400", "0x10", "1,5"]
INTEGERS = {positive: (["1", "07", "2147483647"], ["0", "-1", "1.5", "٣", "2147483648", "9" * 5000])}
INTEGERS[natural] = (["0", "12"], ["-1", "1.0", "2147483648"])
INTEGERS[seed] = (["0", "4294967295"], ["-1", "4294967296", "0.5"])
NUMBERS = {positive_number: (["1", "1e-9", "1e300"], ["0", "-1", "-0.0"])}
NUMBERS[non_negative_number] = (["0", "2.5"], ["-1", "-1e-9"])
NUMBERS[fraction] = (["0", "0.999"], ["1", "-0.1", "1.5"])
NUMBERS[probability] = (["0.9", "1e-9"], ["0", "1", "2"])


@for_each("kind", [*INTEGERS, *NUMBERS])
def test_numbers_are_taken_where_the_rule_holds_and_refused_elsewhere(kind):
    good, bad = (INTEGERS | NUMBERS)[kind]
    for text in good:
        assert kind(text) == float(text)
    for text in [*bad, *NEVER_NUMBERS]:
        with pytest.raises(Exception, match=r"must .*, got ") as error:
            kind(text)
        assert len(str(error.value)) < 200
    assert math.isfinite(kind(good[0]))


def test_lists_of_numbers_are_checked_one_by_one():
    assert counts("0, 3") == [0, 3]
    assert sizes("64,64") == (64, 64)
    for text in ("x", "1,x", "", "1,1"):
        with pytest.raises(Exception, match=r"must .*, got "):
            counts(text)


TABLE = ["fit", "a.csv", "--target", "y", "-o", "model"]
ANSWERS = ["predict", "model", "a.csv", "-o", "b.csv"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([*ANSWERS, "--keep", "c,c"], "torchmcl predict: `--keep` must name each once, got 'c' twice."),
        ([*ANSWERS, "--keep", "c", "--keep", "c"], "torchmcl predict: `--keep` must name each once, got 'c' twice."),
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
        (["fit", "a.csv"], "torchmcl fit: `--out` must be given, got nothing."),
        (["reproduce", "uci", "--folds", "x"], "torchmcl reproduce uci: `--folds` must be an integer from 0 to "),
        (["reproduce", "uci", "--sets", "yacht,yacht"], "`--sets` must name each once, got 'yacht' twice."),
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


def test_names_are_stripped_and_empty_ones_dropped():
    assert split_names(' a, ,"b, c" ,"d') == ["a", "b, c", '"d']
