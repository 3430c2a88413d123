"""Problems of a table, all of them in one message."""

from collections.abc import Sequence
from dataclasses import dataclass

from torchmcl._messages import bad_value

__all__ = ["Problem", "TableError", "raise_problems"]


@dataclass(frozen=True)
class Problem:
    """One thing that keeps a table from being used.

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
    """A table, or the options about its columns, cannot be used.

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
    told = [bad_value(owner, p.subject, p.rule, p.got, p.advice) for p in problems]
    if len(told) == 1:
        raise TableError(told[0], problems)
    if told:
        lines = "\n".join(f"- {text.removeprefix(f'{owner}: ')}" for text in told)
        raise TableError(f"{owner}: {name} has {len(told)} problems:\n{lines}", problems)
