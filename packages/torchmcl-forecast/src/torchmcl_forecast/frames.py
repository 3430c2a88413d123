"""Conversion of long or wide data frames of pandas or polars to a panel of series, and of forecasts to frames."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.errors import bad_value, nearest_hint
from torchmcl_forecast.grids import Grid, find_grid, parsed_times

__all__ = [
    "Columns",
    "Panel",
    "check_columns",
    "find_scaling",
    "padded_covariates",
    "read_future",
    "read_panel",
    "scaled",
    "windows_of_covariates",
    "with_future",
    "written_like",
]

# Maximum relative distance of a time from the grid, for rounding errors.
_TOLERANCE = 1e-6
# Maximum absolute value; the squares of larger values may not be finite.
_LARGEST = 1e100
# A panel with more entries than this results from a single time far from all others.
_MOST_PLACES = 200_000_000
# With at least this many steps, series whose steps all have a common divisor have another frequency than the fit.
_ENOUGH_STEPS = 6
# Standardized covariates are clipped to this magnitude.
_FARTHEST = 10.0


@dataclass(frozen=True)
class Columns:
    """Column names of a long frame.

    Attributes:
        series: Column of series names.
        time: Column of times.
        value: Column of the values to forecast.
        known: Covariates with known future values.
        past: Covariates with unknown future values.
    """

    series: str = "unique_id"
    time: str = "ds"
    value: str = "y"
    known: tuple[str, ...] = ()
    past: tuple[str, ...] = ()

    @property
    def covariates(self) -> tuple[str, ...]:
        """All covariates; those with known future values come first."""
        return self.known + self.past


@dataclass(frozen=True)
class Panel:
    """Series on one time grid, each ending in the last column.

    Attributes:
        names: Series names, [series].
        ends: Last time of each series, [series].
        values: Values [series, times], NaN where a value is missing or the series has not begun.
        grid: Time grid.
        like: Type of the frame: "pandas", "polars", or "polars.Date" for dates without a time of day.
        covariates: Covariates [series, times, covariates], NaN where missing.
        future: Future values of the known covariates, [series, horizon, known covariates]; None without them.
    """

    names: NDArray[Any]
    ends: NDArray[Any]
    values: NDArray[np.float64]
    grid: Grid
    like: str = "pandas"
    covariates: NDArray[np.float64] | None = None
    future: NDArray[np.float64] | None = None

    def times_after(self, horizon: int) -> NDArray[Any]:
        """Return the times after the end of each series, [series * horizon], without a time zone."""
        return np.concatenate([np.asarray(self.grid.after(end, horizon)) for end in self.ends])


def check_columns(owner: str, columns: Columns) -> None:
    """Check that the column names are distinct strings.

    Raises:
        ValueError: If two names are equal.
        TypeError: If a name is not a string.
    """
    names = (columns.series, columns.time, columns.value, *columns.covariates)
    if invalid := [name for name in names if not isinstance(name, str)]:
        raise TypeError(bad_value(owner, "series, time, value", "be column names", repr(invalid[0])))
    if twice := [name for name in names if names.count(name) > 1]:
        rule = "name different columns for series, time, value and covariates"
        raise ValueError(bad_value(owner, "value", rule, f"{twice[0]!r} twice"))


def read_panel(
    owner: str, frame: Any, columns: Columns, *, grid: Grid | None = None, aligned: bool = False, together: Any = None
) -> Panel:
    """Convert a data frame to a panel of series.

    Args:
        owner: Function or command name at the beginning of messages.
        frame: Long frame with a row for each value, or wide frame without a value column. The columns of a wide frame
            are the times, which may be the index, the covariates, which all series share, and one column per series.
            Other columns of a long frame are left out.
        columns: Column names.
        grid: Time grid of an earlier panel; detected from the times by default.
        aligned: Whether all series end at the last time of the frame, instead of at their own last time.
        together: Names of the series that were fitted together, each of which has its own channel; the result has their
            order and ends at the last time of the frame. None for other series.

    Raises:
        ValueError: For missing columns, irregular or duplicate times, and values that are not numbers.

    Example:
        >>> frame = pd.DataFrame({"ds": [1, 2, 4], "y": [5.0, 6.0, 7.0]})
        >>> read_panel("fit", frame, Columns()).values
        array([[ 5.,  6., nan,  7.]])
    """
    table, like = _as_pandas(owner, frame, columns)
    long = _as_long(owner, table, columns)
    times, zone, wall = parsed_times(owner, columns.time, long[columns.time], grid)
    values = [_numbers(owner, name, long[name]) for name in (columns.value, *columns.covariates)]
    codes, names = pd.factorize(long[columns.series])
    if (codes < 0).any():
        got = f"no name in row {int((codes < 0).argmax()):,}"
        raise ValueError(bad_value(owner, columns.series, "name a series in every row", got))
    names = np.asarray(names)
    if together is not None:
        codes, names = _channels(owner, names, together)[codes], together
    order = np.lexsort((times, codes))
    times, codes = times[order], codes[order]
    borders = np.flatnonzero(np.diff(codes)) + 1
    parts = np.split(times, borders)
    _check_duplicates(owner, columns.time, parts, names)
    grid = find_grid(owner, parts, zone, wall) if grid is None else grid
    kept = _on_open_days(owner, columns.time, grid, times, names[codes])
    order, times, codes = order[kept], times[kept], codes[kept]
    borders = np.flatnonzero(np.diff(codes)) + 1
    parts = np.split(times, borders)
    ends = np.array([part[-1] for part in parts])
    ends = np.full(len(ends), ends.max()) if aligned or together is not None else ends
    of_series = zip(parts, ends, names, strict=True)
    places = [_places(owner, columns.time, grid, part, end, name) for part, end, name in of_series]
    _check_size(owner, columns.time, places, parts, names)
    steps = np.concatenate([-np.diff(place) for place in places])
    if len(steps) >= _ENOUGH_STEPS and np.gcd.reduce(steps) > 1:
        got, advice = f"steps of {np.gcd.reduce(steps)} of them", "Write missing values as empty cells."
        raise ValueError(bad_value(owner, columns.time, "have the steps of the fit", got, advice))
    matrices = [_matrix(places, np.split(column[order], borders)) for column in values]
    empty = np.isnan(matrices[0]).all(axis=1)
    if empty.any():
        got = f"none for series {names[empty][0]!r}"
        raise ValueError(bad_value(owner, columns.value, "have a value for every series", got, "Remove the series."))
    covariates = np.stack(matrices[1:], axis=-1) if columns.covariates else None
    return Panel(names, ends, matrices[0], grid, like, covariates)


def _channels(owner: str, names: NDArray[Any], together: Any) -> NDArray[np.int64]:
    """Return the channel of each series."""
    channels = {name: channel for channel, name in enumerate(together)}
    if channels.keys() != set(names):
        rule = f"contain the {len(together)} series of the fit, which are forecast together"
        got = f"{len(names)}: {', '.join(map(repr, names[:5].tolist()))}"
        raise ValueError(bad_value(owner, "frame", rule, got))
    return np.array([channels[name] for name in names])


def read_future(owner: str, frame: Any, columns: Columns, panel: Panel, horizon: int) -> NDArray[np.float64]:
    """Return the future values of the known covariates, [series, horizon, known covariates].

    Args:
        owner: Function or command name at the beginning of messages.
        frame: Data frame with a row for each series and time of the horizon, or for each time if all series share the
            covariates; other times are left out.
        columns: Column names.
        panel: Series to forecast.
        horizon: Number of steps to forecast.

    Raises:
        ValueError: If a value is missing.
    """
    table, _ = _as_pandas(owner, frame, columns, argument="future")
    rows = pd.DataFrame({columns.time: parsed_times(owner, columns.time, table[columns.time], panel.grid)[0]})
    for name in columns.known:
        if name not in table.columns:
            raise ValueError(bad_value(owner, "future", f"have the column {name!r}", list(table.columns[:8])))
        rows[name] = _numbers(owner, name, table[name])
    wanted = pd.DataFrame({columns.time: panel.times_after(horizon)})
    keys = [columns.time]
    if columns.series in table.columns:
        rows[columns.series] = pd.Index(panel.names).get_indexer(table[columns.series])  # -1 for other series
        rows = rows[rows[columns.series] >= 0]
        wanted[columns.series] = np.repeat(np.arange(len(panel.names)), horizon)
        keys.append(columns.series)
    if (twice := rows.duplicated(keys)).any():
        got = f"{rows[columns.time][twice].iloc[0]} twice"
        raise ValueError(bad_value(owner, "future", "have each time of a series once", got))
    values = wanted.merge(rows, how="left", on=keys)[list(columns.known)]
    if (missing := values.isna()).any(axis=None):
        row = int(missing.any(axis=1).to_numpy().argmax())
        name, time = values.columns[missing.iloc[row]][0], wanted[columns.time].iloc[row]
        rule = f"have values for all {horizon} steps after each series"
        got = f"no {name!r} for {panel.names[row // horizon]!r} at {time}"
        raise ValueError(bad_value(owner, "future", rule, got))
    return values.to_numpy().reshape(len(panel.names), horizon, -1)


def with_future(
    owner: str, frame: Any, columns: Columns, panel: Panel, horizon: int, scaling: NDArray[np.float64]
) -> Panel:
    """Return a panel with the future values of the known covariates, standardized as in the fit; see `read_future`."""
    values = read_future(owner, frame, columns, panel, horizon)
    return replace(panel, future=_standardized(values, scaling[: len(columns.known)]))


def _as_pandas(owner: str, frame: Any, columns: Columns, argument: str = "frame") -> tuple[pd.DataFrame, str]:
    """Return a pandas data frame with a time column, and the type of the input frame."""
    if isinstance(frame, pd.DataFrame):
        table, like = frame, "pandas"
        in_index = {columns.series, columns.time} & set(map(str, table.index.names)) - set(map(str, table.columns))
        if columns.time not in table.columns and isinstance(table.index, (pd.DatetimeIndex, pd.PeriodIndex)):
            table = table.rename_axis(columns.time).reset_index()
        elif in_index:
            table = table.reset_index()
    elif type(frame).__module__.partition(".")[0] == "polars" and hasattr(frame, "get_columns"):
        dates = columns.time in frame.columns and str(frame.schema[columns.time]) == "Date"
        like = "polars.Date" if dates else "polars"
        table = pd.DataFrame({column.name: _of_polars(column) for column in frame.get_columns()})
    else:
        rule = "be a data frame of pandas or polars"
        advice = "Convert it with pandas.DataFrame(...), or collect a lazy frame."
        raise TypeError(bad_value(owner, argument, rule, type(frame).__name__, advice))
    if not len(table):
        raise ValueError(bad_value(owner, argument, "have at least one row", "none"))
    if not table.columns.is_unique or isinstance(table.columns, pd.MultiIndex):
        twice = table.columns[table.columns.duplicated()]
        got = f"{twice[0]!r} twice" if len(twice) else "several levels of names"
        raise ValueError(bad_value(owner, argument, "have distinct column names on one level", got))
    if columns.time not in table.columns:
        advice = f"Its columns are {', '.join(map(repr, table.columns[:8]))}."
        advice += nearest_hint(columns.time, map(str, table.columns))
        raise ValueError(bad_value(owner, argument, f"have a time column {columns.time!r}", "none", advice))
    return table, like


def _of_polars(column: Any) -> Any:
    """Convert a polars column to pandas or numpy; converting a whole frame would require pyarrow."""
    zone = getattr(column.dtype, "time_zone", None)
    values = column.to_numpy()
    return values if zone is None else pd.DatetimeIndex(values).tz_localize("UTC").tz_convert(zone)


def _as_long(owner: str, table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Convert a table to a long table with a series column."""
    if missing := [name for name in columns.covariates if name not in table.columns]:
        advice = f"Its columns are {', '.join(map(repr, table.columns[:8]))}.{nearest_hint(missing[0], table.columns)}"
        raise ValueError(bad_value(owner, "frame", "have the covariate columns", f"no {missing[0]!r}", advice))
    if columns.value in table.columns:
        if columns.series in table.columns:
            return table
        return table.assign(**{columns.series: columns.value})
    shared = [columns.time, *columns.covariates]
    others = [name for name in table.columns if name not in shared]
    textual = [name for name in others if not pd.api.types.is_numeric_dtype(table[name])]
    if textual or not others:
        rule = f"have the value column {columns.value!r}, or be wide, with a numeric column for each series"
        got = f"{textual[0]!r}, which is not numeric" if textual else "no other column"
        advice = f"Name the value column.{nearest_hint(columns.value, map(str, others))}"
        raise ValueError(bad_value(owner, "frame", rule, got, advice))
    return table.melt(id_vars=shared, var_name=columns.series, value_name=columns.value)


def _numbers(owner: str, name: str, column: pd.Series) -> NDArray[np.float64]:
    try:
        if pd.api.types.is_complex_dtype(column):
            raise TypeError("complex numbers have no order")
        values = pd.to_numeric(column).to_numpy(dtype=float, na_value=np.nan)
    except (ValueError, TypeError) as error:
        textual = pd.to_numeric(column, errors="coerce").isna() & column.notna()
        got = repr(column[textual].iloc[0]) if textual.any() else str(column.dtype)
        advice = "Leave cells of missing values empty."
        raise ValueError(bad_value(owner, name, "contain numbers", got, advice)) from error
    large = np.abs(values) > _LARGEST  # NaN compares as False
    if large.any():
        row = int(large.argmax())
        rule = f"be finite and at most {_LARGEST:g} in magnitude, or missing"
        raise ValueError(bad_value(owner, name, rule, f"{values[row]:g} in row {row:,}"))
    return values


def _check_duplicates(owner: str, name: str, parts: list[NDArray[Any]], names: NDArray[Any]) -> None:
    for part, series in zip(parts, names, strict=True):
        same = part[1:] == part[:-1]
        if same.any():
            got = f"{_text(part[1:][same][0])} twice in series {series!r}"
            advice = "Add the rows up, or name the column that distinguishes the series."
            raise ValueError(bad_value(owner, name, "have each time of a series once", got, advice))


def _on_open_days(owner: str, name: str, grid: Grid, times: NDArray[Any], series: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which times are on open weekdays; warn about the other times, which do not count as steps."""
    kept = grid.is_open(times)
    if not kept.all():
        days = pd.DatetimeIndex(times[~kept])
        empty = sorted(set(series) - set(series[kept]), key=str)
        if empty:
            day = pd.Timestamp(times[series == empty[0]][0])
            got = f"series {empty[0]!r} with values only on closed weekdays, such as {day:%Y-%m-%d (%A)}"
            raise ValueError(bad_value(owner, name, "have values on open weekdays", got, "Remove the series."))
        message = f"{owner}: {name}: values on weekdays that are usually closed are left out: {days[0]:%Y-%m-%d (%A)}"
        more = len(days.unique()) - 1
        warnings.warn(message + (f" and {more} more" if more else "") + ".", UserWarning, stacklevel=4)
    return kept


def _places(owner: str, name: str, grid: Grid, times: NDArray[Any], end: Any, series: Any) -> NDArray[np.int64]:
    """Return the number of steps from each time to the end."""
    places = grid.places(np.append(times, end))
    before = (places[-1] - places)[:-1]
    nearest = np.round(before)
    off = np.abs(before - nearest) > _TOLERANCE * np.maximum(1, np.abs(before))
    off |= np.concatenate([nearest[:-1] == nearest[1:], [False]])
    if off.any():
        advice = "Sum or average the values by hour, day or month. Missing rows are allowed."
        raise ValueError(bad_value(owner, name, "be regular", _irregular(times, end, series), advice))
    return nearest.astype(np.int64)


def _irregular(times: NDArray[Any], end: Any, series: Any) -> str:
    """Describe the first step that is not a multiple of the most common step."""
    gaps = np.diff(times)
    if not len(gaps):
        return f"{_text(times[0])} in series {series!r}, a fraction of a step before {_text(end)}"
    distances, counts = np.unique(gaps, return_counts=True)
    usual = distances[counts.argmax()]
    irregular = gaps % usual != gaps[0] * 0
    if not irregular.any():
        return f"steps of {_text(usual)} in series {series!r}, which differ from the steps of the fit"
    place = int(irregular.argmax())
    return (
        f"{_text(times[place + 1])} in series {series!r}, {_text(gaps[place])} after the previous time; most steps "
        f"are {_text(usual)}"
    )


def _check_size(
    owner: str, name: str, places: list[NDArray[np.int64]], parts: list[NDArray[Any]], names: NDArray[Any]
) -> None:
    longest = max(range(len(places)), key=lambda series: int(places[series][0]))
    width = int(places[longest][0]) + 1
    if width * len(places) > _MOST_PLACES:
        part = parts[longest]
        rule = f"span at most {_MOST_PLACES:,} steps in all series together"
        got = f"{width:,} in series {names[longest]!r}, {_text(part[0])} to {_text(part[-1])}"
        raise ValueError(bad_value(owner, name, rule, got, "Check whether one of these times is mistyped."))


def _matrix(places: list[NDArray[np.int64]], values: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the values of all series, [series, times]; NaN where missing."""
    width = max(int(place[0]) for place in places) + 1
    matrix = np.full((len(places), width), np.nan)
    for row, (place, part) in enumerate(zip(places, values, strict=True)):
        matrix[row, width - 1 - place] = part
    return matrix


def written_like(table: pd.DataFrame, like: str, time: str) -> Any:
    """Convert a table to the type of the input frame, with times of the same type; see `Panel.like`."""
    if like == "pandas":
        return table
    import polars

    frame = polars.DataFrame({name: table[name].to_numpy() for name in table.columns if name != time})
    zone = getattr(table[time].dtype, "tz", None)
    dates = polars.Series(time, np.asarray(table[time] if zone is None else table[time].dt.tz_convert(None)))
    if zone is not None:
        dates = dates.dt.replace_time_zone("UTC").dt.convert_time_zone(str(zone))
    dates = dates.cast(polars.Date) if like == "polars.Date" else dates
    return frame.insert_column(1, dates)


def _text(time: Any) -> str:
    if isinstance(time, np.timedelta64):
        return str(pd.Timedelta(time)).removeprefix("0 days ").removesuffix(" 00:00:00")
    return str(pd.Timestamp(time)) if isinstance(time, np.datetime64) else str(time)


def find_scaling(panel: Panel) -> NDArray[np.float64]:
    """Return the mean and the standard deviation of each covariate over all series, [covariates, 2]."""
    if panel.covariates is None:
        return np.zeros((0, 2))
    rows = panel.covariates.reshape(-1, panel.covariates.shape[-1])
    known = [row[~np.isnan(row)] for row in rows.T]
    # Rounding errors are no variation of a constant.
    return np.array([(row.mean(), row.std()) if len(np.unique(row)) > 1 else (row[:1].sum(), 1.0) for row in known])


def scaled(panel: Panel, scaling: NDArray[np.float64]) -> Panel:
    """Standardize the covariates of a panel, and fill missing ones with the last known value, or with the mean.

    Example:
        >>> from torchmcl_forecast.grids import Grid
        >>> covariates = np.array([[[np.nan], [3.0], [np.nan]]])
        >>> panel = Panel(np.array(["a"]), np.array([3]), np.zeros((1, 3)), Grid("number", 1.0), covariates=covariates)
        >>> scaled(panel, np.array([[1.0, 2.0]])).covariates[0, :, 0]
        array([0., 1., 1.])
    """
    if panel.covariates is None:
        return panel
    values = _standardized(panel.covariates, scaling)
    known = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(known, np.arange(values.shape[1])[:, None], 0), axis=1)
    values = np.nan_to_num(np.take_along_axis(values, last, axis=1))
    return replace(panel, covariates=values)


def _standardized(values: NDArray[np.float64], scaling: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standardize values [..., covariates] as in the fit."""
    return np.clip((values - scaling[:, 0]) / scaling[:, 1], -_FARTHEST, _FARTHEST)


def padded_covariates(panel: Panel, past: int, horizon: int) -> Tensor:
    """Return covariates padded at both ends, [series, past + times + horizon, covariates]."""
    if panel.covariates is None:
        return torch.zeros(len(panel.names), past + panel.values.shape[1] + horizon, 0)
    padded = np.pad(panel.covariates, ((0, 0), (past, horizon), (0, 0)))
    if panel.future is not None:
        padded[:, -horizon:, : panel.future.shape[-1]] = panel.future
    return torch.from_numpy(padded.astype(np.float32))


def windows_of_covariates(values: Tensor, n_known: int, n_recent: int) -> Tensor:
    """Flatten the covariates of windows: the known covariates over the horizon, and all covariates over recent steps.

    Args:
        values: Covariates [..., recent + horizon, covariates].
        n_known: Number of covariates with known future values, which come first.
        n_recent: Number of steps before the horizon.
    """
    return torch.cat([values[..., n_recent:, :n_known].flatten(-2), values[..., :n_recent, :].flatten(-2)], dim=-1)
