"""Columns that are read as numbers: numbers and dates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl._messages import option_text
from torchmcl_tables.data.dates import ISO, PARTS, date_parts, read_dates
from torchmcl_tables.data.numbers import PLAIN, NumberForm, read_numbers
from torchmcl_tables.data.readings import Reading, odd_cells

__all__ = ["DateColumn", "NumberColumn"]


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
        codes: numbers that stand for a missing value, as -9999.
    """

    name: str
    missing: bool
    form: NumberForm = PLAIN
    not_numbers: int = 0
    codes: tuple[float, ...] = ()

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
        if self.codes:
            values = values.set(values.is_in(list(self.codes)).fill_null(False), None)
        return Reading(values.to_numpy()[:, None], odd_cells(series, failed))

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill the inputs from standardised numbers."""
        _encode_numbers(values, inputs, self.missing)

    def odd_words(self, *, strict: bool) -> str | None:
        """Return what happens to cells that are not numbers; None if they are an error."""
        return "count as missing" if self.not_numbers else None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell about it."""
        return self.form == PLAIN and not self.not_numbers and not self.codes

    def describe(self) -> str:
        """Return in words how the column is read."""
        odd = (
            f"; {self.not_numbers:,} cells that are not numbers (up to 1e100) count as missing"
            if self.not_numbers
            else ""
        )
        codes = " and ".join(f"{code:g}" for code in self.codes)
        coded = f"; {codes} counts as missing (as a number: {option_text('--numeric', self.name)})" if codes else ""
        return f"numbers{f' {self.form}' if str(self.form) else ''}{odd}{coded}"


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
        return Reading(date_parts(dates, self.parts), odd_cells(series, failed))

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
