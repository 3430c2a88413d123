"""Selection of the test rows of a table (the last rows, whole groups, or a random sample), and table descriptions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.errors import bad_value, number_text
from torchmcl_tables.data.columns import CategoryColumn, Column, DateColumn, NumberColumn
from torchmcl_tables.data.kinds import Kinds, unclear_dates
from torchmcl_tables.data.table import Table, TableSchema, raise_problems
from torchmcl_tables.data.values import moment_text, texts_of

#: Methods of selecting test rows, the values of `--split`.
SPLITS = ("time", "group", "random")
# Maximum fraction of test rows: nearly constant dates cannot order the rows.
_MOST = 0.5


@dataclass(frozen=True)
class Split:
    """Method of selecting test rows.

    Attributes:
        by: Name of the method, one of `SPLITS`.
        column: Column of times or groups; empty for a random split.
        dated: Column that dates the rows; empty if there is none.
    """

    by: str
    column: str = ""
    dated: str = ""

    def describe(self) -> str:
        """Describe the split; empty for a random split of undated rows."""
        if self.by == "time":
            return f"the last rows by {self.column} are the test rows (to change it: --split random)"
        if self.by == "group":
            return f"rows with the same {self.column} are either all test rows or all training rows"
        if self.dated:
            return f"test rows are drawn at random, although {self.dated} dates the rows (to change it: --split time)"
        return ""

    def rows(
        self,
        table: Table,
        schema: TableSchema,
        known: NDArray[np.int64],
        fraction: float,
        seed: int,
        units: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sorted indices of the training rows and of the test rows.

        Args:
            table: Complete table.
            schema: Schema of the table.
            known: Indices of the rows with targets.
            fraction: Approximate fraction of test rows.
            seed: Seed for the choice of random rows and groups.
            units: Labels of the known rows; a random split keeps rows with the same label together. By default each
                row is separate.

        Raises:
            ValueError: If the column leaves no training rows or no test rows.
        """
        n_test = round(fraction * len(known))
        if self.by == "random" or not n_test:
            drawn = _units(np.arange(len(known)) if units is None else units, n_test, seed)
            return known[~drawn], known[drawn]
        if self.by == "time":
            last = _last(times_of(table, self.column, schema)[known], n_test)
        else:
            last = _groups(texts_of(table.frame.get_column(self.column))[known], n_test, seed)
        if last is None:
            rule, got = f"vary by {self.by}", f"{self.column!r}, which has too few distinct values"
            raise ValueError(bad_value("choose_split", "--split-column", rule, got, "Use --split random."))
        return known[~last], known[last]


def choose_split(
    table: Table, schema: TableSchema, by: str | None = None, column: str = "", fraction: float = 0.1
) -> Split:
    """Choose the split: by default the last rows if a column contains dates, otherwise random rows.

    Rows are random too if the last dates have less than half or more than twice as many rows as requested.

    Args:
        table: Complete table.
        schema: Schema of the table.
        by: Name of the method, one of `SPLITS`; None to decide by the columns.
        column: Column of times or groups; by default the date column.
        fraction: Approximate fraction of test rows.

    Raises:
        ValueError: If the column does not exist, or no column orders the rows.
    """
    if by not in (None, *SPLITS):
        raise ValueError(bad_value("choose_split", "--split", f"be one of {', '.join(SPLITS)}", repr(by)))
    if column:
        table.series(column, "--split-column")
    dated = _dating_column(table, schema)
    if by == "group" or (by is None and column and column != dated and column not in schema.dating_columns):
        if not column:
            raise ValueError("choose_split: `--split group` requires `--split-column`. Name the column of groups.")
        return Split("group", column, dated)
    if by == "random" or (by is None and not (column or dated)):
        return Split("random", "", dated)
    if not (column or dated):
        advice = "Name a column of dates or numbers with --split-column, or read a column as dates with --date."
        raise ValueError(bad_value("choose_split", "--split", "be used with a column of dates", "none", advice))
    split = Split("time", column or dated, column or dated)
    if by is None and not column:
        known = np.isfinite(schema.target_values(table)).all(axis=1)
        n_wanted = max(1, round(fraction * int(known.sum())))
        last = _last(times_of(table, dated, schema)[known], n_wanted)
        if last is None or not n_wanted <= 2 * last.sum() <= 4 * n_wanted:
            return Split("random", "", dated)
    return split


def times_of(table: Table, name: str, schema: TableSchema) -> NDArray[np.float64]:
    """Return the time of each row, [rows]: days since 1970, or the values of a numeric column; NaN if missing."""
    column: DateColumn | NumberColumn | None = schema.dating_columns.get(name)
    if column is None:
        kinds, cells = Kinds({}), table.cells(name)
        column = kinds.date(cells, chosen=True) or kinds.number(cells)
        raise_problems("times_of", table.name, [unclear_dates(table, name, cell) for cell in kinds.unclear.values()])
    return table.reading(column).values[:, -1]


def _dating_column(table: Table, schema: TableSchema) -> str:
    """Return the date column by which the file is sorted, otherwise the first date column; empty if there is none."""
    names = []
    for name, column in schema.dating_columns.items():
        if name not in table.frame.columns:
            continue
        times = table.reading(column).values[:, -1]
        steps = np.diff(times[np.isfinite(times)])
        if not steps.any():
            continue
        if (steps >= 0).all() or (steps <= 0).all():
            return name
        names.append(name)
    return min(names, key=table.columns.index) if names else ""


def _last(times: NDArray[np.float64], n_wanted: int) -> NDArray[np.bool_] | None:
    """Return a mask of about `n_wanted` last rows; rows with equal times stay together."""
    distinct, counts = np.unique(times[np.isfinite(times)], return_counts=True)
    totals = counts[::-1].cumsum()
    possible = np.flatnonzero(totals[:-1] <= _MOST * len(times))
    if not len(possible):
        return None
    n_times = 1 + int(possible[np.abs(totals[possible] - n_wanted).argmin()])
    return np.asarray(times >= distinct[-n_times])


def _units(units: NDArray[Any], n_wanted: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the rows of random units, about `n_wanted` rows."""
    order = np.random.default_rng(seed).permutation(len(units))
    _, first, unit, sizes = np.unique(units[order], return_index=True, return_inverse=True, return_counts=True)
    drawn = np.argsort(first)
    chosen = np.zeros(len(sizes), dtype=bool)
    chosen[drawn[np.cumsum(sizes[drawn]) <= n_wanted]] = True
    rows = np.zeros(len(units), dtype=bool)
    rows[order] = chosen[unit.ravel()]
    return rows


def _groups(texts: Any, n_wanted: int, seed: int) -> NDArray[np.bool_] | None:
    """Return a mask of the rows of random groups, about `n_wanted` rows; rows without a group are training rows."""
    names = texts.drop_nulls().unique().sort().to_list()
    counts = dict(texts.drop_nulls().value_counts(name="n").iter_rows())
    chosen: list[str] = []
    n_rows = 0
    for place in np.random.default_rng(seed).permutation(len(names)):
        size = counts[names[place]]
        if n_rows + size <= n_wanted or (not chosen and size <= _MOST * len(texts)):
            chosen.append(names[place])
            n_rows += size
    if not chosen or len(names) < 2:
        return None
    return texts.is_in(chosen).fill_null(False).to_numpy()


_LONGEST_NAME, _LONGEST_RANGE = 28, 46
_N_LISTED = 4
_OVERRIDES = "To change this, use --drop, --categorical, --numeric, --date or --keep-column with column names."


def description(table: Table, schema: TableSchema) -> str:
    """Describe a table: its columns, including dropped and suspicious columns, and the options for other decisions.

    Example:
        >>> import polars
        >>> from torchmcl_tables.data.kinds import infer_schema
        >>> table = Table("t.csv", polars.DataFrame({"a": [1, 2, 5], "b": ["x", "y", None], "c": [7, 7, 7]}))
        >>> print(description(table, infer_schema(table, ["a"])))
        t.csv: 3 rows, 3 columns
        column  kind      missing  values
        a       target         0%  1 to 5
        b       category      33%  x, y
        c       dropped        0%  all of its cells are 7 (use it: --keep-column c)
        To change this, use --drop, --categorical, --numeric, --date or --keep-column with column names.
    """
    rows: dict[str, tuple[str, float, str]] = {}
    for column in (*schema.target_columns, *schema.columns):
        values = table.reading(column).values[:, -1]
        is_missing = values == column.missing_code if isinstance(column, CategoryColumn) else np.isnan(values)
        kind = ("classes" if schema.classes else "target") if column.name in schema.targets else column.kind
        note = "" if column.is_plain else f" ({column.describe()})"
        rows[column.name] = kind, float(is_missing.mean()), _range(column, values) + note
    for dropped in schema.dropped:
        use = f" (use it: {dropped.option})" if dropped.option else ""
        missing = table.frame.get_column(dropped.name).null_count() / len(table)
        rows[dropped.name] = "dropped", missing, dropped.reason + use
    wide = max(len("column"), *(min(len(name), _LONGEST_NAME) for name in rows))
    lines = [f"{table.name}: {len(table):,} rows, {len(table.columns):,} columns"]
    lines += [f"  {note}" for note in schema.notes]
    lines.append(f"{'column':<{wide}}  {'kind':<8}  {'missing':>7}  values")
    for name in table.columns:
        kind, missing, words = rows[name]
        lines.append(f"{_cut(name, _LONGEST_NAME):<{wide}}  {kind:<8}  {missing:>7.0%}  {words}")
    if schema.classes:
        lines.append(schema.describe_classes())
    if apart := choose_split(table, schema).describe():
        lines.append(f"Rows: {apart}")
    lines += [f"Warning: {line}" for line in schema.warnings()]
    return "\n".join([*lines, _OVERRIDES])


def _range(column: Column, values: NDArray[np.float64]) -> str:
    """Describe the range of numbers or dates, or the most frequent categories."""
    if isinstance(column, CategoryColumn):
        listed = ", ".join(column.categories[:_N_LISTED])
        more = " ..." if len(column.categories) > _N_LISTED or column.is_open else ""
        return _cut(listed, _LONGEST_RANGE) + more
    known = values[np.isfinite(values)]
    if not len(known):
        return "none"
    low, high = float(known.min()), float(known.max())
    ends = (moment_text(v) if isinstance(column, DateColumn) else number_text(v, high - low) for v in (low, high))
    return " to ".join(ends)


def _cut(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 3] + "..."
