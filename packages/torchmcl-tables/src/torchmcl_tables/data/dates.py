"""Dates and times in common notations, and numbers from them for a network."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl_tables.data.texts import texts_of

__all__ = ["ISO", "PARTS", "TIME_OF_DAY", "date_formats", "date_parts", "moment_text", "read_dates"]

# Numbers of a date, in this order; "days" is the time since 1970, with the time of day as a fraction.
PARTS = ("year", "month", "weekday", "hour", "days")
ISO = "%Y-%m-%d"
TIME_OF_DAY, _MONTHS, _DIGITS = "%H:%M", "%Y-%m", "%Y%m%d"
# Formats of the day. Where two fit, the first is taken: 03/04/2024 is in March, or in April with decimal commas.
_FORMATS = (
    *(ISO, "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
    *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%b-%y", TIME_OF_DAY, _MONTHS),
)
_DAY_FIRST = {"%m/%d/%Y": "%d/%m/%Y", "%m/%d/%y": "%d/%m/%y"}
_CLOCKS = ("", " %H:%M:%S%.f", " %H:%M", " %I:%M:%S %p", " %I:%M %p")
# The years of a format with four digits: %Y reads 24 as the year 24.
_FIRST_YEAR, _LAST_YEAR = 1000, 9999
_SAMPLE = 200
_LIKE_DATES = r"(?i)^\d{1,4}[-/.: ]\s?\w|^(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w* \d"
_NEARLY_ALL = 0.9


def read_dates(series: Any, form: str) -> tuple[Any, Any]:
    """Return a column as dates with times, null for missing ones, and a mask of other cells.

    Args:
        series: of dates, or of text.
        form: of the day as `strptime` writes it; a time of day, and a time zone, may follow.
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
    dates = _parsed(texts, form)
    return dates, dates.is_null() & texts.is_not_null()


def _parsed(texts: Any, form: str) -> Any:
    """Return texts as dates without a time zone (in UTC if they name one), null if the format does not fit."""
    texts = texts.str.replace(r"(\d)T(\d)", "${1} ${2}").str.replace(r"\s*(?:Z|UTC|GMT)$", "+00:00")
    if form == TIME_OF_DAY:
        texts, form = "1970-01-01 " + texts, ISO
    elif form == _MONTHS:
        texts, form = texts.str.replace(r"^(\d{4}-\d{2})$", "${1}-01"), ISO
    zoned = texts.str.contains(r":\d\d(?:\.\d+)?\s?[+-]\d\d:?\d\d$").fill_null(False)
    found = pl.Series(texts.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(texts))
    for zone in ("", "%z"):
        part = texts.set(~zoned if zone else zoned, None) if zoned.any() else texts
        for clock in _CLOCKS if zoned.sum() < len(texts) or zone else ():
            if zone and not (clock and zoned.any()):
                continue
            left = part.is_not_null() & found.is_null()
            if not left.any():
                break
            dates = part.str.to_datetime(form + clock + zone, strict=False, exact=True, time_unit="us")
            if zone:
                dates = dates.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
            found = found.zip_with(found.is_not_null(), dates)
    if "%Y" in form:
        years = found.dt.year()
        found = found.set(((years < _FIRST_YEAR) | (years > _LAST_YEAR)).fill_null(False), None)
    return found


def date_formats(series: Any, *, day_first: bool = False, chosen: bool = False) -> list[str]:
    """Return the formats that read nearly all of some cells of a column, none if they are not dates.

    Args:
        series: of dates, or of text.
        day_first: whether 03/04/2024 is in April.
        chosen: whether the user takes these for dates: 20240403 is one then.
    """
    if series.dtype.is_temporal() and series.dtype != pl.Duration:
        return [TIME_OF_DAY if series.dtype == pl.Time else ISO]
    if series.dtype != pl.String and not (chosen and series.dtype.is_numeric()):
        return []
    cells = (series.cast(pl.Int64, strict=False) if series.dtype.is_float() else series).drop_nulls()
    sample = texts_of(cells.gather_every(max(1, len(cells) // _SAMPLE))).drop_nulls()
    if chosen and len(sample) and sample.str.contains(r"^\d{8}$").mean() >= _NEARLY_ALL:
        return [_DIGITS]
    if not len(sample) or sample.str.contains(_LIKE_DATES).mean() < _NEARLY_ALL:
        return []
    formats = dict.fromkeys(_DAY_FIRST.get(form, form) if day_first else form for form in _FORMATS)
    return [form for form in formats if _parsed(sample, form).null_count() <= (1 - _NEARLY_ALL) * len(sample)]


def date_parts(dates: Any, parts: tuple[str, ...]) -> NDArray[np.float64]:
    """Return [rows, parts], NaN for missing dates."""
    read = {
        "year": lambda: dates.dt.year(),
        "month": lambda: dates.dt.month(),
        "weekday": lambda: dates.dt.weekday(),
        "hour": lambda: dates.dt.hour(),
        "days": lambda: dates.dt.timestamp("us") / 86_400e6,
    }
    made = np.empty((len(dates), len(parts)), order="F")
    for place, part in enumerate(parts):
        made[:, place] = read[part]().cast(pl.Float64).to_numpy()
    return made


def moment_text(days: float) -> str:
    """Return a number of days since 1970 as a date, with the time of day if there is one.

    Example:
        >>> moment_text(19723.0), moment_text(19723.5)
        ('2024-01-01', '2024-01-01 12:00:00')
    """
    moment = np.datetime64("1970-01-01T00:00:00") + np.timedelta64(round(days * 86_400), "s")
    return str(moment).replace("T", " ").removesuffix(" 00:00:00")
