"""Options are checked before anything is loaded, and messages name the option."""

import math

import pytest

from grids import for_each
from torchmcl.app.arguments import (
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
from torchmcl.errors import split_names

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


def test_names_are_stripped_and_empty_ones_dropped():
    assert split_names(' a, ,"b, c" ,"d') == ["a", "b, c", '"d']
