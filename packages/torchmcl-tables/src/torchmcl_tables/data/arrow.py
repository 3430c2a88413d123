"""Parquet files through Arrow, batch by batch, into a polars data frame.

The Parquet reader of polars ends the process when a damaged file asks for more memory than there is; Arrow raises an
error. Its result is fully validated (offsets, UTF-8) before polars, which assumes that it is valid, sees it.
"""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow
from pyarrow.parquet import ParquetFile

from torchmcl._limits import check_limit, limit
from torchmcl._messages import bad_value
from torchmcl_tables.data.names import check_names, named
from torchmcl_tables.data.parquet import check_parquet

__all__ = ["read_parquet"]

# Batches of a few megabytes: fewer rows take longer, more take memory.
_MAX_ROWS = 1 << 16
# A batch takes at most a quarter of the bytes that a table may have; its actual size is counted afterwards.
_BATCHES_OF_A_TABLE = 4


def read_parquet(owner: str, path: Path) -> tuple[Any, list[str]]:
    """Return the table in a Parquet file as a polars data frame, and which columns had to be renamed.

    Lists and structures, which no model accepts, are not decoded: their columns keep name and type, and hold nulls.

    Raises:
        ValueError: if the file is damaged, or larger than the limits allow.
        OSError: if it cannot be read.
    """
    widest = check_parquet(owner, path)
    batch_size = limit("table_bytes") // _BATCHES_OF_A_TABLE // max(widest, 1)
    try:
        return _frame(owner, path, min(max(batch_size, 1), _MAX_ROWS))
    except MemoryError as error:
        got = f"{str(path)!r}, which asks for more memory than there is"
        raise ValueError(bad_value(owner, "file", "be a Parquet file", got)) from error
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of the content
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(bad_value(owner, "file", "be a Parquet file", f"{str(path)!r}: {reason[:300]}")) from error


def _frame(owner: str, path: Path, batch_size: int) -> tuple[Any, list[str]]:
    with ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
        categories = _categories(schema)
        nested = {
            field.name for field in schema if arrow.types.is_nested(getattr(field.type, "storage_type", field.type))
        }
        names, notes = named(list(schema.names))
        if notes and nested:  # they can only be left out by their names
            check_names(owner, path, schema.names)
        schema = arrow.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
        flat = [name for name in schema.names if name not in nested]
        frames = [_empty(schema, flat)]
        n_bytes = 0
        for batch in file.iter_batches(batch_size, columns=None if notes else flat) if flat else ():
            batch.validate(full=True)
            batch = batch.rename_columns(names) if notes else batch
            n_bytes += batch.nbytes
            check_limit(owner, path.name, "table_bytes", n_bytes)
            frames.append(_plain(batch, flat))
    frame = pl.concat(frames, rechunk=True)
    if flat and frame.height != n_rows:
        got = f"{str(path)!r}: its columns have {frame.height:,} rows, not the {n_rows:,} it promises"
        raise ValueError(bad_value(owner, "file", "be a Parquet file", got))
    columns = {series.name: series for series in frame}
    for field in schema:
        if arrow.types.is_dictionary(field.type) or (field.name in categories and field.name in columns):
            columns[field.name] = columns[field.name].cast(pl.String).cast(pl.Categorical)
    for name, dtype in _empty(schema, sorted(nested)).schema.items():
        columns[name] = pl.Series(name, [None], dtype=dtype).new_from_index(0, n_rows)
    return pl.DataFrame([columns[name] for name in schema.names]), notes


def _categories(schema: Any) -> set[str]:
    """Return the columns that pandas wrote as categories: of numbers, Arrow itself does not keep that."""
    try:
        notes = json.loads((schema.metadata or {})[b"pandas"])
        return {str(column["name"]) for column in notes["columns"] if column["pandas_type"] == "categorical"}
    except (LookupError, TypeError, ValueError, RecursionError):  # no notes of pandas
        return set()


def _empty(schema: Any, names: list[str]) -> Any:
    """Return a frame of some columns without rows: tables without any have types, too."""
    return _plain(arrow.RecordBatch.from_pylist([], schema=schema), names)


def _plain(batch: Any, names: list[str]) -> Any:
    """Return a batch as a frame, with the values of dictionaries and extension types in their place."""
    columns = []
    for name in names:
        column = batch.column(name)
        if isinstance(column, arrow.ExtensionArray):
            column = column.storage
        columns.append(column.dictionary_decode() if isinstance(column, arrow.DictionaryArray) else column)
    return pl.from_arrow(arrow.table(columns, names=names), rechunk=False)
