"""Tables of past values from files, as spreadsheets write them in different countries."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from torchmcl.errors import bad_value

__all__ = ["read_table"]

# Separators of cells, each with its decimal mark and its thousands separator.
_MARKS = {",": (".", ","), ";": (",", "."), "\t": (".", ",")}
# Currency symbols and spaces, including non-breaking ones, around a number.
_AROUND = "€$£ \u00a0\u202f"


def read_table(owner: str, argument: str, path: Path, series: str) -> pd.DataFrame:
    """Return the table of a CSV or Parquet file without empty rows.

    Separators, decimal commas, thousands separators and the encoding are detected. Names of series are read as text, so
    that a name such as 007 keeps its zeros.

    Args:
        owner: named in messages.
        argument: the name of the file's argument in messages.
        path: of the file.
        series: the column of the names of series.

    Raises:
        FileNotFoundError: without such a file.
        ValueError: for a file that is neither CSV nor Parquet.
    """
    if not path.is_file():
        raise FileNotFoundError(bad_value(owner, argument, "be a file", repr(str(path)), "Check the path."))
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        return _read_csv(path, series).dropna(how="all", ignore_index=True)
    except (ValueError, UnicodeError, pd.errors.ParserError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        got = f"{str(path)!r}: {reason}"
        raise ValueError(bad_value(owner, argument, "be a CSV or Parquet file", got)) from error


def _read_csv(path: Path, series: str) -> pd.DataFrame:
    try:
        return _decoded(path, series, "utf-8-sig")
    except UnicodeDecodeError:  # older spreadsheets write the code page of Western Europe
        return _decoded(path, series, "cp1252")


def _decoded(path: Path, series: str, encoding: str) -> pd.DataFrame:
    first = pd.read_csv(path, nrows=0, encoding=encoding).columns
    mark = next((mark for mark in ";\t" if len(first) == 1 and mark in first[0]), ",")
    decimal, thousands = _MARKS[mark]
    names = pd.read_csv(path, nrows=0, sep=mark, encoding=encoding).columns
    texts = {name: str for name in names if name.strip() == series}  # names often have spaces around them
    read = pd.read_csv(path, sep=mark, decimal=decimal, encoding=encoding, dtype=texts, low_memory=False)
    read.columns = read.columns.str.strip()
    return read.apply(lambda column: column if column.name == series else _numbers(column, decimal, thousands))


def _numbers(column: Any, decimal: str, thousands: str) -> Any:
    """Return a column of text as numbers if every cell is one, such as 1.234,50 or 1 234,50 €.

    A column stays text if all its cells are like 1.234, which may be thousands or decimals.
    """
    if pd.api.types.is_numeric_dtype(column):
        return column
    given = column.dropna().astype(str).str.strip(_AROUND)
    part = rf"({re.escape(decimal)}\d+)?"
    grouped = rf"[-+]?[1-9]\d{{0,2}}([\s{thousands}]\d{{3}})+{part}|[-+]?\d+{part}"
    either = rf"[-+]?\d{{1,3}}{re.escape(thousands)}\d{{3}}"
    if not given.str.fullmatch(grouped).all() or given.str.fullmatch(either).all():
        return column
    plain = given.str.replace(rf"[\s{thousands}]", "", regex=True).str.replace(decimal, ".", regex=False)
    return plain.astype(float).reindex(column.index)
