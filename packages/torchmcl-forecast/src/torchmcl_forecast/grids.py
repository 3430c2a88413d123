"""Regular time grids: positions of times on a grid, and times before and after the end of a series."""

import math
import re
import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torchmcl import checks
from torchmcl.errors import bad_value

__all__ = ["Grid", "find_grid", "parsed_times"]

_DAY = 86_400 * 10**9  # nanoseconds
_SHORTEST_MONTH = 28 * _DAY
# Day of the month that stands for the last working day.
_LAST_WORKDAY = 0
_MONDAY_TO_FRIDAY = "1111100"
# If there are at least `_ENOUGH_DATES` dates, a weekday without dates counts as closed. A weekday also counts as closed
# if, in every series with at least `_LEAST_DATES` dates, it has less than `_RARE` times the dates of the most frequent
# weekday, unless it is usual among the last dates: special openings are exceptions that no season explains.
_ENOUGH_DATES, _RARE, _LEAST_DATES = 28, 0.1, 7
# Zones with daylight saving time. Two times of day in UTC, such as 22:00 and 23:00, may be one in one of them.
_ZONES = (
    *("Europe/Berlin", "Europe/London", "Europe/Athens", "Atlantic/Azores", "Asia/Jerusalem", "Asia/Beirut"),
    *("America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles", "America/Anchorage"),
    *("America/Halifax", "America/St_Johns", "America/Havana", "America/Santiago", "Africa/Cairo", "Africa/Casablanca"),
    *("Australia/Sydney", "Australia/Adelaide", "Pacific/Auckland"),
)
# Dates such as 31.12.2024, 12/31/2024 or 31-12-24, in which the day may be the first or the second number.
_YEAR_LAST = re.compile(r"\s*\d{1,2}([./-])\d{1,2}\1\d{2,4}\b")


@dataclass(frozen=True)
class Grid(checks.Value):
    """Regular grid of times.

    Attributes:
        kind: Type of the steps: "number", "time" (a fixed duration), "business" (the open days of a week) or "month".
        step: Step size: a number, a duration in nanoseconds, or a number of months; 1 for business days.
        day: Day of the month, replaced by the last day in shorter months; 0 for the last working day.
        zone: Time zone of dates in output, or "".
        wall: Whether steps are in local time of the zone, in which a day may have 23 hours.
        week: Open weekdays of a business week, from Monday: 1 for a weekday with values, 0 for a weekday without.
    """

    kind: Annotated[str, checks.OneOf("number", "time", "business", "month")]
    step: Annotated[float, checks.Bounds(low=0, high=math.inf, open_low=True, open_high=True)]
    day: int = 1
    zone: str = ""
    wall: bool = True
    week: str = _MONDAY_TO_FRIDAY

    @property
    def is_calendar(self) -> bool:
        """Whether times are dates."""
        return self.kind != "number"

    @property
    def per_day(self) -> float:
        """Number of steps per day; below 1 for steps of several days."""
        return {"number": 0.0, "business": 1.0, "month": 1 / (30.4 * self.step)}.get(self.kind, _DAY / self.step)

    def places(self, times: Any) -> NDArray[np.float64]:
        """Return the position of each time in steps; positions on the grid are integers up to a common offset."""
        if self.kind == "number":
            return np.asarray(times, dtype=float) / self.step
        dates = pd.DatetimeIndex(times).as_unit("ns")
        if self.kind == "month":
            on_grid = _months(dates) / self.step
            return np.where(_dates_of(_months(dates), self.day) == dates.normalize(), on_grid, on_grid + 0.5)
        if self.kind == "business":
            days = dates.values.astype("datetime64[D]")
            places = np.busday_count("1970-01-01", days, self.week).astype(float)
            return np.where(self.is_open(dates), places, places + 0.5)
        # Nanoseconds since 1970 exceed the precision of a float.
        return (dates.asi8 // int(self.step)).astype(float) + (dates.asi8 % int(self.step)) / self.step

    def is_open(self, times: Any) -> NDArray[np.bool_]:
        """Return whether each time is on an open weekday; always True except on grids of business days.

        Example:
            >>> Grid("business", 1.0).is_open(np.array(["2024-03-01", "2024-03-02"], "datetime64[ns]"))
            array([ True, False])
        """
        if self.kind != "business":
            return np.ones(len(times), dtype=bool)
        return np.is_busday(pd.DatetimeIndex(times).values.astype("datetime64[D]"), self.week)

    def around(self, last: Any, steps: Any) -> Any:
        """Return the times `steps` after `last`, or before it for negative steps; dates have no time zone.

        Example:
            >>> Grid("number", 2.0).around(10, [-1, 0, 1])
            array([ 8, 10, 12])
            >>> Grid("month", 1, day=31).around(pd.Timestamp("2024-01-31"), [1, 2]).strftime("%d.%m.").tolist()
            ['29.02.', '31.03.']
        """
        count = np.asarray(steps)
        if self.kind == "number":
            times = last + count * self.step
            return times.astype(np.int64) if float(last).is_integer() and float(self.step).is_integer() else times
        last = pd.Timestamp(last).as_unit("ns")
        if self.kind == "time":
            return last + pd.to_timedelta(count * int(self.step), unit="ns")
        if self.kind == "business":
            dates = pd.DatetimeIndex(np.busday_offset(last.date(), count, weekmask=self.week))
        else:
            dates = _dates_of(_months(pd.DatetimeIndex([last])) + count * int(self.step), self.day)
        return dates.as_unit("ns") + (last - last.normalize())

    def after(self, last: Any, n_steps: int) -> Any:
        """Return the `n_steps` times after `last`."""
        return self.around(last, np.arange(1, n_steps + 1))

    def shown(self, times: Any) -> Any:
        """Convert times to their time zone for output."""
        if not self.zone:
            return times
        dates = pd.DatetimeIndex(times)
        if self.wall:  # hours that a zone skips or repeats need a rule
            return dates.tz_localize(self.zone, nonexistent="shift_forward", ambiguous=np.ones(len(dates), bool))
        return dates.tz_localize("UTC").tz_convert(self.zone)


def parsed_times(owner: str, name: str, values: Any, grid: Grid | None = None) -> tuple[NDArray[Any], str, bool]:
    """Parse a column of times as numbers or dates.

    Dates with a time zone are read in local time if all have the same time of day, in their zone or in another one with
    daylight saving time. Otherwise they are read in UTC, in which hours are regular even when clocks change.

    Args:
        owner: Function or command name at the beginning of messages.
        name: Name of the column.
        values: Values of the column.
        grid: Grid that determines the type of the times; any type by default.

    Returns:
        Numbers, or dates without a time zone; the original zone of the dates, or ""; and whether the dates are in local
        time of the zone, not in UTC.

    Raises:
        ValueError: If a time is missing, is neither a number nor a date, or does not have the type of the grid.
    """
    column = pd.Series(values if isinstance(values, (pd.Series, pd.Index)) else np.asarray(values))
    column = column.reset_index(drop=True).infer_objects()
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax())
        raise ValueError(bad_value(owner, name, "have a time in every row", f"none in row {row:,}", "Remove the row."))
    if pd.api.types.is_bool_dtype(column):
        raise ValueError(bad_value(owner, name, "contain numbers or dates", "Boolean values"))
    if grid is None or grid.is_calendar:
        column = _with_compact_dates(owner, name, column)
    numbers = pd.api.types.is_numeric_dtype(column)
    if grid is not None and grid.is_calendar == numbers:
        rule = "contain dates, as in the fit" if numbers else "contain numbers, as in the fit"
        raise ValueError(bad_value(owner, name, rule, str(column.iloc[0])))
    if numbers:
        return column.to_numpy(), "", True
    dates = _as_dates(owner, name, column)
    if grid is not None and bool(grid.zone) != (dates.tz is not None):
        rule = f"have times with a time zone, {grid.zone}, as in the fit" if grid.zone else "have no time zone"
        raise ValueError(bad_value(owner, name, rule, str(dates[0])))
    if dates.tz is None:
        return dates.to_numpy(), "", True
    if "(" in str(dates.tz):  # a zone of dateutil, which has no name
        dates = dates.tz_convert("UTC")
    dates = _in_local_time(dates) if grid is None else dates.tz_convert(grid.zone)
    clock = dates.tz_localize(None)
    wall = len(_times_of_day(dates)) == 1 if grid is None else grid.wall
    return (clock if wall else dates.tz_convert("UTC").tz_localize(None)).to_numpy(), str(dates.tz), wall


def _times_of_day(dates: pd.DatetimeIndex) -> pd.TimedeltaIndex:
    clock = dates.tz_localize(None)
    return (clock - clock.normalize()).unique()


def _in_local_time(dates: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Convert dates with two times of day to a zone in which they have one, midnight if possible.

    Example:
        >>> dates = pd.DatetimeIndex(["2024-03-29T23:00Z", "2024-03-30T23:00Z", "2024-03-31T22:00Z"])
        >>> _in_local_time(dates).strftime("%d.%m. %H:%M").tolist()
        ['30.03. 00:00', '31.03. 00:00', '01.04. 00:00']
    """
    found: dict[str, pd.TimedeltaIndex] = {}
    if len(_times_of_day(dates)) == 2:
        found = {zone: times for zone in _ZONES if len(times := _times_of_day(dates.tz_convert(zone))) == 1}
    return dates.tz_convert(min(found, key=lambda zone: bool(found[zone][0]), default=dates.tz))


# Formats of dates that are written as one number, by their number of digits, and years with a quarter or a week.
_COMPACT = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_YEAR_AND_PART = r"(?:19|20)\d\d(?:[1-4]|0[1-9]|[1-4]\d|5[0-3])"


def _with_compact_dates(owner: str, name: str, column: pd.Series) -> pd.Series:
    """Convert numbers such as 20241231, 202412 or 2024.12 to dates if all of them are; return other columns unchanged.

    Raises:
        ValueError: For years with a quarter or a week, such as 20241 or 202452, which are no steps of a grid.
    """
    numbers = column.to_numpy(dtype=float) if pd.api.types.is_numeric_dtype(column) else np.zeros(1)
    numbers = np.where((numbers % 1 > 0.005).all(), 100 * numbers, numbers)
    if (np.abs(numbers - np.round(numbers)) > 1e-6).any() or not ((numbers > 1e4) & (numbers < 1e15)).all():
        return column
    texts = pd.Series(np.round(numbers).astype(np.int64).astype(str))
    if texts.str.len().nunique() == 1 and texts.str.fullmatch(r"(?:19|20)\d+").all():
        dates = pd.to_datetime(texts, format=_COMPACT.get(len(texts[0]), "-"), errors="coerce")
        if dates.notna().all():
            return dates
        if texts.str.fullmatch(_YEAR_AND_PART).all() and texts.str[:4].nunique() > 1:
            advice = "Write quarters and weeks as dates, such as 2024-12-31."
            raise ValueError(bad_value(owner, name, "contain numbers or dates", texts[0], advice))
    return column


def _as_dates(owner: str, name: str, column: pd.Series) -> pd.DatetimeIndex:
    if isinstance(column.dtype, pd.PeriodDtype):
        return pd.DatetimeIndex(column.dt.to_timestamp()).as_unit("ns")
    text = str(column.iloc[0])
    advice = "Write dates as 2024-12-31 or 2024-12-31 23:00."
    year_last = _YEAR_LAST.match(text) if not pd.api.types.is_datetime64_any_dtype(column) else None
    readings = {day_first: _read_dates(column, day_first) for day_first in ((True, False) if year_last else (False,))}
    valid = {day_first: dates for day_first, dates in readings.items() if dates is not None}
    if not valid:
        row = int(pd.to_datetime(column, errors="coerce", format="mixed", utc=True).isna().to_numpy().argmax())
        got = f"{str(column.iloc[row])!r} in row {row:,}"
        raise ValueError(bad_value(owner, name, "contain numbers or dates between 1678 and 2262", got, advice))
    if year_last is not None and len(valid) == 2 and year_last.group(1) != "." and (valid[True] != valid[False]).any():
        raise ValueError(bad_value(owner, name, "distinguish days from months", repr(text), advice))
    return next(iter(valid.values()))  # in dates with dots, the day comes first


def _read_dates(column: pd.Series, day_first: bool) -> pd.DatetimeIndex | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pandas only warns about mixed and unknown date formats
        for utc in (False, True):  # UTC for dates with an offset, which daylight saving time changes
            try:
                return pd.DatetimeIndex(pd.to_datetime(column, dayfirst=day_first, utc=utc)).as_unit("ns")
            except (ValueError, TypeError, Warning):
                continue
    return None


def find_grid(owner: str, times: list[NDArray[Any]], zone: str = "", wall: bool = True) -> Grid:
    """Detect the grid of the times of several series, each sorted and without duplicates.

    Raises:
        ValueError: If no series has two times.

    Example:
        >>> find_grid("fit", [np.array(["2024-01-31", "2024-02-29", "2024-04-30"], "datetime64[ns]")])
        Grid(kind='month', step=1, day=31, zone='', wall=True, week='1111100')
    """
    gaps = [np.diff(part) for part in times if len(part) > 1]
    if not gaps:
        advice = "Check the columns of `series` and `time`."
        raise ValueError(bad_value(owner, "frame", "have a series with at least two times", "none", advice))
    every = np.concatenate(gaps)
    if every.dtype.kind != "m":
        return Grid("number", float(every.min()))
    smallest = int(every.min().astype("timedelta64[ns]").astype(np.int64))
    dates = pd.DatetimeIndex(np.concatenate(times))
    if smallest >= _SHORTEST_MONTH and (day := _day_of_months(dates)) is not None:
        months = int(np.gcd.reduce(np.concatenate([np.diff(_months(pd.DatetimeIndex(part))) for part in times])))
        return Grid("month", months, day, zone, wall)
    week = _open_days(times) if smallest == _DAY and not (every % every.min()).astype(np.int64).any() else ""
    if "0" in week and (every > every.min()).any():
        return Grid("business", 1.0, zone=zone, wall=wall, week=week)
    return Grid("time", float(smallest), zone=zone, wall=wall)


def _open_days(times: list[NDArray[Any]]) -> str:
    """Return the usual weekdays, see `Grid.week`; if there are few dates, all weekdays or Monday to Friday."""
    series = [part.astype("datetime64[D]") for part in times]
    days = np.unique(np.concatenate(series))
    if len(days) >= _ENOUGH_DATES:
        long = [part for part in series if len(part) >= _LEAST_DATES] or [days]
        week = "".join("01"[int(usual)] for usual in np.any([_usual_weekdays(part) for part in long], axis=0))
        n_open = np.busday_count(days[0], days[-1], week)
        if 2 * len(days) >= n_open:  # otherwise a weekday may be absent by chance
            return week
    return _MONDAY_TO_FRIDAY if (_weekdays(days) < 5).all() else "1111111"


def _usual_weekdays(days: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which of the seven weekdays are usual in sorted dates, or usual among the last dates."""
    counts, late = (np.bincount(_weekdays(part), minlength=7) for part in (days, days[-_ENOUGH_DATES:]))
    usual: NDArray[np.bool_] = (counts > _RARE * counts.max()) | (late > late.max() / 2)
    return usual


def _weekdays(days: NDArray[Any]) -> NDArray[np.int64]:
    """Return the weekday of each date, 0 for Monday; 1970-01-01 was a Thursday."""
    return (days.astype(np.int64) + 3) % 7


def _months(dates: pd.DatetimeIndex) -> NDArray[np.int64]:
    """Return the number of months since January 1970."""
    return np.asarray((dates.year - 1970) * 12 + dates.month - 1, dtype=np.int64)


def _dates_of(months: NDArray[np.int64], day: int) -> pd.DatetimeIndex:
    """Return the date of one day in each month; months are counted from January 1970."""
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    last = (months + 1).astype("datetime64[M]").astype("datetime64[D]") - 1
    if day == _LAST_WORKDAY:
        return pd.DatetimeIndex(np.busday_offset(last, 0, roll="backward")).as_unit("ns")
    return pd.DatetimeIndex(np.minimum(first + (day - 1), last)).as_unit("ns")


def _day_of_months(dates: pd.DatetimeIndex) -> int | None:
    """Return the day of the month that all dates share, 31 for the last day; None if they share no day."""
    if dates.is_month_end.all():
        return 31
    candidates = (int(dates.day.max()), _LAST_WORKDAY)
    return next((day for day in candidates if (_dates_of(_months(dates), day) == dates.normalize()).all()), None)
