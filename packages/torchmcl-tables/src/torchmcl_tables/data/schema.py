"""Schema of a table: all decisions about its columns, which apply to the training table and to later tables."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl.errors import option_text
from torchmcl_tables.data.columns import CategoryColumn, Column, DateColumn, DroppedColumn, NumberColumn, width
from torchmcl_tables.data.table import Problem, Table, raise_problems
from torchmcl_tables.data.values import TIME_OF_DAY, NumberForm


@dataclass(frozen=True)
class Suspicion:
    """Column that may be unsuitable for training.

    Attributes:
        name: Name of the column.
        reason: Reason for the suspicion.
    """

    name: str
    reason: str


@dataclass
class Unfit:
    """Counts of the accepted cells that do not fit the schema, accumulated over blocks of a table.

    Attributes:
        counts: Number of cells by column name and treatment.
        first: First such cell of each column.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def notices(self) -> list[str]:
        """Return a notice for each column with such cells."""
        return [
            f"{name}: {count:,} cell{'s' * (count > 1)} ({self.first[name]}) {words}"
            for (name, words), count in self.counts.items()
        ]


@dataclass(frozen=True)
class TableSchema:
    """Input and target columns of a model.

    Attributes:
        columns: Columns that the model reads, in the order of the training table.
        target_columns: Columns that the model predicts.
        dropped: Columns that the model does not read, with reasons.
        suspicious: Columns that the model reads but that may be unsuitable for training.
        notes: Decisions made while reading the file.
    """

    columns: tuple[Column, ...]
    target_columns: tuple[NumberColumn | CategoryColumn, ...]
    dropped: tuple[DroppedColumn, ...] = ()
    suspicious: tuple[Suspicion, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that the model reads."""
        return tuple(column.name for column in self.columns)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the columns that the model predicts."""
        return tuple(column.name for column in self.target_columns)

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the target, the most common first; empty for numeric targets."""
        column = self.target_columns[0] if self.target_columns else None
        return column.categories if isinstance(column, CategoryColumn) else ()

    @property
    def numbers(self) -> tuple[NumberColumn, ...]:
        """Numeric columns that the model reads."""
        return tuple(column for column in self.columns if isinstance(column, NumberColumn))

    @property
    def dates(self) -> tuple[DateColumn, ...]:
        """Date columns that the model reads."""
        return tuple(column for column in self.columns if isinstance(column, DateColumn))

    @property
    def categories(self) -> tuple[CategoryColumn, ...]:
        """Categorical columns that the model reads."""
        return tuple(column for column in self.columns if isinstance(column, CategoryColumn))

    @property
    def dating_columns(self) -> dict[str, DateColumn]:
        """Date columns by name, including dropped columns, excluding columns of times of day."""
        dropped = {column.name: column.dates for column in self.dropped}
        known = {column.name: column for column in self.dates} | dropped
        return {name: column for name, column in known.items() if column and column.form != TIME_OF_DAY}

    def values(
        self, table: Table, *, strict: bool = False, unfit: Unfit | None = None, first_row: int = 0
    ) -> NDArray[np.float64]:
        """Parse the input columns of a table as values, [rows, values]: numbers (NaN if missing) or category codes.

        Args:
            table: Table with at least the columns `features`; other columns are ignored.
            strict: Whether to reject unknown categories; by default they are encoded as none of the known categories.
            unfit: Counter of the accepted cells that do not fit.
            first_row: Index of the first row of the table in its file, for messages.

        Raises:
            ValueError: If columns are missing or contain cells of another kind; the message lists all problems.
        """
        return _values(table, self.columns, strict, unfit, first_row)

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Encode values as inputs of a model, [rows, inputs]: numbers (NaN if missing) and category indicators.

        Args:
            values: Values of the columns, [rows, values].
        """
        inputs = np.zeros((len(values), len(self.input_names)))
        place = start = 0
        for column in self.columns:
            n_values, n_inputs = len(column.value_names), len(column.input_names)
            column.encode(values[:, place : place + n_values], inputs[:, start : start + n_inputs])
            place, start = place + n_values, start + n_inputs
        return inputs

    @property
    def input_names(self) -> list[str]:
        """Description of each input."""
        return [name for column in self.columns for name in column.input_names]

    def target_values(self, table: Table) -> NDArray[np.float64]:
        """Parse the targets, [rows, targets]: numbers, or indices of `classes`; NaN for missing values."""
        values = _values(table, self.target_columns, True, None, 0)
        if self.classes:
            values[values >= len(self.classes)] = np.nan
        return values

    def decisions(self) -> list[str]:
        """Return all decisions about the file, the columns and the dropped columns, one per line."""
        lines = list(self.notes)
        if self.classes and self.target_columns:  # the targets of a data frame are passed separately
            lines.append(self.describe_classes())
        lines += [f"{c.name}: {c.describe()}" for c in (*self.target_columns, *self.columns) if not c.is_plain]
        for column in self.dropped:
            use = f" (use it: {column.option})" if column.option else ""
            lines.append(f"{column.name}: dropped, {column.reason}{use}")
        return lines

    def describe_classes(self) -> str:
        """Describe the classes of the target in one line."""
        column = self.target_columns[0]
        numeric = isinstance(column, CategoryColumn) and column.numeric
        instead = " (as numbers: --task numbers)" if numeric else ""
        return f"{self.targets[0]}: target with {len(self.classes)} classes{instead}"

    def warnings(self) -> list[str]:
        """Return a warning for each suspicious column."""
        if len(self.suspicious) == len(self.columns):  # dropping them would leave no input columns
            return [f"{c.name}: {c.reason}" for c in self.suspicious]
        return [f"{c.name}: {c.reason}; to drop it: {option_text('--drop', c.name)}" for c in self.suspicious]


def _values(
    table: Table, columns: tuple[Column, ...], strict: bool, unfit: Unfit | None, first_row: int
) -> NDArray[np.float64]:
    values = np.empty((len(table), width(columns)), order="F")
    problems: list[Problem] = []
    place = 0
    known = {name.strip().lower(): name for name in table.columns}
    for column in columns:
        n_values = len(column.value_names)
        if column.name not in table.frame.columns:
            problems.append(_missing_column(table, column.name, known))
            continue
        subject = f"{table.name}, column {column.name!r}"
        try:
            read, odd = table.reading(column)
        except pl.exceptions.PolarsError as error:
            problems.append(Problem(subject, column.rule, f"cells of another type ({_first_line(error)})"))
            continue
        values[:, place : place + n_values] = read
        place += n_values
        if odd is None:
            continue
        odd = odd._replace(row=odd.row + first_row)
        if (words := column.odd_words(strict=strict)) is None:
            problems.append(Problem(subject, column.rule, str(odd), "Correct the cells, or leave them empty."))
        elif unfit is not None:
            unfit.counts[column.name, words] += odd.n_cells
            unfit.first.setdefault(column.name, f"first {str(odd).partition(' and ')[0]}")
    raise_problems("TableSchema", table.name, problems)
    return values


def _missing_column(table: Table, name: str, known: dict[str, str]) -> Problem:
    near = known.get(name.strip().lower())
    got = f"the column {near!r}" if near else f"the columns {table.listed()}"
    advice = f"Rename {near!r} to {name!r}." if near else table.hint(name)
    return Problem(table.name, f"have a column {name!r}", got, advice)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:100]


#: Dataclasses of a schema, for serialization.
RECORDS = (CategoryColumn, DateColumn, DroppedColumn, NumberColumn, NumberForm, Suspicion, TableSchema)
