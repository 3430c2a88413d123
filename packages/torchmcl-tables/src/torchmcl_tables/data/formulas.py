"""Cells of a CSV file that a spreadsheet would execute as formulas."""

import re
from typing import Any

import polars as pl

from torchmcl_tables.data.texts import NUMBER

__all__ = ["escape_formulas"]

# How formulas begin in Excel, LibreOffice and Google Sheets, also in the wide characters of East Asian keyboards.
_BEGINS = r"^[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]"
_NUMBER = f"^(?:{NUMBER.pattern})$"


def escape_formulas(frame: Any) -> Any:
    """Return a polars data frame in which no text and no column name is taken for a formula.

    Such text gets an apostrophe in front, as a user would type it. Numbers, also those that come as text, stay as they
    are.

    Example:
        >>> frame = pl.DataFrame({"note": ["=1+1", "-3.5", "fine"]})
        >>> escape_formulas(frame)["note"].to_list()
        ["'=1+1", '-3.5', 'fine']
    """
    columns: list[Any] = []
    names: set[str] = set()
    for series in frame:
        if series.dtype in (pl.String, pl.Categorical, pl.Enum):
            text = pl.col(series.name).cast(pl.String)
            risky = text.str.contains(_BEGINS) & ~text.str.contains(_NUMBER)
            series = frame.select(pl.when(risky).then("'" + text).otherwise(text).alias(series.name)).to_series()
        name = f"'{series.name}" if re.match(_BEGINS, series.name) else series.name
        while name in names or (name != series.name and name in frame.columns):
            name = f"'{name}"
        names.add(name)
        columns.append(series.alias(name))
    return pl.DataFrame(columns)
