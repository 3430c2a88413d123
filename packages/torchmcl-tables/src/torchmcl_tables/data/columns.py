"""The kinds of columns: decisions about a column of the training table, stored with the model.

Each kind reads the cells of any table in the same way (numbers and codes, NaN where a number is missing), turns them
into inputs of a network, and describes itself in words. Cells that it cannot read are counted; whether they are an
error is part of the decision.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl.errors import option_text
from torchmcl_tables.data.values import (
    ISO,
    PARTS,
    PLAIN,
    NumberForm,
    date_parts,
    find_form,
    read_dates,
    read_numbers,
    short,
    texts_of,
    with_plain_numbers,
)

#: Formats are detected from this many cells, and applied to all of them.
SAMPLE = 1000


class OddCells(NamedTuple):
    """Cells that do not fit the column: their number, and the first one."""

    n_cells: int
    row: int
    text: str

    def __str__(self) -> str:
        """Return the first cell, its row, and the number of other cells."""
        more = f" and {self.n_cells - 1} more" if self.n_cells > 1 else ""
        return f"{short(self.text)} in row {self.row + 1}{more}"


class Reading(NamedTuple):
    """The values of a column, [rows, values], and the cells that do not fit; None if all do."""

    values: NDArray[np.float64]
    odd: OddCells | None


def odd_cells(series: Any, failed: Any) -> OddCells | None:
    """Return the cells of a column marked by `failed`."""
    if not failed.any():
        return None
    row = failed.arg_max()
    return OddCells(int(failed.sum()), row, str(series[row]))


class Cells:
    """The cells of a column, with cached conversions.

    Args:
        series: a polars series.
    """

    def __init__(self, series: Any) -> None:
        self.series = series
        self.name = str(series.name)
        self.is_text = series.dtype == pl.String
        self._form: NumberForm | None = None
        self._numbers: tuple[NumberForm, tuple[Any, Any]] | None = None
        self._dates: tuple[str, tuple[Any, Any]] | None = None

    @cached_property
    def texts(self) -> Any:
        """The cells as text, null for missing ones."""
        return texts_of(self.series)

    @cached_property
    def n_given(self) -> int:
        """The number of cells that are not missing."""
        return len(self.texts) - int(self.texts.null_count())

    @cached_property
    def counts(self) -> Any:
        """The distinct cells and their frequencies, in a frame of `text` and `n`."""
        return self.texts.drop_nulls().alias("text").value_counts(name="n")

    @property
    def n_texts(self) -> int:
        """The number of distinct cells."""
        return int(self.counts.height)

    @cached_property
    def sample(self) -> Any:
        """A sample of texts from the whole column; the first ones if there are few."""
        spaced = texts_of(self.series.gather_every(max(1, len(self.series) // SAMPLE))).drop_nulls()
        return spaced if len(spaced) else self.texts.drop_nulls().head(SAMPLE)

    def form(self, commas: bool) -> NumberForm:
        """Return the number format of the sample; if ambiguous, with decimal commas if `commas`, else with points."""
        if self._form is None:
            self._form = find_form(self.sample, commas=commas)
        return self._form

    def numbers(self, form: NumberForm) -> tuple[Any, Any]:
        """Return the cells as numbers, and a mask of other cells; cached for the last format."""
        if self._numbers is None or self._numbers[0] != form:
            self._numbers = form, read_numbers(self.series, form)
        return self._numbers[1]

    def dates(self, form: str) -> tuple[Any, Any]:
        """Return the cells as dates, and a mask of other cells; cached for the last format."""
        if self._dates is None or self._dates[0] != form:
            self._dates = form, read_dates(self.series, form)
        return self._dates[1]

    @property
    def unusable(self) -> str:
        """The reason why the cells are unreadable, empty if they are readable."""
        dtype = self.series.dtype
        known = dtype.is_numeric() or dtype.is_temporal()
        if not (known or dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)):
            return f"its cells are of type {dtype}"
        if dtype.is_float():
            empty = bool((self.series.is_null() | self.series.is_nan().fill_null(True)).all())
        elif self.is_text:
            empty = not len(self.sample)
        else:
            empty = self.series.null_count() == len(self.series)
        return "all of its cells are missing" if empty else ""


# Categories that a message lists.
_N_LISTED = 8
# Different programs write booleans differently.
BOOLEANS = {"true": ("True", "TRUE"), "false": ("False", "FALSE")}


class Column(ABC):
    """A column that a model reads.

    Attributes:
        name: of the column.
        missing: whether values were missing in the training table.
        kind: the kind of column, in one word.
        is_plain: whether its handling needs no explanation.
    """

    name: str
    missing: bool
    kind: ClassVar[str]

    @property
    def value_names(self) -> tuple[str, ...]:
        """The meaning of each value."""
        return (self.name,)

    @property
    def input_names(self) -> list[str]:
        """The meaning of each input of the model."""
        return list(self.value_names)

    @property
    def is_plain(self) -> bool:
        """Whether no note about the column is needed."""
        return False

    @property
    @abstractmethod
    def rule(self) -> str:
        """The requirement on its cells."""

    @abstractmethod
    def read(self, cells: Cells) -> Reading:
        """Return the values of a column of any table."""

    @abstractmethod
    def describe(self) -> str:
        """Return a description of how the column is read."""

    @abstractmethod
    def odd_words(self, *, strict: bool) -> str | None:
        """Return the treatment of cells that do not fit; None if they are an error."""

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float64]) -> None:
        """Write the values [rows, values] of the column to inputs of zeros, [rows, inputs]."""
        inputs[:] = values


@dataclass(frozen=True)
class NumberColumn(Column):
    """A column of numbers.

    Attributes:
        name: of the column.
        missing: whether values were missing in the training table.
        form: the number format, if the cells are text.
        not_numbers: cells of the training table that hold something else and count as missing; where there were none,
            such a cell is an error in other tables.
        codes: numbers that stand for a missing value, such as -9999.
    """

    name: str
    missing: bool
    form: NumberForm = PLAIN
    not_numbers: int = 0
    codes: tuple[float, ...] = ()

    kind = "number"

    @property
    def rule(self) -> str:
        """The requirement on its cells."""
        return f"hold finite {self._words()}"

    def _words(self) -> str:
        return f"numbers {self.form}" if str(self.form) else "numbers"

    def read(self, cells: Cells) -> Reading:
        """Return the numbers of a column of any table."""
        values, failed = cells.numbers(self.form)
        if self.codes:
            values = values.set(values.is_in(list(self.codes)).fill_null(False), None)
        return Reading(values.to_numpy()[:, None], odd_cells(cells.series, failed))

    def odd_words(self, *, strict: bool) -> str | None:
        """Return the treatment of cells that are not numbers; None if they are an error."""
        return "treated as missing" if self.not_numbers else None

    @property
    def is_plain(self) -> bool:
        """Whether no note about the column is needed."""
        return self.form == PLAIN and not self.not_numbers and not self.codes

    def describe(self) -> str:
        """Return a description of how the column is read."""
        words = self._words()
        if self.not_numbers:
            words += f"; {self.not_numbers:,} cells that are not numbers (up to 1e100) count as missing"
        if self.codes:
            codes = " and ".join(f"{code:g}" for code in self.codes)
            words += f"; {codes} counts as missing (as a number: {option_text('--numeric', self.name)})"
        return words


@dataclass(frozen=True)
class DateColumn(Column):
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

    kind = "date"

    @property
    def value_names(self) -> tuple[str, ...]:
        """The meaning of each value."""
        return tuple(f"{self.name}: {part}" for part in self.parts)

    @property
    def rule(self) -> str:
        """The requirement on its cells."""
        return f"hold dates in the format {self.form}"

    def read(self, cells: Cells) -> Reading:
        """Return the parts of the dates of a column of any table."""
        dates, failed = cells.dates(self.form)
        return Reading(date_parts(dates, self.parts), odd_cells(cells.series, failed))

    def odd_words(self, *, strict: bool) -> str | None:
        """Return the treatment of cells that are not dates; None if they are an error."""
        return "treated as missing" if self.not_dates else None

    def describe(self) -> str:
        """Return a description of how the column is read."""
        odd = f"; {self.not_dates:,} cells that are not dates count as missing" if self.not_dates else ""
        return f"dates in the format {self.form}, read as {', '.join(self.parts)}{odd}"


@dataclass(frozen=True)
class CategoryColumn(Column):
    """A column of categories.

    Attributes:
        name: of the column.
        categories: with their own input, the most common first.
        missing: whether values were missing in the training table.
        is_open: whether there were more categories; they share one input with those never seen in training.
        numeric: whether all categories are numbers, which are then normalized: 3 for 3.0.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool
    is_open: bool = False
    numeric: bool = False

    kind = "category"

    @property
    def other_code(self) -> int:
        """The code of a category without its own input; -1 if there is no shared input."""
        return len(self.categories) if self.is_open else -1

    @property
    def code_of_text(self) -> dict[str, int]:
        """The code of each category, and of other spellings of booleans."""
        codes = {category: code for code, category in enumerate(self.categories)}
        spellings = {other: codes[text] for text, others in BOOLEANS.items() if text in codes for other in others}
        return spellings | codes

    @property
    def missing_code(self) -> int:
        """The code of a missing value."""
        return len(self.categories) + self.is_open

    @property
    def input_names(self) -> list[str]:
        """The meaning of each input of the model."""
        names = [f"{self.name} = {category}" for category in self.categories]
        return names + [f"{self.name} is another"] * self.is_open + [f"{self.name} is missing"] * self.missing

    @property
    def rule(self) -> str:
        """The requirement on its cells."""
        listed = ", ".join(map(short, self.categories[:_N_LISTED]))
        return f"hold categories of the training table ({listed}{' ...' if len(self.categories) > _N_LISTED else ''})"

    def read(self, cells: Cells) -> Reading:
        """Return the codes of a column of any table."""
        texts = with_plain_numbers(cells.texts) if self.numeric else cells.texts
        codes = texts.replace_strict(self.code_of_text, default=self.other_code, return_dtype=pl.Int32)
        codes = codes.set(texts.is_null(), self.missing_code)
        return Reading(codes.cast(pl.Float64).to_numpy()[:, None], odd_cells(texts, codes == -1))

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float64]) -> None:
        """Set the input of each code to 1."""
        codes = values[:, 0].astype(np.int64)
        known = np.flatnonzero((codes >= 0) & (codes < inputs.shape[1]))
        inputs[known, codes[known]] = 1.0

    def odd_words(self, *, strict: bool) -> str | None:
        """Return the treatment of unknown categories; None if they are an error."""
        return None if strict else "encoded as none of the known categories"

    @property
    def is_plain(self) -> bool:
        """Whether no note about the column is needed."""
        return not self.is_open

    def describe(self) -> str:
        """Return a description of how the column is read."""
        n_known = len(self.categories)
        return f"the {n_known} most common categories, the others share an input" if self.is_open else "categories"


@dataclass(frozen=True)
class DroppedColumn:
    """A column that the model does not read.

    Attributes:
        name: of the column.
        reason: why it is not read.
        option: the option that makes the model read it; empty if none does.
        dates: the date column used to order the rows; None if it contains no dates.
    """

    name: str
    reason: str
    option: str = ""
    dates: DateColumn | None = None


def width(columns: Sequence[Column]) -> int:
    """Return the total number of values of the columns."""
    return sum(len(column.value_names) for column in columns)
