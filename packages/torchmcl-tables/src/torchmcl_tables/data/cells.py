"""The cells of a column, and the results of reading them."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl_tables.data.dates import read_dates
from torchmcl_tables.data.numbers import NumberForm, find_form, read_numbers
from torchmcl_tables.data.texts import short, texts_of

__all__ = ["SAMPLE", "Cells", "OddCells", "Reading", "odd_cells"]

#: Forms are found with this many cells, and used on all of them.
SAMPLE = 1000


class OddCells(NamedTuple):
    """Cells that do not fit the column: their number, and the first one."""

    n_cells: int
    row: int
    text: str

    def __str__(self) -> str:
        """Return their location."""
        more = f" and {self.n_cells - 1} more" if self.n_cells > 1 else ""
        return f"{short(self.text)} in row {self.row + 1}{more}"


class Reading(NamedTuple):
    """The cells of a column: [rows, values], and those that do not fit; None if all do."""

    values: NDArray[np.float64]
    odd: OddCells | None


def odd_cells(series: Any, failed: Any) -> OddCells | None:
    """Return the cells of a column marked by `failed`."""
    if not failed.any():
        return None
    row = failed.arg_max()
    return OddCells(int(failed.sum()), row, str(series[row]))


class Cells:
    """The cells of a column, each form of them computed once.

    Args:
        series: of polars.
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
        """Return the number format of the sample, by default with decimal commas if `commas`."""
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

    def first(self) -> str:
        """Return the first cell that is not null, for messages."""
        return repr(str(self.series.drop_nulls()[0])[:40])
