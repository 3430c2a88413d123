"""Reading of Parquet files with Arrow into a polars data frame.

The Parquet reader of polars ends the process when a damaged file asks for more memory than there is; Arrow raises an
error. Its result is fully validated (offsets, UTF-8) before polars, which assumes that it is valid, sees it.
"""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow
from pyarrow.parquet import ParquetFile

from torchmcl._messages import bad_value
from torchmcl.persistence.limits import check_limit
from torchmcl_tables.data.table import unique_names

__all__ = ["read_parquet"]


def read_parquet(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the table in a Parquet file as a polars data frame, and the renamed columns.

    Lists and structures, which no model accepts, are not decoded: their columns keep name and type, and hold nulls.

    Raises:
        ValueError: if the file is damaged, or larger than the limit of a table.
        OSError: if it cannot be read.
    """
    try:
        with ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
            check_limit("read_table", path.name, "table_bytes", sum(group.total_byte_size for group in groups))
            return _frame(file)
    except (arrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of the content
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        got = f"{str(path)!r}: {reason[:300]}"
        raise ValueError(bad_value("read_table", "file", "be a Parquet file", got)) from error


def _frame(file: Any) -> tuple[Any, tuple[str, ...]]:
    names, notes = unique_names(file.schema_arrow.names)
    categories = _categories(file.schema_arrow)
    types = [getattr(field.type, "storage_type", field.type) for field in file.schema_arrow]
    flat = [not arrow.types.is_nested(kind) for kind in types]
    # Columns can only be left out by their names, which must differ then.
    chosen = None if notes else [name for name, is_flat in zip(names, flat, strict=True) if is_flat]
    table = file.read(columns=chosen)
    table.validate(full=True)
    n_rows = file.metadata.num_rows
    if table.num_rows != n_rows:
        raise arrow.ArrowInvalid(f"its columns have {table.num_rows:,} rows, not the {n_rows:,} it promises")
    places = iter(range(len(names)))
    columns = []
    for name, kind, is_flat in zip(names, types, flat, strict=True):
        place = next(places) if is_flat or notes else -1
        column = table.column(place) if is_flat else arrow.chunked_array([arrow.nulls(n_rows, kind)])
        series = pl.Series(name, _plain(column))
        is_category = arrow.types.is_dictionary(kind) or name in categories
        columns.append(series.cast(pl.String).cast(pl.Categorical) if is_category else series)
    return pl.DataFrame(columns), tuple(notes)


def _categories(schema: Any) -> set[str]:
    """Return the columns that pandas wrote as categories, which Arrow does not keep for numbers."""
    try:
        notes = json.loads((schema.metadata or {})[b"pandas"])
        return {str(column["name"]) for column in notes["columns"] if column["pandas_type"] == "categorical"}
    except (LookupError, TypeError, ValueError, RecursionError):  # no notes of pandas
        return set()


def _plain(column: Any) -> Any:
    """Return a column with dictionaries and extension types replaced by their values."""
    if isinstance(column.type, arrow.ExtensionType):
        column = column.cast(column.type.storage_type)
    return column.cast(column.type.value_type) if arrow.types.is_dictionary(column.type) else column
