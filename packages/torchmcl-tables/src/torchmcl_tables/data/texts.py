"""Cells of a table as text: missing values, and a uniform notation of numbers."""

import re
from decimal import Context, Decimal
from typing import Any

import polars as pl

__all__ = ["MISSING", "NUMBER", "plain_number", "short", "texts_of", "with_plain_numbers"]

# Texts of a missing value, those of pandas and what spreadsheets and statistical offices write.
MISSING = (
    *("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "?"),
    *("-", "--", ".", "..", "#DIV/0!", "#VALUE!", "#REF!", "NaT"),
)
# A number as programs write it, without leading zeros.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
# Beyond this an exponent is shorter.
_PLAIN_DIGITS = 30


def texts_of(series: Any) -> Any:
    """Return a column as text without surrounding blanks, null for missing cells."""
    if series.dtype == pl.Duration:
        series = series.dt.total_microseconds()
    texts = series.str.strip_chars() if series.dtype == pl.String else series.cast(pl.String)
    return texts.set(texts.is_in(list(MISSING)).fill_null(False), None)


def with_plain_numbers(texts: Any) -> Any:
    """Return texts with a uniform notation of numbers: 3 for 3.0, 1000 for 1e3."""
    known = texts.drop_nulls().unique().to_list()
    plain = {text: plain_number(text) for text in known if NUMBER.fullmatch(text)}
    return texts.replace({text: number for text, number in plain.items() if text != number})


def plain_number(text: str) -> str:
    """Return the shortest plain text of a number, exactly.

    Example:
        >>> [plain_number(text) for text in ("3.0", "+3", "1e3", "-0.0", "2.50", "1e-99")]
        ['3', '3', '1000', '0', '2.5', '1E-99']
    """
    number = Decimal(text).normalize(Context(prec=len(text) + 1))
    if number == 0:
        return "0"
    return f"{number:f}" if abs(number.adjusted()) <= _PLAIN_DIGITS else str(number)


def short(text: object) -> str:
    """Return a cell in the form of messages."""
    shown = str(text)
    return repr(shown if len(shown) <= 40 else shown[:37] + "...")
