"""Parsing of cells as text, numbers and dates: missing values and formats."""

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

# Texts that represent a missing value in pandas, in spreadsheets and in files of statistical offices.
MISSING = (
    *("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "?"),
    *("-", "--", ".", "..", "#DIV/0!", "#VALUE!", "#REF!", "NaT"),
)
# Number in the usual notation of programs, without leading zeros.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
# Beyond this number of digits, scientific notation is shorter.
_PLAIN_DIGITS = 30


def texts_of(series: Any) -> Any:
    """Convert a column to text without surrounding blanks; missing cells become null."""
    if series.dtype == pl.Duration:
        series = series.dt.total_microseconds()
    texts = series.str.strip_chars() if series.dtype == pl.String else series.cast(pl.String)
    return texts.set(texts.is_in(list(MISSING)).fill_null(False), None)


def with_plain_numbers(texts: Any) -> Any:
    """Replace numbers in texts by a uniform notation: 3 for 3.0, 1000 for 1e3."""
    known = texts.drop_nulls().unique().to_list()
    plain = {text: plain_number(text) for text in known if NUMBER.fullmatch(text)}
    return texts.replace({text: number for text, number in plain.items() if text != number})


def plain_number(text: str) -> str:
    """Return the shortest plain text that represents a number exactly.

    Example:
        >>> [plain_number(text) for text in ("3.0", "+3", "1e3", "-0.0", "2.50", "1e-99")]
        ['3', '3', '1000', '0', '2.5', '1E-99']
    """
    number = Decimal(text).normalize(Context(prec=len(text) + 1))
    if number == 0:
        return "0"
    return f"{number:f}" if abs(number.adjusted()) <= _PLAIN_DIGITS else str(number)


def short(text: object) -> str:
    """Return a cell for an error message: quoted, and truncated if long."""
    shown = str(text)
    return repr(shown if len(shown) <= 40 else shown[:37] + "...")


_CURRENCIES = re.compile(
    r"(?:US|CA|AU|NZ|HK|R|A|C)?\$|[€£¥₹₩₽₺฿₫₪₴]|Rs\.?|kr\.?|zł|Kč|Ft|USD|EUR|GBP|JPY|CHF|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL"
)
# Spaces inside numbers: no-break, narrow no-break and thin spaces are replaced by plain spaces.
_SPACES, _MINUS = "[\u00a0\u202f\u2009]", "[\u2212\u2013]"
_SIGNS = "+\\-\u2212\u2013"
_CORE = r"\d[\d.,'\u2019 ]*(?:[eE][+-]?\d{1,4})?"
_LONGEST_UNIT = 8
# A unit other than a currency must occur in this fraction of the cells: otherwise the texts are names with a common
# ending.
_FRACTION_WITH_UNIT = 0.9
_LARGEST = 1e100
# Number of cells used to detect the number format of a table.
_SAMPLE = 1000
_POINTS = ((".", ""), (".", ","), (".", " "), (".", "'"))
_COMMAS = ((",", ""), (",", "."), (",", " "), (",", "'"))


@dataclass(frozen=True)
class NumberForm:
    """Number format of a column.

    Attributes:
        decimal: Decimal separator.
        thousands: Thousands separator; empty for none.
        unit: Text before or after the digits, which is removed: a currency, "%" or a unit of measurement.
    """

    decimal: str = "."
    thousands: str = ""
    unit: str = ""

    @property
    def pattern(self) -> str:
        """Regular expression of a number without its unit."""
        point, group = re.escape(self.decimal), re.escape(self.thousands)
        exponent = r"(?:[eE][+-]?\d{1,4})?"
        if not self.thousands:
            return rf"^[+-]?(?:\d+(?:{point}\d*)?|{point}\d+){exponent}$"
        within = r"\d{2,3}" if self.thousands == "," else r"\d{3}"  # Indian grouping: 12,34,567
        return rf"^[+-]?(?:[1-9]\d{{0,2}}(?:{group}{within})*{group}\d{{3}}|\d+)(?:{point}\d*)?{exponent}$"

    def __str__(self) -> str:
        """Describe the format; empty for plain numbers."""
        words = [f"in {self.unit}"] * bool(self.unit) + ["with decimal commas"] * (self.decimal == ",")
        marks = {" ": "blanks", "'": "apostrophes", ",": "commas", ".": "points"}
        words += [f"with {marks[self.thousands]} between thousands"] if self.thousands else []
        return " ".join(words)


#: The usual number format of programs.
PLAIN = NumberForm()


def read_numbers(series: Any, form: NumberForm) -> tuple[Any, Any]:
    """Parse a column as numbers, null if missing, and return a mask of the cells that are not numbers.

    Infinite numbers, and numbers beyond 1e100, whose squares may overflow, do not count as numbers.
    """
    if series.dtype == pl.Duration:
        series = series.dt.total_microseconds() / 1e6
    if series.dtype == pl.Boolean or series.dtype.is_numeric():
        values = series.cast(pl.Float64).fill_nan(None)
        failed = too_large(values)
        if form.unit == "%":  # 0.45 without a percent sign may mean 45 %
            failed = (values != 0).fill_null(False)
        return (values.set(failed, None) if failed.any() else values), failed
    if series.dtype != pl.String:
        series = series.cast(pl.String)
    values = _parsed(series, form)
    failed = values.is_null() & series.is_not_null()
    if failed.any():  # blanks are stripped only if necessary, to save time
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
    """Parse texts as numbers, null if the format does not match."""
    if form == PLAIN:
        return texts.cast(pl.Float64, strict=False)
    texts = texts.str.replace_all(_SPACES, " ").str.replace_all(_MINUS, "-").str.replace_all("\u2019", "'")
    with_unit = texts
    if form.unit:
        texts = texts.str.replace(form.unit, "", literal=True)
    if form.unit == "%":
        unsigned = ~with_unit.str.contains("%|^\\s*[+-]?0+(?:[.,]0*)?\\s*$").fill_null(False)
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
    """Return the format that parses the most texts; in a tie, the first format (by default with decimal points).

    Args:
        texts: Texts of a column, without nulls.
        commas: Whether other columns have decimal commas, so that 1,234 is a little more than one.

    Example:
        >>> find_form(pl.Series(["1.234,50 €", "12,00 €"]))
        NumberForm(decimal=',', thousands='.', unit='€')
    """
    if not commas and not texts.cast(pl.Float64, strict=False).null_count():  # fast path for the usual case
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
    """Correct the format of amounts of money: they do not have three decimals, so € 1.000 is a thousand."""
    if form.thousands:
        return form
    mark = re.escape(form.decimal)
    with_mark = texts.filter(texts.str.contains(rf"\d{mark}\d"))
    if not len(with_mark) or not with_mark.str.contains(rf"^\D*[1-9]\d{{0,2}}(?:{mark}\d{{3}})+\D*$").all():
        return form
    other = NumberForm("," if form.decimal == "." else ".", form.decimal, form.unit)
    return other if _parsed(texts, other).null_count() <= _parsed(texts, form).null_count() else form


def _unit(texts: Any) -> str:
    """Return the unit that the texts have in common; empty if there is none."""
    rest = texts.str.replace_all(_SPACES, " ").str.replace(_CORE, " ").str.replace_all(rf"[{_SIGNS}()]", "")
    rest = rest.str.strip_chars()
    counts = rest.filter(rest != "").alias("unit").value_counts(sort=True, name="n")
    if not counts.height:
        return ""
    unit, n_cells = counts.row(0)
    if len(unit) > _LONGEST_UNIT or re.search(r"\d", unit):
        return ""
    if unit == "%":  # 0.45 may mean 45% or 0.45%: the rarer notation does not count as a number
        return unit if 2 * n_cells >= len(texts) else ""
    if _CURRENCIES.fullmatch(unit):
        return str(unit)
    begins = texts.str.contains(rf"^[{_SIGNS}(]*\s*\d").mean()
    return str(unit) if n_cells >= _FRACTION_WITH_UNIT * len(texts) and begins >= _FRACTION_WITH_UNIT else ""


def has_decimal_commas(frame: Any, *, semicolons: bool = False) -> bool:
    """Return whether a text column contains numbers that require decimal commas.

    If semicolons separate the fields, 1,234 counts as a number with a decimal comma.
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


# Parts of a date in this order; "days" is the number of days since 1970, with the time of day as a fraction.
PARTS = ("year", "month", "weekday", "hour", "days")
ISO = "%Y-%m-%d"
TIME_OF_DAY, _MONTHS, _DIGITS = "%H:%M", "%Y-%m", "%Y%m%d"
# Formats of the day. If two formats fit, the first is used: 03/04/2024 is in March, or in April with decimal commas.
_FORMATS = (
    *(ISO, "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
    *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%b-%y", TIME_OF_DAY, _MONTHS),
)
_DAY_FIRST = {"%m/%d/%Y": "%d/%m/%Y", "%m/%d/%y": "%d/%m/%y"}
_CLOCKS = ("", " %H:%M:%S%.f", " %H:%M", " %I:%M:%S %p", " %I:%M %p")
# Years must have four digits: %Y would read 24 as the year 24.
_FIRST_YEAR, _LAST_YEAR = 1000, 9999
_DATE_SAMPLE = 200
_LIKE_DATES = r"(?i)^\d{1,4}[-/.: ]\s?\w|^(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w* \d"
_NEARLY_ALL = 0.9


def read_dates(series: Any, form: str) -> tuple[Any, Any]:
    """Parse a column as dates with times, null if missing, and return a mask of the cells that are not dates.

    Args:
        series: Column of dates or of text.
        form: Format of the day in `strptime` notation; a time of day and a time zone may follow.
    """
    dtype = series.dtype
    if dtype == pl.Date:
        return series.cast(pl.Datetime("us")), series.is_null() & False
    if dtype == pl.Time:
        days = pl.DataFrame({"t": series}).select(
            pl.lit(np.datetime64("1970-01-01")).cast(pl.Date).dt.combine(pl.col("t"))
        )
        return days.to_series().alias(series.name), series.is_null() & False
    if isinstance(dtype, pl.Datetime):
        plain = series if dtype.time_zone is None else series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return plain.cast(pl.Datetime("us")), series.is_null() & False
    texts = texts_of(series.cast(pl.Int64, strict=False) if dtype.is_float() else series)
    dates = _parsed_dates(texts, form)
    return dates, dates.is_null() & texts.is_not_null()


def _parsed_dates(texts: Any, form: str) -> Any:
    """Parse texts as dates without a time zone (in UTC if they name one), null if the format does not match."""
    texts = texts.str.replace(r"(\d)T(\d)", "${1} ${2}").str.replace(r"\s*(?:Z|UTC|GMT)$", "+00:00")
    if form == TIME_OF_DAY:
        texts, form = "1970-01-01 " + texts, ISO
    elif form == _MONTHS:
        texts, form = texts.str.replace(r"^(\d{4}-\d{2})$", "${1}-01"), ISO
    zoned = texts.str.contains(r":\d\d(?:\.\d+)?\s?[+-]\d\d:?\d\d$").fill_null(False)
    parsed = pl.Series(texts.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(texts))
    for zone in ("", "%z"):
        part = texts.set(~zoned if zone else zoned, None) if zoned.any() else texts
        for clock in _CLOCKS if zoned.sum() < len(texts) or zone else ():
            if zone and not (clock and zoned.any()):
                continue
            left = part.is_not_null() & parsed.is_null()
            if not left.any():
                break
            dates = part.str.to_datetime(form + clock + zone, strict=False, exact=True, time_unit="us")
            if zone:
                dates = dates.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
            parsed = parsed.zip_with(parsed.is_not_null(), dates)
    if "%Y" in form:
        years = parsed.dt.year()
        parsed = parsed.set(((years < _FIRST_YEAR) | (years > _LAST_YEAR)).fill_null(False), None)
    return parsed


def date_formats(series: Any, *, day_first: bool = False, chosen: bool = False) -> list[str]:
    """Return the formats that parse nearly all of a sample of the cells; empty if the cells are not dates.

    Args:
        series: Column of dates or of text.
        day_first: Whether 03/04/2024 is in April.
        chosen: Whether the user declared the column as dates; 20240403 is then a date.
    """
    if series.dtype.is_temporal() and series.dtype != pl.Duration:
        return [TIME_OF_DAY if series.dtype == pl.Time else ISO]
    if series.dtype != pl.String and not (chosen and series.dtype.is_numeric()):
        return []
    cells = (series.cast(pl.Int64, strict=False) if series.dtype.is_float() else series).drop_nulls()
    sample = texts_of(cells.gather_every(max(1, len(cells) // _DATE_SAMPLE))).drop_nulls()
    if chosen and len(sample) and sample.str.contains(r"^\d{8}$").mean() >= _NEARLY_ALL:
        return [_DIGITS]
    if not len(sample) or sample.str.contains(_LIKE_DATES).mean() < _NEARLY_ALL:
        return []
    formats = dict.fromkeys(_DAY_FIRST.get(form, form) if day_first else form for form in _FORMATS)
    return [form for form in formats if _parsed_dates(sample, form).null_count() <= (1 - _NEARLY_ALL) * len(sample)]


def date_parts(dates: Any, parts: tuple[str, ...]) -> NDArray[np.float64]:
    """Compute the parts of dates, [rows, parts]; NaN for missing dates."""
    read = {
        "year": lambda: dates.dt.year(),
        "month": lambda: dates.dt.month(),
        "weekday": lambda: dates.dt.weekday(),
        "hour": lambda: dates.dt.hour(),
        "days": lambda: dates.dt.timestamp("us") / 86_400e6,
    }
    values = np.empty((len(dates), len(parts)), order="F")
    for place, part in enumerate(parts):
        values[:, place] = read[part]().cast(pl.Float64).to_numpy()
    return values


def moment_text(days: float) -> str:
    """Format a number of days since 1970 as a date, with the time of day if it is not midnight.

    Example:
        >>> moment_text(19723.0), moment_text(19723.5)
        ('2024-01-01', '2024-01-01 12:00:00')
    """
    moment = np.datetime64("1970-01-01T00:00:00") + np.timedelta64(round(days * 86_400), "s")
    return str(moment).replace("T", " ").removesuffix(" 00:00:00")
