"""Tables in memory with cached values of the columns, schemas that apply to later tables, and errors with all problems.

A schema consists of all decisions about the columns of a training table.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl.errors import bad_value, nearest_hint, option_text
from torchmcl_tables.data.columns import (
    CategoryColumn,
    Cells,
    Column,
    DateColumn,
    DroppedColumn,
    NumberColumn,
    Reading,
    width,
)
from torchmcl_tables.data.values import TIME_OF_DAY, decimal_evidence, short

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
        separator: Separator of the fields of a text file. If it is not a comma, 1.234 may be more than a thousand.
    """

    name: str
    frame: Any
    notes: tuple[str, ...] = ()
    separator: str = ","
    # Cache of parsed columns, and the decimal separator with a note on it, once it has been decided.
    _readings: dict[Column, Reading] = field(default_factory=dict, init=False, repr=False, compare=False)
    _decimal: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.frame.height)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.frame.columns)

    def cells(self, name: str) -> Cells:
        """Return the cells of a column."""
        return Cells(self.frame.get_column(name), self.decide_decimal(self.columns)[0] or ".")

    def decide_decimal(
        self, names: Iterable[str], usual: str = "", separator: str = "", *, chosen: bool = False
    ) -> tuple[str, str]:
        """Decide on the decimal separator of the whole table; return it, empty if no number has one, and a note on it.

        Args:
            names: Columns that are read; other columns have no influence.
            usual: Decimal separator of the training table; empty if it is not known.
            separator: Separator of the fields of the training table; empty if it is not known.
            chosen: Whether the user chose `usual`, so that other numbers are text.

        Raises:
            TableError: If the columns contradict each other, or allow two readings.
        """
        if not self._decimal:
            self._decimal.extend((usual, "") if chosen else self._found_decimal(names, usual, separator))
        return self._decimal[0], self._decimal[1]

    def _found_decimal(self, names: Iterable[str], usual: str, separator: str) -> tuple[str, str]:
        cells: dict[str, str] = {}
        for name in names:
            if name in self.frame.columns and self.frame.schema[name] == pl.String:
                for mark, cell in decimal_evidence(self.frame.get_column(name)).items():
                    cells.setdefault(mark, f"{short(cell)} in column {name!r}")
        unclear = cells.pop("", "")
        option = "name the decimal separator: --decimal . or --decimal ,"
        if len({*cells, *usual}) > 1:
            rule = "have one decimal separator in all columns"
            got = " and ".join(cells.values()) + ", unlike the training table" * (len(cells) == 1)
            raise_problems("read_table", self.name, [Problem(self.name, rule, got, f"Change the cells, or {option}")])
        # Another program may have written this table if its fields are separated otherwise.
        is_alike = usual and (separator in ("", self.separator) or (usual, self.separator) == (".", ","))
        if cells or is_alike or not unclear:
            mark = "".join(cells) or usual
            return mark, f"numbers have decimal commas, such as {cells[',']}" if mark == "," and cells else ""
        if usual or self.separator != ",":
            rule = "distinguish decimal separators from thousands separators"
            raise_problems("read_table", self.name, [Problem(self.name, rule, unclear, option[0].upper() + option[1:])])
        words = "thousands" if "," in unclear.partition(" in column ")[0] else "decimals"
        return ".", f"{unclear} has {words} (to change it: --decimal ,)"

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
            raise ValueError(bad_value("Table", option, f"name a column of {self.name}", repr(name), self.advice(name)))
        return self.frame.get_column(name)

    def listed(self) -> str:
        """List the names of the first columns, for messages."""
        known = self.columns
        return ", ".join(map(repr, known[:8])) + (" ..." if len(known) > 8 else "")

    def advice(self, name: str) -> str:
        """List the columns, and suggest the one with the most similar name."""
        return f"Its columns are {self.listed()}.{nearest_hint(name, self.columns)}"

    def take(self, rows: Any) -> "Table":
        """Return the table with the rows at the given indices."""
        taken = replace(self, frame=self.frame[rows])
        taken._decimal.extend(self._decimal)
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
        zone = getattr(column.dtype, "tz", None)
        plain = column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
        series = pl.Series(name, plain.to_numpy().astype(f"{kind}8[us]"))
        if zone is None:
            return series
        named = str(zone) if "/" in str(zone) else "UTC"  # an offset has no name, and the instants are the same
        return series.dt.replace_time_zone("UTC").dt.convert_time_zone(named)
    cells = [None if missing else str(cell) for cell, missing in zip(column, column.isna(), strict=True)]
    return pl.Series(name, cells, dtype=pl.String)


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
        decimal: Decimal separator; empty if no number of the training table has one.
        separator: Separator of the fields of the training table; empty if it is not known.
    """

    columns: tuple[Column, ...]
    target_columns: tuple[NumberColumn | CategoryColumn, ...]
    dropped: tuple[DroppedColumn, ...] = ()
    suspicious: tuple[Suspicion, ...] = ()
    notes: tuple[str, ...] = ()
    decimal: str = ""
    separator: str = ""

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
        self.decide_decimal(table)
        return _values(table, self.columns, strict, unfit, first_row)

    def decide_decimal(self, table: Table) -> None:
        """Decide on the decimal separator of a table, which must agree with the training table; see `Table`."""
        numbers = (column for column in (*self.columns, *self.target_columns) if isinstance(column, NumberColumn))
        table.decide_decimal((column.name for column in numbers), self.decimal, self.separator)

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
        self.decide_decimal(table)
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
    advice = f"Rename {near!r} to {name!r}." if near else nearest_hint(name, table.columns).strip()
    return Problem(table.name, f"have a column {name!r}", got, advice)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:100]


#: Dataclasses of a schema, for serialization.
RECORDS = (CategoryColumn, DateColumn, DroppedColumn, NumberColumn, Suspicion, TableSchema)
