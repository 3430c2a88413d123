"""Tables in memory with cached values of the columns, and errors that list all problems of a table."""

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from torchmcl.errors import bad_value
from torchmcl_tables.data.columns import Cells, Column, Reading

# Function or class at the beginning of an error message.
_OWNER = re.compile(r"\w+: (?=`|.+ has \d+ problems:)")


@dataclass(frozen=True)
class Problem:
    """Problem that makes a table unusable.

    Attributes:
        subject: Column or option with the problem.
        rule: Violated requirement.
        got: Actual value.
        advice: Suggested remedy.
    """

    subject: str
    rule: str
    got: str
    advice: str = ""


class TableError(ValueError):
    """Raised if a table, or the options for its columns, cannot be used.

    Attributes:
        problems: All problems of the table.
    """

    def __init__(self, message: str, problems: Sequence[Problem]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def raise_problems(owner: str, name: str, problems: Sequence[Problem]) -> None:
    """Raise one error that lists all problems, if there are any.

    Raises:
        TableError: If there are problems; several problems are listed one per line.
    """
    lines = [bad_value(owner, p.subject, p.rule, p.got, p.advice) for p in problems]
    if len(lines) == 1:
        raise TableError(lines[0], problems)
    if lines:
        listed = "\n".join(f"- {line.removeprefix(f'{owner}: ')}" for line in lines)
        raise TableError(f"{owner}: {name} has {len(lines)} problems:\n{listed}", problems)


@contextmanager
def speaking_for(owner: str) -> Iterator[None]:
    """Replace the name at the beginning of errors raised inside a `with` block by the name of a command or estimator.

    Example:
        >>> with speaking_for("torchmcl fit"):
        ...     raise ValueError("read_table: `file` must exist, got 'a.csv'.")
        Traceback (most recent call last):
        ValueError: torchmcl fit: `file` must exist, got 'a.csv'.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str) and (match := _OWNER.match(error.args[0])):
            error.args = (f"{owner}: {error.args[0][match.end() :]}",)
        raise


@dataclass(frozen=True)
class Table:
    """Table with the name of its file.

    Attributes:
        name: Name of the file, for messages.
        frame: Polars data frame. All columns of CSV files are text; columns of lists and structures in Parquet files
            contain nulls.
        notes: Decisions made while reading the file.
        has_semicolons: Whether fields are separated by semicolons, which suggests decimal commas.
    """

    name: str
    frame: Any
    notes: tuple[str, ...] = ()
    has_semicolons: bool = False
    # Cache of parsed columns.
    _readings: dict[Column, Reading] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.frame.height)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.frame.columns)

    def cells(self, name: str) -> Cells:
        """Return the cells of a column."""
        return Cells(self.frame.get_column(name))

    def reading(self, column: Column, cells: Cells | None = None) -> Reading:
        """Return the values of a column, which are parsed on the first call.

        Args:
            column: Kind and name of the column.
            cells: Cells of the column, if they exist already.
        """
        if column not in self._readings:
            self._readings[column] = column.read(self.cells(column.name) if cells is None else cells)
        return self._readings[column]

    def series(self, name: str, option: str) -> Any:
        """Return a column that is named by a command option, as a polars series.

        Raises:
            ValueError: If there is no such column; the message suggests the most similar name.
        """
        if name not in self.frame.columns:
            raise ValueError(bad_value("Table", option, f"name a column of {self.name}", repr(name), self.hint(name)))
        return self.frame.get_column(name)

    def listed(self) -> str:
        """List the names of the first columns, for messages."""
        known = self.columns
        return ", ".join(map(repr, known[:8])) + (" ..." if len(known) > 8 else "")

    def hint(self, name: str) -> str:
        """Suggest the column with the most similar name; empty if there is none."""
        near = difflib.get_close_matches(name, self.columns, n=1, cutoff=0.4)
        return f"Did you mean {near[0]!r}?" if near else ""

    def take(self, rows: Any) -> "Table":
        """Return the table with the rows at the given indices."""
        taken = replace(self, frame=self.frame[rows])
        readings = self._readings.items()
        taken._readings.update({column: Reading(values[rows], None) for column, (values, odd) in readings if not odd})
        return taken


def unique_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return unique column names, and notes on the columns that were renamed because names were empty or repeated.

    Example:
        >>> unique_names(["a", "", "a"])
        (['a', 'column_2', 'a_2'], ["column 2 has no name: 'column_2'", "column 3 is another 'a': 'a_2'"])
    """
    original, notes = set(names), []
    unique: dict[str, int] = {}
    counts: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        new = name or f"column_{place}"
        while new in unique or (new != name and new in original):
            counts[name] = counts.get(name, 1) + 1
            new = f"{name or f'column_{place}'}_{counts[name]}"
        if new != name:
            notes.append(f"column {place} {f'is another {name!r}' if name else 'has no name'}: {new!r}")
        unique[new] = place
    return list(unique), notes


_KINDS = {("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch")}


def _package(frame: Any) -> str:
    return type(frame).__module__.partition(".")[0]


def is_data_frame(value: Any) -> bool:
    """Return whether a value is a pandas, polars or Arrow data frame."""
    return any((kind.__module__.partition(".")[0], kind.__name__) in _KINDS for kind in type(value).__mro__)


def is_number(dtype: Any) -> bool:
    """Return whether a pandas or polars type is numeric or boolean."""
    if isinstance(dtype, pl.DataType):
        return dtype.is_numeric() or dtype == pl.Boolean
    return getattr(dtype, "kind", "O") in "biuf" and str(dtype) != "category"


def as_polars(frame: Any) -> Any:
    """Convert a pandas, polars or Arrow data frame to a polars data frame.

    Example:
        >>> import pandas
        >>> as_polars(pandas.DataFrame({"a": [1.0, None], "b": ["x", None]})).rows()
        [(1.0, 'x'), (None, None)]
    """
    if _package(frame) in ("polars", "pyarrow"):
        return pl.DataFrame(frame)
    names, _ = unique_names([str(name) for name in frame.columns])
    columns = [_series(name, frame.iloc[:, place]) for place, name in enumerate(names)]
    return pl.DataFrame([column.alias(name) for name, column in zip(names, columns, strict=True)])


def _series(name: str, column: Any) -> Any:
    """Convert a pandas column to a polars series; anything except numbers and dates becomes text."""
    kind = getattr(column.dtype, "kind", "O")
    if str(column.dtype) == "category":  # a categorical type is deliberate, even for numbers
        cells = [None if missing else str(cell) for cell, missing in zip(column, column.isna(), strict=True)]
        return pl.Series(name, cells, dtype=pl.Categorical)
    if kind in "biuf":
        plain = column.to_numpy() if isinstance(column.dtype, np.dtype) else column.to_numpy(float, na_value=np.nan)
        return pl.Series(name, plain, nan_to_null=plain.dtype.kind == "f")
    if kind in "Mm":
        if getattr(column.dtype, "tz", None) is not None:
            column = column.dt.tz_convert("UTC").dt.tz_localize(None)
        return pl.Series(name, column.to_numpy().astype(f"{kind}8[us]"))
    cells = [None if missing else str(cell) for cell, missing in zip(column, column.isna(), strict=True)]
    return pl.Series(name, cells, dtype=pl.String)
