"""Kinds of columns: decisions about the columns of the training table, which are stored with the model.

A kind parses the cells of any table in the same way (as numbers, with NaN for missing values, or as category codes),
encodes them as network inputs, and describes the decision as text. Cells that do not fit are counted; whether they are
an error is part of the decision.
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
    date_parts,
    find_unit,
    find_zone,
    read_dates,
    read_numbers,
    short,
    texts_of,
    with_plain_numbers,
)

#: Number of cells from which the format of a column is detected.
SAMPLE = 1000


class OddCells(NamedTuple):
    """Cells that do not fit the column: their number, and the row and text of the first one."""

    n_cells: int
    row: int
    text: str

    def __str__(self) -> str:
        """Return the first cell, its row, and the number of other cells."""
        more = f" and {self.n_cells - 1} more" if self.n_cells > 1 else ""
        return f"{short(self.text)} in row {self.row + 1}{more}"


class Reading(NamedTuple):
    """Values of a column, [rows, values], and the cells that do not fit; None if all cells fit."""

    values: NDArray[np.float64]
    odd: OddCells | None


def odd_cells(series: Any, failed: Any) -> OddCells | None:
    """Summarize the cells marked by the mask `failed`; None if there are none."""
    if not failed.any():
        return None
    row = failed.arg_max()
    return OddCells(int(failed.sum()), row, str(series[row]))


class Cells:
    """Cells of a column, with cached conversions.

    Args:
        series: Polars series of the cells.
        decimal: Decimal separator of texts.
    """

    def __init__(self, series: Any, decimal: str = ".") -> None:
        self.series, self.decimal = series, decimal
        self.name = str(series.name)
        self.is_text = series.dtype == pl.String
        self._numbers: tuple[str, tuple[Any, Any]] | None = None
        self._dates: tuple[tuple[str, str], tuple[Any, Any]] | None = None

    @cached_property
    def texts(self) -> Any:
        """Cells as text; null for missing cells."""
        return texts_of(self.series)

    @cached_property
    def n_present(self) -> int:
        """Number of cells that are not missing."""
        return len(self.texts) - int(self.texts.null_count())

    @cached_property
    def counts(self) -> Any:
        """Distinct cells and their counts, as a data frame with the columns `text` and `n`."""
        return self.texts.drop_nulls().alias("text").value_counts(name="n")

    @property
    def n_texts(self) -> int:
        """Number of distinct cells."""
        return int(self.counts.height)

    @cached_property
    def sample(self) -> Any:
        """Evenly spaced sample of the texts; if it contains none, the first texts of the column."""
        spaced = texts_of(self.series.gather_every(max(1, len(self.series) // SAMPLE))).drop_nulls()
        return spaced if len(spaced) else self.texts.drop_nulls().head(SAMPLE)

    @cached_property
    def unit(self) -> str:
        """Unit of the numbers in the sample; empty if there is none."""
        return find_unit(self.sample) if self.is_text else ""

    def numbers(self, unit: str) -> tuple[Any, Any]:
        """Return the cells as numbers, and a mask of the cells that are not numbers; cached for the last unit."""
        if self._numbers is None or self._numbers[0] != unit:
            self._numbers = unit, read_numbers(self.series, unit, self.decimal)
        return self._numbers[1]

    @cached_property
    def zone(self) -> str:
        """Time zone of dates; empty if there is none."""
        return find_zone(self.series)

    def dates(self, form: str, zone: str) -> tuple[Any, Any]:
        """Return the cells as dates, and a mask of the cells that are not dates; cached for the last format."""
        if self._dates is None or self._dates[0] != (form, zone):
            self._dates = (form, zone), read_dates(self.series, form, zone)
        return self._dates[1]

    @property
    def unusable(self) -> str:
        """Reason why the cells cannot be used; empty if they can."""
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


# Number of categories listed in a message.
_N_LISTED = 8
# Spellings of booleans in different programs.
BOOLEANS = {"true": ("True", "TRUE"), "false": ("False", "FALSE")}


class Column(ABC):
    """A column that a model reads.

    Attributes:
        name: Name of the column.
        missing: Whether values were missing in the training table.
        kind: Name of the kind.
        is_plain: Whether the handling of the column needs no explanation.
    """

    name: str
    missing: bool
    kind: ClassVar[str]

    @property
    def value_names(self) -> tuple[str, ...]:
        """Description of each value."""
        return (self.name,)

    @property
    def input_names(self) -> list[str]:
        """Description of each input of the model."""
        return list(self.value_names)

    @property
    def is_plain(self) -> bool:
        """Whether the handling of the column needs no explanation."""
        return False

    @property
    @abstractmethod
    def rule(self) -> str:
        """Requirement on the cells, as part of an error message."""

    @abstractmethod
    def read(self, cells: Cells) -> Reading:
        """Parse the cells of this column in any table."""

    @abstractmethod
    def describe(self) -> str:
        """Describe how the column is read."""

    @abstractmethod
    def odd_words(self, *, strict: bool) -> str | None:
        """Describe the treatment of cells that do not fit; None if they are an error."""

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float64]) -> None:
        """Write the values of the column, [rows, values], to zero-initialized inputs, [rows, inputs]."""
        inputs[:] = values


@dataclass(frozen=True)
class NumberColumn(Column):
    """Column of numbers.

    Attributes:
        name: Name of the column.
        missing: Whether values were missing in the training table.
        unit: Text before or after the digits: a currency, "%" or a unit of measurement.
        not_numbers: Number of cells of the training table that are not numbers and count as missing; if it is 0, such a
            cell is an error in other tables.
        codes: Numbers that represent a missing value, such as -9999.
    """

    name: str
    missing: bool
    unit: str = ""
    not_numbers: int = 0
    codes: tuple[float, ...] = ()

    kind = "number"

    @property
    def rule(self) -> str:
        """Requirement on the cells, as part of an error message."""
        return f"hold finite {self._words()}"

    def _words(self) -> str:
        return f"numbers in {self.unit}" if self.unit else "numbers"

    def read(self, cells: Cells) -> Reading:
        """Parse the numbers of this column in any table."""
        values, failed = cells.numbers(self.unit)
        if self.codes:
            values = values.set(values.is_in(list(self.codes)).fill_null(False), None)
        return Reading(values.to_numpy()[:, None], odd_cells(cells.series, failed))

    def odd_words(self, *, strict: bool) -> str | None:
        """Describe the treatment of cells that are not numbers; None if they are an error."""
        return "treated as missing" if self.not_numbers else None

    @property
    def is_plain(self) -> bool:
        """Whether the handling of the column needs no explanation."""
        return not (self.unit or self.not_numbers or self.codes)

    def describe(self) -> str:
        """Describe how the column is read."""
        words = self._words()
        if self.not_numbers:
            words += f"; {self.not_numbers:,} cells that are not numbers (up to 1e100) count as missing"
        if self.codes:
            codes = " and ".join(f"{code:g}" for code in self.codes)
            words += f"; {codes} counts as missing (as a number: {option_text('--numeric', self.name)})"
        return words


@dataclass(frozen=True)
class DateColumn(Column):
    """Column of dates or times, read as several numbers.

    Attributes:
        name: Name of the column.
        missing: Whether values were missing in the training table.
        parts: Parts of the date that vary in the training table, a subset of `values.PARTS`.
        form: Format of the day in `strptime` notation, if the cells are text.
        not_dates: Number of cells of the training table that are not dates and count as missing; if it is 0, such a
            cell is an error in other tables.
        zone: Time zone of the parts, or most common offset from UTC; empty if the dates have none.
    """

    name: str
    missing: bool
    parts: tuple[str, ...] = PARTS
    form: str = ISO
    not_dates: int = 0
    zone: str = ""

    kind = "date"

    @property
    def value_names(self) -> tuple[str, ...]:
        """Description of each value."""
        return tuple(f"{self.name}: {part}" for part in self.parts)

    @property
    def rule(self) -> str:
        """Requirement on the cells, as part of an error message."""
        return f"hold {self._words()} {'and' if self.zone else 'without'} a time zone"

    def _words(self) -> str:
        return f"dates in the format {self.form}"

    def read(self, cells: Cells) -> Reading:
        """Parse the parts of the dates of this column in any table."""
        dates, failed = cells.dates(self.form, self.zone)
        return Reading(date_parts(dates, self.parts), odd_cells(cells.series, failed))

    def odd_words(self, *, strict: bool) -> str | None:
        """Describe the treatment of cells that are not dates; None if they are an error."""
        return "treated as missing" if self.not_dates else None

    def describe(self) -> str:
        """Describe how the column is read."""
        odd = f"; {self.not_dates:,} cells that are not dates count as missing" if self.not_dates else ""
        zone = f" in the time zone {self.zone}" * bool(self.zone)
        return f"{self._words()}{zone}, read as {', '.join(self.parts)}{odd}"


@dataclass(frozen=True)
class CategoryColumn(Column):
    """Column of categories.

    Attributes:
        name: Name of the column.
        categories: Categories with a separate input, the most common first.
        missing: Whether values were missing in the training table.
        is_open: Whether there were more categories; they share one input with categories not seen in training.
        numeric: Whether all categories are numbers, which are then normalized: 3 for 3.0.
        not_numbers: Number of cells that are not numbers, if most of the others are; 0 in a column of text.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool
    is_open: bool = False
    numeric: bool = False
    not_numbers: int = 0

    kind = "category"

    @property
    def other_code(self) -> int:
        """Code of a category without a separate input; -1 if there is no shared input."""
        return len(self.categories) if self.is_open else -1

    @property
    def code_of_text(self) -> dict[str, int]:
        """Code of each category, including other spellings of booleans."""
        codes = {category: code for code, category in enumerate(self.categories)}
        spellings = {other: codes[text] for text, others in BOOLEANS.items() if text in codes for other in others}
        return spellings | codes

    @property
    def missing_code(self) -> int:
        """Code of a missing value."""
        return len(self.categories) + self.is_open

    @property
    def input_names(self) -> list[str]:
        """Description of each input of the model."""
        names = [f"{self.name} = {category}" for category in self.categories]
        return names + [f"{self.name} is another"] * self.is_open + [f"{self.name} is missing"] * self.missing

    @property
    def rule(self) -> str:
        """Requirement on the cells, as part of an error message."""
        listed = ", ".join(map(short, self.categories[:_N_LISTED]))
        return f"hold categories of the training table ({listed}{' ...' if len(self.categories) > _N_LISTED else ''})"

    def read(self, cells: Cells) -> Reading:
        """Parse the category codes of this column in any table."""
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
        """Describe the treatment of unknown categories; None if they are an error."""
        return None if strict else "encoded as none of the known categories"

    @property
    def is_plain(self) -> bool:
        """Whether the handling of the column needs no explanation."""
        return not (self.is_open or self.not_numbers)

    def describe(self) -> str:
        """Describe how the column is read."""
        n_known = len(self.categories)
        words = f"the {n_known} most common categories, the others share an input" if self.is_open else "categories"
        if self.not_numbers:
            option = option_text("--numeric", self.name)
            words += f", because {self.not_numbers:,} cells are not numbers (as numbers: {option})"
        return words


@dataclass(frozen=True)
class DroppedColumn:
    """Column that the model does not read.

    Attributes:
        name: Name of the column.
        reason: Reason why the column was dropped.
        option: Command option that keeps the column; empty if there is none.
        dates: Column of dates by which the rows can be ordered; None if the column contains no dates.
    """

    name: str
    reason: str
    option: str = ""
    dates: DateColumn | None = None


def width(columns: Sequence[Column]) -> int:
    """Return the total number of values of the columns."""
    return sum(len(column.value_names) for column in columns)
