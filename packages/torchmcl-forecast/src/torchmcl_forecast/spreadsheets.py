"""Tables of past and future values from files, read like all other tables."""

from pathlib import Path
from typing import Any

import pandas as pd

from torchmcl_forecast.frames import Columns
from torchmcl_tables.data import DateColumn, TableSchema, read_table, series_schema

__all__ = ["read_series"]


def read_series(
    path: Path, columns: Columns, decimal: str = "", like: TableSchema | None = None
) -> tuple[pd.DataFrame, TableSchema | None]:
    """Read a table of series, and return it with its schema; None without a time column.

    Series names are read as text, so that a name such as 007 keeps its zeros, and NA is a name.

    Args:
        path: Path of the file.
        columns: Column names.
        decimal: Decimal separator, "." or ","; by default detected in all columns together.
        like: Schema of the past values, for a table of future values.

    Raises:
        ValueError: If the file is not a table, or the notation of its dates or numbers is ambiguous.
        OSError: If the file cannot be read.
    """
    table = read_table(path, decimal)
    texts: dict[str, Any] = {name: table.frame.get_column(name).to_list() for name in table.columns}
    frame = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in texts.items()})
    if columns.time not in table.columns:
        return frame, None
    is_long = columns.value in table.columns or like is not None
    used = (columns.value, *columns.covariates) if is_long else table.columns
    numbers = [name for name in used if name in table.columns and name not in (columns.time, columns.series)]
    if like is None:
        like = series_schema(table, columns.time, numbers)
    wanted = [c for c in like.columns if is_long or c.name == columns.time or not table.reading(c).odd]
    schema = TableSchema(
        tuple(c for c in wanted if c.name in table.columns), (), notes=like.notes, decimal=like.decimal
    )
    schema.values(table)  # raises one error about all cells that do not fit
    for column in schema.columns:
        values = table.reading(column).values[:, -1]
        if not isinstance(column, DateColumn):
            whole = column.name == columns.time and bool((values % 1 == 0).all())
            frame[column.name] = values.astype("int64") if whole else values
        elif not column.zone:
            frame[column.name] = table.cells(column.name).dates(column.form, "")[0].to_numpy()
    return frame, schema
