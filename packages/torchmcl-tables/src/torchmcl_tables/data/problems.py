"""Problems of a table, listed in one message."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torchmcl._messages import bad_value

__all__ = ["Problem", "TableError", "raise_problems", "speaking_for"]

# The function or class in front of a message.
_OWNER = re.compile(r"\w+: (?=`|.+ has \d+ problems:)")


@dataclass(frozen=True)
class Problem:
    """One problem that makes a table unusable.

    Attributes:
        subject: the column or the option.
        rule: that it breaks.
        got: instead.
        advice: the way out.
        wrong: a name in an option that is wrong.
        right: the name that should replace it; empty if it should be left out.
    """

    subject: str
    rule: str
    got: str
    advice: str = ""
    wrong: str = ""
    right: str = ""


class TableError(ValueError):
    """A table, or the options about its columns, are unusable.

    Attributes:
        problems: all that were found.
    """

    def __init__(self, message: str, problems: Sequence[Problem]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def raise_problems(owner: str, name: str, problems: Sequence[Problem]) -> None:
    """Raise one error about all problems, if there are any.

    Raises:
        TableError: in the house form for one problem, with a line for each of several.
    """
    lines = [bad_value(owner, p.subject, p.rule, p.got, p.advice) for p in problems]
    if len(lines) == 1:
        raise TableError(lines[0], problems)
    if lines:
        listed = "\n".join(f"- {line.removeprefix(f'{owner}: ')}" for line in lines)
        raise TableError(f"{owner}: {name} has {len(lines)} problems:\n{listed}", problems)


@contextmanager
def speaking_for(owner: str) -> Iterator[None]:
    """Make errors of the functions inside name their caller, a command or an estimator.

    Example:
        >>> with speaking_for("torchmcl fit"):
        ...     raise ValueError("read_table: `file` must exist, got 'a.csv'.")
        Traceback (most recent call last):
        ValueError: torchmcl fit: `file` must exist, got 'a.csv'.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str) and (found := _OWNER.match(error.args[0])):
            error.args = (f"{owner}: {error.args[0][found.end() :]}",)
        raise
