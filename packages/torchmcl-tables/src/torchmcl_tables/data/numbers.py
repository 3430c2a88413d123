"""Numbers in common notations: decimal commas, thousands separators, currencies, percentages and other units."""

import re
from dataclasses import dataclass
from typing import Any

import polars as pl

from torchmcl_tables.data.texts import MISSING

__all__ = ["PLAIN", "NumberForm", "find_form", "has_decimal_commas", "read_numbers", "too_large"]

_CURRENCIES = re.compile(
    r"(?:US|CA|AU|NZ|HK|R|A|C)?\$|[€£¥₹₩₽₺฿₫₪₴]|Rs\.?|kr\.?|zł|Kč|Ft|USD|EUR|GBP|JPY|CHF|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL"
)
# Spaces inside numbers: no-break, narrow no-break and thin ones are written as plain ones.
_SPACES, _MINUS = "[\u00a0\u202f\u2009]", "[\u2212\u2013]"
_SIGNS = "+\\-\u2212\u2013"
_CORE = r"\d[\d.,'\u2019 ]*(?:[eE][+-]?\d{1,4})?"
_LONGEST_UNIT = 8
# A unit other than a currency must come with nearly all cells: otherwise the texts are names that end alike.
_SHARE_WITH_UNIT = 0.9
_LARGEST = 1e100
# Cells that show how a table writes numbers.
_SAMPLE = 1000
_POINTS = ((".", ""), (".", ","), (".", " "), (".", "'"))
_COMMAS = ((",", ""), (",", "."), (",", " "), (",", "'"))


@dataclass(frozen=True)
class NumberForm:
    """The number format of a column.

    Attributes:
        decimal: the mark before the fraction.
        thousands: the mark between groups of three digits; empty for none.
        unit: text in front of or behind the digits, which is left out: a currency, "%" or a unit of measurement.
    """

    decimal: str = "."
    thousands: str = ""
    unit: str = ""

    @property
    def pattern(self) -> str:
        """The regular expression of a number without its unit."""
        point, group = re.escape(self.decimal), re.escape(self.thousands)
        exponent = r"(?:[eE][+-]?\d{1,4})?"
        if not self.thousands:
            return rf"^[+-]?(?:\d+(?:{point}\d*)?|{point}\d+){exponent}$"
        within = r"\d{2,3}" if self.thousands == "," else r"\d{3}"  # 12,34,567 in India
        return rf"^[+-]?(?:[1-9]\d{{0,2}}(?:{group}{within})*{group}\d{{3}}|\d+)(?:{point}\d*)?{exponent}$"

    def __str__(self) -> str:
        """Return a description of the format, empty for the standard one."""
        words = [f"in {self.unit}"] * bool(self.unit) + ["with decimal commas"] * (self.decimal == ",")
        marks = {" ": "blanks", "'": "apostrophes", ",": "commas", ".": "points"}
        words += [f"with {marks[self.thousands]} between thousands"] if self.thousands else []
        return " ".join(words)


#: As programs write numbers.
PLAIN = NumberForm()


def read_numbers(series: Any, form: NumberForm) -> tuple[Any, Any]:
    """Return a column as numbers, null for missing ones, and a mask of other cells.

    Infinite numbers, and those beyond 1e100, whose squares soon overflow, are something else.
    """
    if series.dtype == pl.Duration:
        series = series.dt.total_microseconds() / 1e6
    if series.dtype == pl.Boolean or series.dtype.is_numeric():
        values = series.cast(pl.Float64).fill_nan(None)
        failed = too_large(values)
        if form.unit == "%":  # 0.45 without a sign may be 45 %
            failed = (values != 0).fill_null(False)
        return (values.set(failed, None) if failed.any() else values), failed
    if series.dtype != pl.String:
        series = series.cast(pl.String)
    values = _parsed(series, form)
    failed = values.is_null() & series.is_not_null()
    if failed.any():  # stripping all texts would take time
        stripped = series.str.strip_chars()
        values = _parsed(stripped, form)
        failed = values.is_null() & series.is_not_null() & ~stripped.is_in(list(MISSING)).fill_null(False)
    values = values.fill_nan(None)
    infinite = too_large(values)
    return (values.set(infinite, None), failed | infinite) if infinite.any() else (values, failed)


def too_large(values: Any) -> Any:
    """Return a mask of numbers that are infinite or too large for training."""
    return (values.abs() > _LARGEST).fill_null(False)


def _parsed(texts: Any, form: NumberForm) -> Any:
    """Return texts as numbers, null if the format does not fit."""
    if form == PLAIN:
        return texts.cast(pl.Float64, strict=False)
    texts = texts.str.replace_all(_SPACES, " ").str.replace_all(_MINUS, "-").str.replace_all("\u2019", "'")
    given = texts
    if form.unit:
        texts = texts.str.replace(form.unit, "", literal=True)
    if form.unit == "%":
        unsigned = ~given.str.contains("%|^\\s*[+-]?0+(?:[.,]0*)?\\s*$").fill_null(False)
        texts = texts.set(unsigned, None)
    texts = texts.str.replace(r"^\s*\((.+)\)\s*$", "-${1}").str.replace_all(r"^\s+|\s+$", "")
    texts = texts.str.replace(r"^([+-])\s+", "${1}")
    fits = texts.str.contains(form.pattern)
    if form.thousands:
        texts = texts.str.replace_all(form.thousands, "", literal=True)
    if form.decimal != ".":
        texts = texts.str.replace(form.decimal, ".", literal=True)
    return texts.cast(pl.Float64, strict=False).set(~fits.fill_null(False), None)


def find_form(texts: Any, *, commas: bool = False) -> NumberForm:
    """Return the format that reads most of the texts, the first of several: points before commas by default.

    Args:
        texts: of a column, without nulls.
        commas: whether other columns have decimal commas, so that 1,234 is a little more than one.

    Example:
        >>> find_form(pl.Series(["1.234,50 €", "12,00 €"]))
        NumberForm(decimal=',', thousands='.', unit='€')
    """
    if not commas and not texts.cast(pl.Float64, strict=False).null_count():  # nearly always, and quick
        return PLAIN
    unit = _unit(texts)
    forms = [NumberForm(*marks, unit) for marks in ((*_COMMAS, *_POINTS) if commas else (*_POINTS, *_COMMAS))]
    best, fewest = forms[0], len(texts) + 1
    for form in forms:
        n_failed = int(_parsed(texts, form).null_count())
        if n_failed < fewest:
            best, fewest = form, n_failed
        if not fewest:
            break
    return _in_whole_thousands(texts, best) if _CURRENCIES.fullmatch(unit) else best


def _in_whole_thousands(texts: Any, form: NumberForm) -> NumberForm:
    """Return the format of amounts: no currency has three decimals, so € 1.000 is a thousand."""
    if form.thousands:
        return form
    mark = re.escape(form.decimal)
    with_mark = texts.filter(texts.str.contains(rf"\d{mark}\d"))
    if not len(with_mark) or not with_mark.str.contains(rf"^\D*[1-9]\d{{0,2}}(?:{mark}\d{{3}})+\D*$").all():
        return form
    other = NumberForm("," if form.decimal == "." else ".", form.decimal, form.unit)
    return other if _parsed(texts, other).null_count() <= _parsed(texts, form).null_count() else form


def _unit(texts: Any) -> str:
    """Return the common unit of the texts, empty for none."""
    rest = texts.str.replace_all(_SPACES, " ").str.replace(_CORE, " ").str.replace_all(rf"[{_SIGNS}()]", "")
    rest = rest.str.strip_chars()
    counts = rest.filter(rest != "").alias("unit").value_counts(sort=True, name="n")
    if not counts.height:
        return ""
    unit, n_cells = counts.row(0)
    if len(unit) > _LONGEST_UNIT or re.search(r"\d", unit):
        return ""
    if unit == "%":  # 0.45 and 45% are the same or a hundredfold apart: the rarer way of writing is something else
        return unit if 2 * n_cells >= len(texts) else ""
    if _CURRENCIES.fullmatch(unit):
        return str(unit)
    begins = texts.str.contains(rf"^[{_SIGNS}(]*\s*\d").mean()
    return str(unit) if n_cells >= _SHARE_WITH_UNIT * len(texts) and begins >= _SHARE_WITH_UNIT else ""


def has_decimal_commas(frame: Any, *, semicolons: bool = False) -> bool:
    """Return whether a column of text holds numbers that can only be read with decimal commas.

    Where semicolons separate the fields, 1,234 is one of them.
    """
    for series in frame:
        if series.dtype != pl.String:
            continue
        texts = series.head(_SAMPLE).drop_nulls().str.strip_chars()
        texts = texts.filter(texts.str.contains(r"\d?,\d") & ~texts.is_in(list(MISSING)))
        if not len(texts):
            continue
        form = find_form(texts, commas=semicolons)
        if form.decimal == "," and not _parsed(texts, form).null_count():
            return True
    return False
