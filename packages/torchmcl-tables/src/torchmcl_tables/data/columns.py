"""The kinds of columns: what was decided about a column of the training table, as data that is kept with the model.

Each kind reads the cells of any table in the same way (numbers and codes, NaN where a number is missing), turns them
into inputs of a network, and says in words what it is. Cells that it cannot read are counted; whether they are an
error is part of the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.data.categories import BOOLEANS, CategoryColumn
from torchmcl_tables.data.measured import DateColumn, NumberColumn
from torchmcl_tables.data.readings import Reading

__all__ = [
    "BOOLEANS",
    "CategoryColumn",
    "Column",
    "DateColumn",
    "DroppedColumn",
    "NumberColumn",
    "width",
]


class Column(Protocol):
    """A column that a model reads."""

    @property
    def name(self) -> str:
        """Its name in the table."""

    @property
    def value_names(self) -> tuple[str, ...]:
        """The meaning of each value."""

    @property
    def is_scaled(self) -> bool:
        """Whether the values are numbers, which are standardised, and not codes."""

    @property
    def input_names(self) -> list[str]:
        """The meaning of each input of the network."""

    @property
    def rule(self) -> str:
        """What its cells must do."""

    @property
    def kind(self) -> str:
        """One word for it."""

    def read(self, series: Any) -> Reading:
        """Return the values of a column of any table."""

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill the inputs [rows, inputs], which are zero, from values [rows, values], numbers of them standardised."""

    def odd_words(self, *, strict: bool) -> str | None:
        """Return what happens to cells that do not fit; None if they are an error."""

    def describe(self) -> str:
        """Return in words how the column is read."""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell about it."""


@dataclass(frozen=True)
class DroppedColumn:
    """A column that the model does not read.

    Attributes:
        name: of the column.
        reason: why.
        option: that makes the model read it, empty if nothing can.
    """

    name: str
    reason: str
    option: str = ""


def width(columns: Sequence[Column]) -> int:
    """Return the number of values of columns."""
    return sum(len(column.value_names) for column in columns)
