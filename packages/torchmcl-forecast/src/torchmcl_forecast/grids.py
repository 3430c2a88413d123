"""Regular times: how the times of a series become places on a grid, and which times follow the last one."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torchmcl._messages import bad_value

__all__ = ["Grid", "find_grid", "parsed_times"]

_DAY = 86_400 * 10**9  # nanoseconds
# Months between times whose distances lie in these days: the lengths of months differ.
_MONTHS = {1: (28, 31), 3: (89, 92), 12: (365, 366)}


@dataclass(frozen=True)
class Grid:
    """A grid of times.

    Attributes:
        kind: "number", "time" (a fixed duration), "business" (Monday to Friday) or "month".
        step: of numbers, in nanoseconds, or in months; 1 for business days.
        at_end: whether times of months are their last days.
    """

    kind: str
    step: float
    at_end: bool = False

    @property
    def is_calendar(self) -> bool:
        """Whether times are dates."""
        return self.kind != "number"

    @property
    def per_day(self) -> float:
        """How many steps a day has; below 1 for steps of several days."""
        return {"number": 0.0, "business": 1.0, "month": 1 / (30.4 * self.step)}.get(self.kind, _DAY / self.step)

    def places(self, times: Any) -> NDArray[np.float64]:
        """Return the place of each time on the grid; an integer if it lies on it, up to a common offset."""
        if self.kind == "number":
            return np.asarray(times, dtype=float) / self.step
        dates = pd.DatetimeIndex(times)
        if self.kind == "month":
            return np.asarray((dates.year * 12 + dates.month - 1) / self.step, dtype=float)
        if self.kind == "business":
            return np.busday_count("1970-01-01", dates.values.astype("datetime64[D]")).astype(float)
        # Relative to the first one: nanoseconds since 1970 have more digits than a float.
        ticks = _ticks(dates)
        return (ticks // int(self.step)).astype(float) + (ticks % int(self.step)) / self.step

    def after(self, last: Any, n_steps: int) -> Any:
        """Return the n times that follow `last`, as an array or an index of dates.

        Example:
            >>> Grid("number", 2.0).after(10, 3)
            array([12, 14, 16])
            >>> [str(day.date()) for day in Grid("business", 1.0).after(pd.Timestamp("2024-03-01"), 2)]
            ['2024-03-04', '2024-03-05']
        """
        count = np.arange(1, n_steps + 1)
        if self.kind == "number":
            times = last + count * self.step
            return times.astype(np.int64) if float(last).is_integer() and float(self.step).is_integer() else times
        last = pd.Timestamp(last)
        if self.kind == "time":
            return last + pd.to_timedelta(count * int(self.step), unit="ns")
        offset = {"business": pd.offsets.BusinessDay, "month": pd.offsets.MonthEnd}[self.kind]
        if self.kind == "month" and not self.at_end:
            return pd.DatetimeIndex([last + pd.DateOffset(months=int(n * self.step)) for n in count])
        return pd.DatetimeIndex([last + offset(int(n * self.step)) for n in count])


def parsed_times(owner: str, name: str, values: Any) -> NDArray[Any]:
    """Return a column of times as numbers, or as dates without a time zone.

    Raises:
        ValueError: if some are missing, or are neither numbers nor dates.
    """
    column = pd.Series(np.asarray(values) if not isinstance(values, pd.Series) else values).reset_index(drop=True)
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax())
        raise ValueError(bad_value(owner, name, "have a time in every row", f"none in row {row:,}", "Leave it out."))
    if pd.api.types.is_bool_dtype(column):
        raise ValueError(bad_value(owner, name, "hold numbers or dates", "truth values"))
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # dates of several forms, or of none, are only warned about
            dates = pd.DatetimeIndex(pd.to_datetime(column))
    except (ValueError, TypeError, Warning) as error:
        got = repr(str(column.iloc[0]))
        advice = "Write dates as 2024-12-31 or 2024-12-31 23:00."
        raise ValueError(bad_value(owner, name, "hold numbers or dates", got, advice)) from error
    if dates.tz is not None:  # the distance of two times does not depend on daylight saving
        dates = dates.tz_convert("UTC").tz_localize(None)
    return dates.as_unit("ns").to_numpy()


def find_grid(owner: str, times: list[NDArray[Any]]) -> Grid:
    """Return the grid of the times of several series, each sorted and without duplicates.

    Raises:
        ValueError: if no series has two times.

    Example:
        >>> find_grid("fit", [np.array(["2024-01-31", "2024-02-29", "2024-04-30"], "datetime64[ns]")])
        Grid(kind='month', step=1, at_end=True)
    """
    gaps = [np.diff(part) for part in times if len(part) > 1]
    if not gaps:
        raise ValueError(bad_value(owner, "frame", "have a series with at least two times", "none"))
    every = np.concatenate(gaps)
    if every.dtype.kind != "m":
        return Grid("number", float(every.min()))
    smallest = int(every.min().astype("timedelta64[ns]").astype(np.int64))
    dates = pd.DatetimeIndex(np.concatenate(times))
    for months, (least, most) in _MONTHS.items():
        if least * _DAY <= smallest <= most * _DAY and _one_day_of_months(dates):
            return Grid("month", months, at_end=bool(dates.is_month_end.all()))
    if smallest == _DAY and (dates.day_of_week < 5).all() and (every > every.min()).any():
        return Grid("business", 1.0)
    return Grid("time", float(smallest))


def _one_day_of_months(dates: pd.DatetimeIndex) -> bool:
    """Return whether all dates are the same day of their months, or the last."""
    return bool(dates.is_month_end.all()) or len(set(dates.day)) == 1


def _ticks(dates: pd.DatetimeIndex) -> NDArray[np.int64]:
    return dates.as_unit("ns").asi8
