"""Detection of the seasons of series, and calendar features."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import fdtrc

from torchmcl_forecast.grids import Grid

__all__ = ["calendar_features", "filled", "find_seasons"]

# Lengths of calendar seasons in days.
_SEASON_DAYS = (1.0, 7.0, 365.25)
# Seasons of series without dates: quarters, working days, weeks, months, hours of a day and of a week.
_OF_NUMBERS = (4, 5, 7, 12, 24, 48, 52, 96, 168, 336)
# Number of seasons that a series must contain, and number of series that are tested.
_N_SEASONS, _N_TESTED = 2.5, 100
# Maximum p-value of dates and of numbers, which have more candidates; less for seasons of more than `_N_LEVELS` steps.
_P_VALUE = {True: 0.015, False: 0.004}
# Lengths, as multiples of a candidate, that must explain less than this fraction of what the candidate explains. Level
# shifts and other slow changes resemble seasons of all lengths.
_SIMILAR_LENGTHS, _SIMILAR_FRACTION = (0.8, 1.25), 0.7
# A season that divides a longer one must explain at least this fraction of what the longer one explains.
_SHORTER_FRACTION = 0.5
# Smooth seasons are also tested as step functions of this many levels, which need less data.
_N_LEVELS = 12
# Number of steps in which autocorrelation is estimated, and size in standard deviations to which outliers are reduced.
_N_FILTERS, _LARGEST = 4, 5.0


def find_seasons(values: NDArray[np.float64], grid: Grid) -> tuple[int, ...]:
    """Detect the season lengths in steps and return them in increasing order; often there are none.

    The candidates are calendar seasons, or common lengths if times are numbers. A candidate is a season if an F-test
    detects it in a regression with a linear trend, the shorter seasons and autocorrelated errors, and if similar
    lengths explain much less.

    Args:
        values: Values [series, times], NaN where missing.
        grid: Time grid.

    Example:
        >>> days = np.arange(200.0)
        >>> find_seasons(np.sin(2 * np.pi * days / 7)[None], Grid("number", 1.0))
        (7,)
    """
    if grid.kind == "month":
        candidates: tuple[int, ...] = (round(12 / grid.step),)
    elif grid.kind == "business":
        n_days = grid.week.count("1")
        candidates = (n_days, round(n_days * 365.25 / 7))
    elif grid.is_calendar:
        candidates = tuple(round(days * grid.per_day) for days in _SEASON_DAYS)
    else:
        candidates = _OF_NUMBERS
    values = values[np.nanmax(values, axis=1) > np.nanmin(values, axis=1)]
    values = values[:: max(len(values) // _N_TESTED, 1)]
    n_changes = (~np.isnan(np.diff(values, axis=1))).sum(axis=1)
    strengths: dict[int, float] = {}
    for season in candidates:
        long = values[n_changes + 1 >= _N_SEASONS * season]
        if season < 2 or 2 * len(long) <= len(values):  # most series are too short
            continue
        strength, p_value = _strength(long, season, tuple(strengths))
        if p_value < _P_VALUE[grid.is_calendar] * min(_N_LEVELS / season, 1):
            similar = {max(round(factor * season), 2) for factor in _SIMILAR_LENGTHS} - {season}
            if all(_strength(long, n, tuple(strengths))[0] < _SIMILAR_FRACTION * strength for n in similar):
                strengths[season] = _strength(long, season)[0]
    return tuple(
        n for n in strengths if all(m % n or strengths[n] >= _SHORTER_FRACTION * strengths[m] for m in strengths)
    )


def _strength(values: NDArray[np.float64], season: int, others: Sequence[int] = ()) -> tuple[float, float]:
    """Return the fraction of the variance that a season explains beside others, and the p-value of its F-test."""
    strength, p_value = 0.0, 1.0
    means = [(other, other) for other in others]
    for n_levels in {season, min(season, _N_LEVELS)}:
        phi = np.zeros((len(values), 1))  # the errors are y[t] - phi * y[t - 1]
        for _ in range(_N_FILTERS):
            errors = values[:, 1:] - phi * values[:, :-1]
            errors = errors - np.nanmean(errors, axis=1, keepdims=True)
            largest = _LARGEST * np.nanstd(errors, axis=1, keepdims=True)
            errors = np.clip(errors, -largest, largest)
            residuals = _residuals(errors, [*means, (season, n_levels)])
            products = np.nansum(residuals[:, 1:] * residuals[:, :-1], axis=1, keepdims=True)
            squares = np.nansum(residuals**2, axis=1, keepdims=True)
            phi = np.clip(phi + products / np.maximum(squares, 1e-300), -0.95, 1)
        without = np.nansum(_residuals(errors, means) ** 2, axis=1, keepdims=True)
        n_season = n_levels - 1 - sum(other - 1 for other in others if n_levels % other == 0)
        n_others = 2 + sum(other - 1 for other in others)
        n_residuals = (~np.isnan(errors)).sum(axis=1, keepdims=True) - n_others - n_season
        usable = (n_residuals > 0) & (without > 0)
        if n_season > 0 and usable.any():
            unexplained = squares[usable] / without[usable]
            variance, n_typical = (unexplained / n_residuals[usable]).mean(), np.median(n_residuals[usable])
            ratio = (1 - unexplained.mean()) / n_season / max(variance, 1e-300)
            strength = max(strength, 1 - unexplained.mean() - n_season * variance)  # as an adjusted R squared
            p_value = min(p_value, fdtrc(n_season, n_typical, ratio))
    return strength, p_value


def _residuals(values: NDArray[np.float64], seasons: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Return the residuals of a regression on a linear trend and on seasons (length, number of levels)."""
    times = np.where(np.isnan(values), np.nan, np.arange(values.shape[1]))
    times = times - np.nanmean(times, axis=1, keepdims=True)
    spread = np.nansum(times**2, axis=1, keepdims=True)
    for _ in range(3):  # alternating projections
        slope = np.nansum(times * values, axis=1, keepdims=True) / spread
        values = values - np.nanmean(values, axis=1, keepdims=True) - slope * times
        for season, n_levels in seasons:
            n_before = -values.shape[1] % season
            cycles = np.pad(values, ((0, 0), (n_before, 0)), constant_values=np.nan).reshape(len(values), -1, season)
            starts = -(-np.arange(n_levels) * season // n_levels)
            sums = np.add.reduceat(np.nansum(cycles, axis=1), starts, axis=1)
            counts = np.add.reduceat((~np.isnan(cycles)).sum(axis=1), starts, axis=1)
            levels = np.repeat(sums / np.maximum(counts, 1), np.diff(starts, append=season), axis=1)
            values = (cycles - levels[:, None]).reshape(len(values), -1)[:, n_before:]
    return values


def filled(values: NDArray[np.float64], season: int) -> NDArray[np.float64]:
    """Fill missing values with the value one season earlier, or with the last known value; NaN before the first value.

    Example:
        >>> filled(np.array([[np.nan, 1.0, 2.0, np.nan, np.nan]]), season=2)
        array([[nan,  1.,  2.,  1.,  2.]])
    """
    values = values.copy()
    begun = np.maximum.accumulate(~np.isnan(values), axis=1)
    for place in np.flatnonzero((np.isnan(values) & begun).any(axis=0)):
        missing = np.isnan(values[:, place]) & begun[:, place]
        earlier = values[:, place - season] if place >= season else np.full(len(values), np.nan)
        values[missing, place] = np.where(np.isnan(earlier), values[:, place - 1], earlier)[missing]
    return values


def calendar_features(grid: Grid, ends: NDArray[np.datetime64], n_back: int) -> NDArray[np.float32]:
    """Return hour, weekday and day of the year as sines and cosines, [series, n_back + 1, features].

    Args:
        grid: Time grid.
        ends: Last time of each series, [series].
        n_back: Number of steps before the end; the last entry is the end itself.
    """
    if not grid.is_calendar:
        return np.zeros((len(ends), n_back + 1, 0), dtype=np.float32)
    unique, place = np.unique(ends, return_inverse=True)
    parts = [_features_of(grid, pd.Timestamp(end), n_back) for end in unique]
    return np.stack(parts)[place]


def _features_of(grid: Grid, end: pd.Timestamp, n_back: int) -> NDArray[np.float32]:
    back = np.arange(n_back, -1, -1)
    if grid.kind == "month":
        months = (end.year * 12 + end.month - 1 - back * int(grid.step)) % 12
        turns = [months / 12]
    else:
        if grid.kind == "business":
            dates = pd.DatetimeIndex(np.busday_offset(end.date(), -back, "backward", grid.week))
        else:
            dates = end - pd.to_timedelta(back * int(grid.step), unit="ns")
        hour = dates.hour + dates.minute / 60
        turns = [hour / 24] if grid.per_day > 1 else []
        turns += [(dates.day_of_week + hour / 24) / 7] if grid.per_day > 1 / 7 else []
        turns += [(dates.day_of_year + hour / 24) / 365.25]
    angles = 2 * np.pi * np.stack([np.asarray(turn, dtype=float) for turn in turns], axis=-1)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)
