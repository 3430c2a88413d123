"""The description of a table: the contents and the treatment of each column."""

import numpy as np
from numpy.typing import NDArray

from torchmcl._messages import number_text
from torchmcl_tables.data.columns import CategoryColumn, Column, DateColumn
from torchmcl_tables.data.dates import moment_text
from torchmcl_tables.data.schema import TableSchema
from torchmcl_tables.data.splits import choose_split
from torchmcl_tables.data.table import Table

__all__ = ["description"]

_LONGEST_NAME, _LONGEST_RANGE = 28, 46
_N_LISTED = 4
_OVERRIDES = "Decide otherwise with --drop, --categorical, --numeric, --date or --keep-column and the names of columns."


def description(table: Table, schema: TableSchema) -> str:
    """Return lines about a table: its columns, dropped and suspicious ones, and the options to override them.

    Example:
        >>> import polars
        >>> from torchmcl_tables.data.inference import infer_schema
        >>> table = Table("t.csv", polars.DataFrame({"a": [1, 2, 5], "b": ["x", "y", None], "c": [7, 7, 7]}))
        >>> print(description(table, infer_schema(table, ["a"])))
        t.csv: 3 rows, 3 columns
        column  kind      missing  values
        a       target         0%  1 to 5
        b       category      33%  x, y
        c       dropped        0%  all of its cells are 7 (use it: --keep-column c)
        Decide otherwise with --drop, --categorical, --numeric, --date or --keep-column and the names of columns.
    """
    rows: dict[str, tuple[str, float, str]] = {}
    for column in (*schema.target_columns, *schema.columns):
        values = table.reading(column).values[:, -1]
        is_missing = values == column.missing_code if isinstance(column, CategoryColumn) else np.isnan(values)
        kind = ("classes" if schema.classes else "target") if column.name in schema.targets else column.kind
        how = "" if column.is_plain else f" ({column.describe()})"
        rows[column.name] = kind, float(is_missing.mean()), _range(column, values) + how
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
        lines.append(schema.what_is_told_apart())
    if apart := choose_split(table, schema).describe():
        lines.append(f"Rows: {apart}")
    lines += [f"Warning: {line}" for line in schema.warnings()]
    return "\n".join([*lines, _OVERRIDES])


def _range(column: Column, values: NDArray[np.float64]) -> str:
    """Return the range of numbers or dates, or the most frequent categories."""
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
