"""A table in memory, the parsed values of its columns, and one error message for all of its problems."""

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

# The function or class in front of a message.
_OWNER = re.compile(r"\w+: (?=`|.+ has \d+ problems:)")


@dataclass(frozen=True)
class Problem:
    """One problem that makes a table unusable.

    Attributes:
        subject: the column or the option.
        rule: the violated requirement.
        got: the actual value.
        advice: how to fix it.
    """

    subject: str
    rule: str
    got: str
    advice: str = ""


class TableError(ValueError):
    """Raised if a table, or the options for its columns, cannot be used.

    Attributes:
        problems: all that were found.
    """

    def __init__(self, message: str, problems: Sequence[Problem]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def raise_problems(owner: str, name: str, problems: Sequence[Problem]) -> None:
    """Raise one error about all problems, if there are any.

    Raises:
        TableError: in the usual format for one problem, with one line per problem for several.
    """
    lines = [bad_value(owner, p.subject, p.rule, p.got, p.advice) for p in problems]
    if len(lines) == 1:
        raise TableError(lines[0], problems)
    if lines:
        listed = "\n".join(f"- {line.removeprefix(f'{owner}: ')}" for line in lines)
        raise TableError(f"{owner}: {name} has {len(lines)} problems:\n{listed}", problems)


@contextmanager
def speaking_for(owner: str) -> Iterator[None]:
    """Make errors raised inside a `with` block name the caller: a command or an estimator.

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


@dataclass(frozen=True)
class Table:
    """A table and its origin.

    Attributes:
        name: the file, for messages.
        frame: a polars data frame; all columns of CSV files are text, and those of lists and structures in Parquet
            files hold nulls.
        notes: decisions made while reading.
        has_semicolons: whether its fields are separated by semicolons, as where numbers have decimal commas.
    """

    name: str
    frame: Any
    notes: tuple[str, ...] = ()
    has_semicolons: bool = False
    # Columns are parsed once, however many steps use their values.
    _readings: dict[Column, Reading] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.frame.height)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame.columns)

    def cells(self, name: str) -> Cells:
        """Return the cells of a column."""
        return Cells(self.frame.get_column(name))

    def reading(self, column: Column, cells: Cells | None = None) -> Reading:
        """Return the values of a column, which are parsed on the first call.

        Args:
            column: of this name in the table.
            cells: of the column, with cached results.
        """
        if column not in self._readings:
            self._readings[column] = column.read(self.cells(column.name) if cells is None else cells)
        return self._readings[column]

    def series(self, name: str, option: str) -> Any:
        """Return a column named by an option, as a polars series.

        Raises:
            ValueError: if there is no such column; the nearest name is suggested.
        """
        if name not in self.frame.columns:
            raise ValueError(bad_value("Table", option, f"name a column of {self.name}", repr(name), self.hint(name)))
        return self.frame.get_column(name)

    def listed(self) -> str:
        """Return the names of the first few columns, for messages."""
        known = self.columns
        return ", ".join(map(repr, known[:8])) + (" ..." if len(known) > 8 else "")

    def hint(self, name: str) -> str:
        """Return a hint about the column with the most similar name, empty if there is none."""
        near = difflib.get_close_matches(name, self.columns, n=1, cutoff=0.4)
        return f"Did you mean {near[0]!r}?" if near else ""

    def take(self, rows: Any) -> "Table":
        """Return the table with the rows at the given indices."""
        taken = replace(self, frame=self.frame[rows])
        readings = self._readings.items()
        taken._readings.update({column: Reading(values[rows], None) for column, (values, odd) in readings if not odd})
        return taken


def unique_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return unique column names, and those that were renamed because they were empty or repeated.

    Example:
        >>> unique_names(["a", "", "a"])
        (['a', 'column_2', 'a_2'], ["column 2 has no name: 'column_2'", "column 3 is another 'a': 'a_2'"])
    """
    given, notes = set(names), []
    unique: dict[str, int] = {}
    counts: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        new = name or f"column_{place}"
        while new in unique or (new != name and new in given):
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
    """Return whether a pandas or polars type is one of numbers or booleans."""
    if isinstance(dtype, pl.DataType):
        return dtype.is_numeric() or dtype == pl.Boolean
    return getattr(dtype, "kind", "O") in "biuf" and str(dtype) != "category"


def as_polars(frame: Any) -> Any:
    """Return a pandas, polars or Arrow data frame as a polars data frame.

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
    """Return a pandas column as a polars series; anything except numbers and dates becomes text."""
    kind = getattr(column.dtype, "kind", "O")
    if str(column.dtype) == "category":  # including numbers: a categorical type is deliberate
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
