"""Data frames of users, long or wide, of pandas or polars, as a panel of series, and answers as frames again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torchmcl._messages import bad_value, nearest_hint
from torchmcl_forecast.grids import Grid, find_grid, parsed_times

__all__ = ["Columns", "Panel", "read_panel", "written_like"]

# Times may lie off the grid by rounding.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a long frame."""

    series: str = "unique_id"
    time: str = "ds"
    value: str = "y"


@dataclass(frozen=True)
class Panel:
    """Series on one grid of times, each ending in the last column.

    Attributes:
        names: [series], their identities.
        ends: [series], the last time of each.
        values: [series, times], NaN where a value is missing or the series has not begun.
        grid: of the times.
        like: the kind of the frame, "pandas" or "polars".
    """

    names: NDArray[Any]
    ends: NDArray[Any]
    values: NDArray[np.float64]
    grid: Grid
    like: str = "pandas"


def read_panel(owner: str, frame: Any, columns: Columns, *, grid: Grid | None = None, aligned: bool = False) -> Panel:
    """Return the series of a frame.

    Args:
        owner: whom errors speak for.
        frame: long, with a row for each value; or wide, without the column of values: one column for each series beside
            the column of times, which may be the index. Other columns of a long frame are left out.
        columns: their names.
        grid: of a panel that was read before; found by the times if None.
        aligned: all series end at the last time of all, instead of each at its own.

    Raises:
        ValueError: for missing columns, irregular or duplicate times, values that are no numbers.

    Example:
        >>> frame = pd.DataFrame({"ds": [1, 2, 4], "y": [5.0, 6.0, 7.0]})
        >>> read_panel("fit", frame, Columns()).values
        array([[ 5.,  6., nan,  7.]])
    """
    table, like = _as_pandas(owner, frame, columns)
    if not len(table):
        raise ValueError(bad_value(owner, "frame", "have at least one row", "none"))
    long = _as_long(owner, table, columns)
    times = parsed_times(owner, columns.time, long[columns.time])
    values = _numbers(owner, columns.value, long[columns.value])
    codes, names = pd.factorize(long[columns.series])
    if (codes < 0).any():
        got = f"none in row {int((codes < 0).argmax()):,}"
        raise ValueError(bad_value(owner, columns.series, "name a series in every row", got))
    order = np.lexsort((times, codes))
    times, values, codes = times[order], values[order], codes[order]
    borders = np.flatnonzero(np.diff(codes)) + 1
    parts = np.split(times, borders)
    names = np.asarray(names)
    _check_duplicates(owner, columns.time, parts, names)
    grid = find_grid(owner, parts) if grid is None else _same_kind(owner, columns.time, grid, times)
    ends = np.array([part[-1] for part in parts])
    ends = np.full(len(ends), ends.max()) if aligned else ends
    of_series = zip(parts, ends, names, strict=True)
    places = [_places(owner, columns.time, grid, part, end, name) for part, end, name in of_series]
    matrix = _matrix(places, np.split(values, borders))
    empty = np.isnan(matrix).all(axis=1)
    if empty.any():
        got = f"none for series {names[empty][0]!r}"
        raise ValueError(bad_value(owner, columns.value, "have a value of every series", got, "Leave it out."))
    return Panel(names, ends, matrix, grid, like)


def _as_pandas(owner: str, frame: Any, columns: Columns) -> tuple[pd.DataFrame, str]:
    if isinstance(frame, pd.DataFrame):
        named = isinstance(frame.index, pd.DatetimeIndex) and columns.time not in frame.columns
        return (frame.rename_axis(columns.time).reset_index() if named else frame), "pandas"
    if type(frame).__module__.partition(".")[0] != "polars" or not hasattr(frame, "get_columns"):
        rule = "be a data frame of pandas or polars"
        advice = "pandas.DataFrame(...) makes one; collect a lazy frame first."
        raise TypeError(bad_value(owner, "frame", rule, type(frame).__name__, advice))
    # By column: the conversion of a whole frame would need pyarrow.
    return pd.DataFrame({column.name: column.to_numpy() for column in frame.get_columns()}), "polars"


def _as_long(owner: str, table: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Return a long table with a column of series."""
    if columns.time not in table.columns:
        hint = nearest_hint(columns.time, map(str, table.columns))
        advice = f"Its columns are {', '.join(map(repr, table.columns[:8]))}.{hint}"
        raise ValueError(bad_value(owner, "frame", "have the column of times", repr(columns.time), advice))
    if columns.value in table.columns:
        if columns.series in table.columns:
            return table
        return table.assign(**{columns.series: columns.value})
    others = [name for name in table.columns if name != columns.time]
    strange = [name for name in others if not pd.api.types.is_numeric_dtype(table[name])]
    if strange or not others:
        rule = f"have the column of values {columns.value!r}, or be wide: a column of numbers for each series"
        got = f"{strange[0]!r}, which holds no numbers" if strange else "no other column"
        advice = f"Name the column of values.{nearest_hint(columns.value, map(str, others))}"
        raise ValueError(bad_value(owner, "frame", rule, got, advice))
    wide = table.melt(id_vars=[columns.time], var_name=columns.series, value_name=columns.value)
    return wide


def _numbers(owner: str, name: str, column: pd.Series) -> NDArray[np.float64]:
    try:
        values = pd.to_numeric(column).to_numpy(dtype=float, na_value=np.nan)
    except (ValueError, TypeError) as error:
        strange = pd.to_numeric(column, errors="coerce").isna() & column.notna()
        got = repr(column[strange].iloc[0]) if strange.any() else str(column.dtype)
        raise ValueError(bad_value(owner, name, "hold numbers", got, "Empty cells are missing values.")) from error
    if np.isinf(values).any():
        got = f"{values[np.isinf(values)][0]} in row {int(np.isinf(values).argmax()):,}"
        raise ValueError(bad_value(owner, name, "be finite or missing", got))
    return values


def _check_duplicates(owner: str, name: str, parts: list[NDArray[Any]], names: NDArray[Any]) -> None:
    for part, series in zip(parts, names, strict=True):
        same = part[1:] == part[:-1]
        if same.any():
            got = f"{_text(part[1:][same][0])} twice in series {series!r}"
            advice = "Add the rows up, or name the column that tells the series apart."
            raise ValueError(bad_value(owner, name, "have each time of a series once", got, advice))


def _same_kind(owner: str, name: str, grid: Grid, times: NDArray[Any]) -> Grid:
    if grid.is_calendar != (times.dtype.kind == "M"):
        rule = "hold dates, as in the fit" if grid.is_calendar else "hold numbers, as in the fit"
        raise ValueError(bad_value(owner, name, rule, _text(times[0])))
    return grid


def _places(owner: str, name: str, grid: Grid, times: NDArray[Any], end: Any, series: Any) -> NDArray[np.int64]:
    """Return how many steps before the end each time lies."""
    places = grid.places(np.append(times, end))
    before = (places[-1] - places)[:-1]
    nearest = np.round(before)
    off = np.abs(before - nearest) > _TOLERANCE * np.maximum(1, np.abs(before))
    off |= np.concatenate([nearest[:-1] == nearest[1:], [False]])
    if off.any():
        place = int(off.argmax())
        got = f"{_text(times[place])} in series {series!r}, off the steps that end at {_text(end)}"
        advice = "Give values at equal steps: sum or average them by hour, day or month; missing rows are fine."
        raise ValueError(bad_value(owner, name, "be regular", got, advice))
    return nearest.astype(np.int64)


def _matrix(places: list[NDArray[np.int64]], values: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the values of all series, [series, times], NaN where there is none."""
    width = max(int(place[0]) for place in places) + 1
    matrix = np.full((len(places), width), np.nan)
    for row, (place, part) in enumerate(zip(places, values, strict=True)):
        matrix[row, width - 1 - place] = part
    return matrix


def written_like(table: pd.DataFrame, like: str) -> Any:
    """Return a frame of the kind that was given: "pandas" or "polars"."""
    if like != "polars":
        return table
    import polars

    return polars.DataFrame({name: table[name].to_numpy() for name in table.columns})


def _text(time: Any) -> str:
    return str(pd.Timestamp(time)) if isinstance(time, np.datetime64) else str(time)
