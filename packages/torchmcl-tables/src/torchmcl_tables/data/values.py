"""Parsing of cells as text, numbers and dates: missing values and formats."""

import re
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
# Number of cells used to detect the unit and the decimal separator of a column.
_SAMPLE = 1000
# A column in which fewer cells are numbers says nothing about the decimal separator of the table.
_HALF = 0.5
# Thousands are separated by the other mark (in India also by hundreds), by blanks or by apostrophes.
_THOUSANDS = {".": r"(?:,\d{2,3})*,\d{3}", ",": r"(?:\.\d{3})+"}


def read_numbers(series: Any, unit: str = "", decimal: str = ".") -> tuple[Any, Any]:
    """Parse a column as numbers, null if missing, and return a mask of the cells that are not numbers.

    Infinite numbers, and numbers beyond 1e100, whose squares may overflow, do not count as numbers.

    Args:
        series: Column of numbers or of text.
        unit: Text before or after the digits, which is removed: a currency, "%" or a unit of measurement.
        decimal: Decimal separator of texts, "." or ",".
    """
    if series.dtype == pl.Duration:
        series = series.dt.total_microseconds() / 1e6
    if series.dtype == pl.Boolean or series.dtype.is_numeric():
        values = series.cast(pl.Float64).fill_nan(None)
        failed = too_large(values)
        if not _may_be_omitted(unit):  # 0.45 without a percent sign may mean 45 %
            failed = (values != 0).fill_null(False)
        return (values.set(failed, None) if failed.any() else values), failed
    if series.dtype != pl.String:
        series = series.cast(pl.String)
    is_plain = not unit and decimal == "."  # most cells are then read without regular expressions
    values = (series if is_plain else pl.repeat(None, len(series), eager=True)).cast(pl.Float64, strict=False)
    failed = values.is_null() & series.is_not_null()
    if failed.any():
        texts = texts_of(series.filter(failed))
        parsed = _parsed(texts, unit, decimal)
        values = values.scatter(failed.arg_true(), parsed)
        failed = failed.scatter(failed.arg_true(), parsed.is_null() & texts.is_not_null())
    values = values.fill_nan(None)
    infinite = too_large(values)
    return (values.set(infinite, None), failed | infinite) if infinite.any() else (values, failed)


def _may_be_omitted(unit: str) -> bool:
    """Return whether numbers without the unit have it too; 950 among 1.2k is another unit."""
    return not unit or bool(_CURRENCIES.fullmatch(unit))


def too_large(values: Any) -> Any:
    """Return a mask of numbers that are infinite or too large for training."""
    return (values.abs() > _LARGEST).fill_null(False)


def _parsed(texts: Any, unit: str, decimal: str) -> Any:
    """Parse texts as numbers, null for other texts."""
    texts = texts.str.replace_all(_SPACES, " ").str.replace_all(_MINUS, "-").str.replace_all("\u2019", "'")
    with_unit = texts
    if unit:
        texts = texts.str.replace(unit, "", literal=True)
    if not _may_be_omitted(unit):
        has_unit = with_unit.str.contains(rf"{re.escape(unit)}|^\s*[+-]?0+(?:[.,]0*)?\s*$").fill_null(False)
        texts = texts.set(~has_unit, None)
    texts = texts.str.replace(r"^\s*\((.+)\)\s*$", "-${1}").str.replace_all(r"^\s+|\s+$", "")
    texts = texts.str.replace(r"^([+-])\s+", "${1}")
    mark = re.escape(decimal)
    whole = rf"\d+|[1-9]\d{{0,2}}(?:{_THOUSANDS[decimal]}|(?: \d{{3}})+|(?:'\d{{3}})+)"
    fits = texts.str.contains(rf"^[+-]?(?:(?:{whole})(?:{mark}\d*)?|{mark}\d+)(?:[eE][+-]?\d{{1,4}})?$")
    texts = texts.str.replace_all("[ '.]" if decimal == "," else "[ ',]", "").str.replace(",", ".", literal=True)
    return texts.cast(pl.Float64, strict=False).set(~fits.fill_null(False), None)


def decimal_evidence(series: Any) -> dict[str, str]:
    """Return a cell that requires a decimal point, by ".", one that requires a decimal comma, and by "" any other one.

    The last may have either: 1.234 is a little more than one, or more than a thousand. Amounts of money have no points
    before three decimals. A column of text or dates has no such cells.

    Example:
        >>> decimal_evidence(pl.Series(["2.50", "1.234", "7"])), decimal_evidence(pl.Series(["1.234,5", "1.234.567"]))
        ({'.': '2.50', '': '1.234'}, {',': '1.234,5'})
    """
    texts = texts_of(series).drop_nulls()
    marked = texts.filter(texts.str.contains("[.,]"))
    sample = texts.gather_every(max(1, len(texts) // _SAMPLE))
    if not len(marked) or date_formats(series):
        return {}
    unit = find_unit(sample)
    either = _parsed(sample, unit, ".").is_not_null() | _parsed(sample, unit, ",").is_not_null()
    if either.mean() < _HALF:
        return {}
    only_points = not texts.cast(pl.Float64, strict=False).null_count()
    cells: dict[str, str] = {}
    for part in (marked.head(_SAMPLE), marked):
        point, comma = (_parsed(part, unit, mark).is_not_null() for mark in ".,")
        masks = {".": point & ~comma, ",": comma & ~point, "": point & comma}
        cells = {mark: part[mask.arg_max()] for mark, mask in masks.items() if mask.any()}
        if only_points and "." in cells:  # the usual case: no other cell can require a comma
            break
    if _CURRENCIES.fullmatch(unit) and "." in cells.get("", "") and len(cells) == 1:
        return {",": cells[""]}
    return cells


def find_unit(texts: Any) -> str:
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


# Parts of a date in this order; "days" is the number of days since 1970, with the time of day as a fraction.
PARTS = ("year", "month", "weekday", "hour", "days")
ISO = "%Y-%m-%d"
TIME_OF_DAY, _QUARTERS = "%H:%M", "%YQ%q"
# Formats without a day or minutes: texts before and after the cell, and the complete format.
_COMPLETED = {
    TIME_OF_DAY: ("1970-01-01 ", "", ISO),
    **{form: ("", form[2] + "01", f"{form}{form[2]}%d") for form in ("%Y-%m", "%Y/%m", "%Y.%m")},
    **{form: (f"01{form[2]}", "", f"%d{form[2]}{form}") for form in ("%m.%Y", "%m/%Y", "%b-%y", "%b-%Y")},
    **{form: ("01 ", "", f"%d {form}") for form in ("%b %Y", "%B %Y")},
    "%Y%m": ("", "01", "%Y%m%d"),
    "%Y%m%d%H": ("", "00", "%Y%m%d%H%M"),
    "%G-W%V": ("", "-1", "%G-W%V-%u"),
    _QUARTERS: ("", "", ISO),
}
# Formats of the day.
_FORMATS = (
    *(ISO, "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y"),
    *("%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
    *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%b-%y", *_COMPLETED, "%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S"),
)
# Regular expressions for the beginning of a cell in each format, to try few formats.
_SHAPES = {"Y": r"\d{4}", "G": r"\d{4}", "b": r"[^\W\d]+", "B": r"[^\W\d]+"}
_BEGINNINGS = {
    form: re.compile(re.sub("%(.)", lambda found: _SHAPES.get(found[1], r"\d{1,2}"), re.escape(form)))
    for form in _FORMATS
} | {_QUARTERS: re.compile(r"\d{4}\W?Q|Q\d")}
#: Formats in which the month may also be the day. With decimal commas, the day comes first.
DAY_FIRST = {"%m/%d/%Y": "%d/%m/%Y", "%m/%d/%y": "%d/%m/%y", "%m-%d-%Y": "%d-%m-%Y"}
# Numbers that are dates if nearly all cells look like this: 20241231 (with a time of day or not), 202412, 2024.12.
_NUMBERS = r"^(?:19|20)\d\d\.?(?:0[1-9]|1[0-2])$|^(?:0[1-9]|1[0-2])\.(?:19|20)\d\d$|^(?:19|20)\d{6}(?:\d\d){0,3}$"
_CLOCKS = ("", " %H:%M:%S%.f", " %H:%M", " %I:%M:%S %p", " %I:%M %p")
# Years must have four digits: %Y would read 24 as the year 24.
_FIRST_YEAR, _LAST_YEAR = 1000, 9999
_DATE_SAMPLE = 200
_LIKE_DATES = (
    r"(?i)^\d{1,4}[-/.: ]\s?\w|^(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w*[ -]\d|^\d{4}Q|^Q[1-4]\W?\d|"
    + _NUMBERS
)
_NEARLY_ALL = 0.9


_ZONE = r":\d\d(?:\.\d+)?\s?([+-]\d\d:\d\d)$"


def with_offsets(texts: Any) -> Any:
    """Write all offsets of times from UTC as +00:00."""
    return texts.str.replace(r"\s*(?:Z|UTC|GMT)$", "+00:00").str.replace(r"(:\S*\s?[+-]\d\d)(\d\d)$", "${1}:${2}")


def find_zone(series: Any) -> str:
    """Return the time zone of a column of dates: a name, or the most common offset from UTC in texts; "" for none."""
    if series.dtype != pl.String:
        return str(getattr(series.dtype, "time_zone", None) or "")
    offsets = with_offsets(texts_of(series.head(_SAMPLE)).drop_nulls()).str.extract(_ZONE)
    return str(offsets.fill_null("").alias("zone").value_counts(sort=True)["zone"][0]) if len(offsets) else ""


def read_dates(series: Any, form: str, zone: str = "") -> tuple[Any, Any]:
    """Parse a column as dates with times, null if missing, and return a mask of the cells that are not dates.

    Args:
        series: Column of dates or of text.
        form: Format of the day in `strptime` notation; a time of day and a time zone may follow.
        zone: Time zone, or offset from UTC, of the returned times. Cells without a time zone do not count as dates; if
            it is empty, neither do cells with one.
    """
    dtype = series.dtype
    if dtype == pl.Date:
        series, dtype = series.cast(pl.Datetime("us")), pl.Datetime("us")
    if dtype == pl.Time:
        days = pl.DataFrame({"t": series}).select(
            pl.lit(np.datetime64("1970-01-01")).cast(pl.Date).dt.combine(pl.col("t"))
        )
        return days.to_series().alias(series.name), series.is_null() & False
    if isinstance(dtype, pl.Datetime):
        if bool(zone) != bool(dtype.time_zone):
            return pl.Series(series.name, [None] * len(series), dtype=pl.Datetime("us")), series.is_not_null()
        plain = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else series
        return _in_zone(plain.cast(pl.Datetime("us")), zone), series.is_null() & False
    texts = texts_of(series.cast(pl.Int64, strict=False) if dtype.is_float() else series)
    texts = with_offsets(texts)
    dates = _in_zone(_parsed_dates(texts, form), zone)
    dates = dates.set(texts.str.contains(_ZONE) != bool(zone), None)
    return dates, dates.is_null() & texts.is_not_null()


def _in_zone(dates: Any, zone: str) -> Any:
    """Convert times in UTC to a time zone or offset."""
    if re.fullmatch(r"[+-]\d\d:\d\d", zone):
        minutes = int(zone[1:3]) * 60 + int(zone[4:])
        return dates.dt.offset_by(f"{zone[0].strip('+')}{minutes}m")
    return dates.dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.replace_time_zone(None) if zone else dates


def _parsed_dates(texts: Any, form: str) -> Any:
    """Parse texts as dates without a time zone (in UTC if they name one), null if the format does not match."""
    texts = with_offsets(texts.str.replace(r"(\d)T(\d)", "${1} ${2}"))
    if form == _QUARTERS:
        texts = texts.str.replace(r"^Q([1-4])\W?(\d{4})$", "${2}Q${1}")
        for quarter, month in enumerate(("01", "04", "07", "10"), start=1):
            texts = texts.str.replace(rf"^(\d{{4}})\W?Q{quarter}$", f"${{1}}-{month}-01")
    before, after, form = _COMPLETED.get(form, ("", "", form))
    texts = before + texts + after
    zoned = texts.str.contains(_ZONE).fill_null(False)
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


def date_formats(series: Any, *, chosen: bool = False) -> list[str]:
    """Return the formats that parse nearly all of a sample of the cells; empty if the cells are not dates.

    Numbers are dates if they are written as 20240403, 202404 or 2024.04.

    Args:
        series: Column of dates or of text.
        chosen: Whether the user declared the column as dates.
    """
    dtype = series.dtype
    if dtype.is_temporal() and dtype != pl.Duration:
        return [TIME_OF_DAY if dtype == pl.Time else ISO]
    if not (dtype == pl.String or dtype.is_integer() or (chosen and dtype.is_float())):
        return []
    cells = (series.cast(pl.Int64, strict=False) if dtype.is_float() else series).drop_nulls()
    sample = texts_of(cells.gather_every(max(1, len(cells) // _DATE_SAMPLE))).drop_nulls()
    if not len(sample) or sample.str.contains(_LIKE_DATES if dtype == pl.String else _NUMBERS).mean() < _NEARLY_ALL:
        return []
    formats = [form for form in _FORMATS if any(map(_BEGINNINGS[form].match, sample))]
    return [form for form in formats if _parsed_dates(sample, form).null_count() <= (1 - _NEARLY_ALL) * len(sample)]


def are_numbers(texts: Any) -> bool:
    """Return whether texts that were read as dates may also be read as numbers."""
    return bool(texts.str.contains(_NUMBERS).mean() >= _NEARLY_ALL)


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
