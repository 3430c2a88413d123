"""Tables of past values from files in the formats that spreadsheets write in different countries."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from torchmcl.errors import bad_value

__all__ = ["read_table"]

# Cell separators, each with its decimal mark and its thousands separator.
_MARKS = {",": (".", ","), ";": (",", "."), "\t": (".", ",")}
# Currency symbols and spaces, including non-breaking ones, around a number.
_AROUND = "€$£ \u00a0\u202f"


def read_table(owner: str, argument: str, path: Path, series: str) -> pd.DataFrame:
    """Read a CSV or Parquet file without its empty rows.

    Separators, decimal commas, thousands separators and the encoding are detected. Series names are read as text, so
    that a name such as 007 keeps its zeros.

    Args:
        owner: Function or command name at the beginning of messages.
        argument: Name of the file argument in messages.
        path: Path of the file.
        series: Name of the series column.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is neither CSV nor Parquet.
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
    except UnicodeDecodeError:  # older spreadsheets use the code page of Western Europe
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
    """Convert a text column to numbers if all cells are numbers, such as 1.234,50 or 1 234,50 €.

    A column stays text if all cells are ambiguous, such as 1.234, which may be thousands or decimals.
    """
    if pd.api.types.is_numeric_dtype(column):
        return column
    texts = column.dropna().astype(str).str.strip(_AROUND)
    part = rf"({re.escape(decimal)}\d+)?"
    grouped = rf"[-+]?[1-9]\d{{0,2}}([\s{thousands}]\d{{3}})+{part}|[-+]?\d+{part}"
    ambiguous = rf"[-+]?\d{{1,3}}{re.escape(thousands)}\d{{3}}"
    if not texts.str.fullmatch(grouped).all() or texts.str.fullmatch(ambiguous).all():
        return column
    plain = texts.str.replace(rf"[\s{thousands}]", "", regex=True).str.replace(decimal, ".", regex=False)
    return plain.astype(float).reindex(column.index)
