"""A table in memory, and the values of its columns."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchmcl._messages import bad_value
from torchmcl_tables.data.cells import Cells, Reading
from torchmcl_tables.data.columns import Column

__all__ = ["Table", "unique_names"]


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
    # Columns are parsed once, however many steps ask for their values.
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
        """Return the first names of the columns, for messages."""
        known = self.columns
        return ", ".join(map(repr, known[:8])) + (" ..." if len(known) > 8 else "")

    def nearest(self, name: str) -> str:
        """Return the column with the most similar name, empty if there is none."""
        return next(iter(difflib.get_close_matches(name, self.columns, n=1, cutoff=0.4)), "")

    def hint(self, name: str) -> str:
        """Return a hint about the column with the most similar name, empty if there is none."""
        near = self.nearest(name)
        return f"Did you mean {near!r}?" if near else ""

    def take(self, rows: Any) -> "Table":
        """Return the table of some rows, given by their indices."""
        taken = replace(self, frame=self.frame[rows])
        readings = self._readings.items()
        taken._readings.update({column: Reading(values[rows], None) for column, (values, odd) in readings if not odd})
        return taken


def unique_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return unique column names, and the renamed ones: empty and repeated names.

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
