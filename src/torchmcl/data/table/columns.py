"""The kinds of columns: what was decided about a column of the training table, as data that is kept with the model.

Each kind reads the cells of any table in the same way (numbers and codes, NaN where a number is missing), turns them
into inputs of a network, and says in words what it is. Cells that it cannot read are counted; whether they are an
error is part of the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torchmcl.data.table.cells import short, texts_of, with_plain_numbers
from torchmcl.data.table.dates import ISO, PARTS, date_parts, read_dates
from torchmcl.data.table.numbers import PLAIN, NumberForm, read_numbers
from torchmcl.data.table.packages import polars

__all__ = [
    "BOOLEANS",
    "CategoryColumn",
    "Column",
    "DateColumn",
    "DroppedColumn",
    "NumberColumn",
    "OddCells",
    "Reading",
    "width",
]

# Categories that a message lists.
_N_LISTED = 8
# Booleans are written in different ways by different programs.
BOOLEANS = {"true": ("True", "TRUE"), "false": ("False", "FALSE")}


class OddCells(NamedTuple):
    """Cells that do not fit the column: their number, and the first of them."""

    n_cells: int
    row: int
    text: str

    def __str__(self) -> str:
        """Return where they are."""
        return f"{short(self.text)} in row {self.row + 1}" + (
            f" and {self.n_cells - 1} more" if self.n_cells > 1 else ""
        )


class Reading(NamedTuple):
    """The cells of a column: [rows, values], and those that do not fit; None if all do."""

    values: NDArray[np.float64]
    odd: OddCells | None


def _odd_cells(series: Any, failed: Any) -> OddCells | None:
    """Return the cells of a column that `failed` marks."""
    if not failed.any():
        return None
    row = failed.arg_max()
    return OddCells(int(failed.sum()), row, str(series[row]))


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


def _encode_numbers(values: NDArray[np.float64], inputs: NDArray[np.float32], missing: bool) -> None:
    """Fill numbers, zero where they are missing, and, if any were in training, an input that says so."""
    n_values = values.shape[1]
    inputs[:, :n_values] = np.nan_to_num(values, nan=0.0)
    if missing:
        inputs[:, n_values] = np.isnan(values[:, 0])


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        name: of the column.
        missing: whether values were missing in the training table.
        form: how the numbers are written where they are text.
        not_numbers: cells of the training table that hold something else and count as missing; where there were none,
            such a cell is an error in other tables.
    """

    name: str
    missing: bool
    form: NumberForm = PLAIN
    not_numbers: int = 0

    is_scaled = True
    kind = "number"

    @property
    def value_names(self) -> tuple[str, ...]:
        """The meaning of each value."""
        return (self.name,)

    @property
    def input_names(self) -> list[str]:
        """The meaning of each input of the network."""
        return [self.name, *([f"{self.name} is missing"] * self.missing)]

    @property
    def rule(self) -> str:
        """What its cells must do."""
        return f"hold finite numbers{f' {self.form}' if str(self.form) else ''}"

    def read(self, series: Any) -> Reading:
        """Return the numbers of a column of any table."""
        values, failed = read_numbers(series, self.form)
        return Reading(values.to_numpy()[:, None], _odd_cells(series, failed))

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill the inputs from standardised numbers."""
        _encode_numbers(values, inputs, self.missing)

    def odd_words(self, *, strict: bool) -> str | None:
        """Return what happens to cells that are not numbers; None if they are an error."""
        return "count as missing" if self.not_numbers else None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell about it."""
        return self.form == PLAIN and not self.not_numbers

    def describe(self) -> str:
        """Return in words how the column is read."""
        odd = f"; {self.not_numbers:,} cells that are not finite numbers count as missing" if self.not_numbers else ""
        return f"numbers{f' {self.form}' if str(self.form) else ''}{odd}"


@dataclass(frozen=True)
class DateColumn:
    """A column of dates or times, read as several numbers.

    Attributes:
        name: of the column.
        missing: whether values were missing in the training table.
        parts: that vary in the training table, of `dates.PARTS`.
        form: of the day where dates are text, as `strptime` writes it.
        not_dates: cells of the training table that hold something else and count as missing; where there were none,
            such a cell is an error in other tables.
    """

    name: str
    missing: bool
    parts: tuple[str, ...] = PARTS
    form: str = ISO
    not_dates: int = 0

    is_scaled = True
    kind = "date"
    is_plain = False

    @property
    def value_names(self) -> tuple[str, ...]:
        """The meaning of each value."""
        return tuple(f"{self.name}: {part}" for part in self.parts)

    @property
    def input_names(self) -> list[str]:
        """The meaning of each input of the network."""
        return [*self.value_names, *([f"{self.name} is missing"] * self.missing)]

    @property
    def rule(self) -> str:
        """What its cells must do."""
        return f"hold dates in the format {self.form}"

    def read(self, series: Any) -> Reading:
        """Return the parts of the dates of a column of any table."""
        dates, failed = read_dates(series, self.form)
        return Reading(date_parts(dates, self.parts), _odd_cells(series, failed))

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill the inputs from standardised parts."""
        _encode_numbers(values, inputs, self.missing)

    def odd_words(self, *, strict: bool) -> str | None:
        """Return what happens to cells that are not dates; None if they are an error."""
        return "count as missing" if self.not_dates else None

    def describe(self) -> str:
        """Return in words how the column is read."""
        odd = f"; {self.not_dates:,} cells that are not dates count as missing" if self.not_dates else ""
        return f"dates in the format {self.form}, read as {', '.join(self.parts)}{odd}"


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories.

    Attributes:
        name: of the column.
        categories: with their own input, the most common first.
        missing: whether values were missing in the training table.
        is_open: whether there were more, which share an input, also with those that were never seen.
        numeric: whether all of them are numbers, which are written in one way: 3 for 3.0.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool
    is_open: bool = False
    numeric: bool = False

    is_scaled = False
    kind = "category"

    @property
    def value_names(self) -> tuple[str, ...]:
        """The meaning of each value."""
        return (self.name,)

    @property
    def codes(self) -> dict[str, int]:
        """The code of each category."""
        codes = {category: place for place, category in enumerate(self.categories)}
        others = {other: codes[text] for text, ways in BOOLEANS.items() if text in codes for other in ways}
        return others | codes

    @property
    def other_code(self) -> int:
        """The code of a text that has no input of its own: -1, none of the known ones, if there is none to share."""
        return len(self.categories) if self.is_open else -1

    @property
    def missing_code(self) -> int:
        """The code of a missing value."""
        return len(self.categories) + self.is_open

    @property
    def input_names(self) -> list[str]:
        """The meaning of each input of the network."""
        names = [f"{self.name} = {category}" for category in self.categories]
        return names + [f"{self.name} is another"] * self.is_open + [f"{self.name} is missing"] * self.missing

    @property
    def rule(self) -> str:
        """What its cells must do."""
        listed = ", ".join(map(short, self.categories[:_N_LISTED]))
        return f"hold categories that the model knows ({listed}{' ...' if len(self.categories) > _N_LISTED else ''})"

    def read(self, series: Any) -> Reading:
        """Return the codes of a column of any table."""
        pl = polars()
        texts = texts_of(series)
        texts = with_plain_numbers(texts) if self.numeric else texts
        codes = texts.replace_strict(self.codes, default=self.other_code, return_dtype=pl.Int32)
        codes = codes.set(texts.is_null(), self.missing_code)
        return Reading(codes.cast(pl.Float64).to_numpy()[:, None], _odd_cells(texts, codes == -1))

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill the inputs from codes."""
        codes = values[:, 0].astype(np.int64)
        known = np.flatnonzero((codes >= 0) & (codes < inputs.shape[1]))
        inputs[known, codes[known]] = 1.0

    def odd_words(self, *, strict: bool) -> str | None:
        """Return what happens to unknown categories; None if they are an error."""
        return None if strict else "are answered as none of the known ones"

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell about it."""
        return not self.is_open

    def describe(self) -> str:
        """Return in words how the column is read."""
        n_known = len(self.categories)
        return f"the {n_known} most common categories, the others share an input" if self.is_open else "categories"


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
