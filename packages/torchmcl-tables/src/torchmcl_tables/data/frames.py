"""Data frames of other packages as polars frames, without importing those packages."""

from typing import Any

import numpy as np
import polars as pl

from torchmcl_tables.data.table import unique_names

__all__ = ["as_polars", "has_only_numbers", "is_data_frame"]

_KINDS = {("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch")}


def _package(frame: Any) -> str:
    return type(frame).__module__.partition(".")[0]


def is_data_frame(value: Any) -> bool:
    """Return whether a value is a data frame of pandas, polars or Arrow."""
    return any((kind.__module__.partition(".")[0], kind.__name__) in _KINDS for kind in type(value).__mro__)


def has_only_numbers(frame: Any) -> bool:
    """Return whether all columns of a data frame of pandas or polars are numbers or booleans."""
    if _package(frame) == "polars":
        return all(dtype.is_numeric() or str(dtype) == "Boolean" for dtype in frame.dtypes)
    return all(getattr(dtype, "kind", "O") in "biuf" and str(dtype) != "category" for dtype in frame.dtypes)


def as_polars(frame: Any) -> Any:
    """Return a data frame of pandas, polars or Arrow as one of polars.

    Example:
        >>> import pandas
        >>> as_polars(pandas.DataFrame({"a": [1.0, None], "b": ["x", None]})).rows()
        [(1.0, 'x'), (None, None)]
    """
    if _package(frame) == "polars":
        return frame
    if _package(frame) == "pyarrow":
        names, _ = unique_names([str(name) for name in frame.schema.names])
        columns = [_arrow_series(name, frame.column(place)) for place, name in enumerate(names)]
        return pl.DataFrame(columns)
    names, _ = unique_names([str(name) for name in frame.columns])
    columns = [_series(name, frame.iloc[:, place]) for place, name in enumerate(names)]
    return pl.DataFrame([column.alias(name) for name, column in zip(names, columns, strict=True)])


def _arrow_series(name: str, column: Any) -> Any:
    """Return a column of Arrow; a dictionary contains categories, for any type of values."""
    series = pl.Series(name, column)
    is_dictionary = type(column.type).__name__ == "DictionaryType"
    return series.cast(pl.String).cast(pl.Categorical) if is_dictionary else series


def _series(name: str, column: Any) -> Any:
    """Return a column of pandas; anything except numbers and dates becomes text."""
    kind = getattr(column.dtype, "kind", "O")
    if str(column.dtype) == "category":  # also of numbers: whoever makes categories means them
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
