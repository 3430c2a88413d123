"""Detection of the seasons of series, and calendar features."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torchmcl_forecast.grids import Grid

__all__ = ["calendar_features", "filled", "find_seasons"]

# Lengths of calendar seasons in days.
_SEASON_DAYS = (1.0, 7.0, 365.25)
# Seasons of series without dates: quarters, working days, weeks, months, hours of a day and of a week.
_OF_NUMBERS = (4, 5, 7, 12, 24, 48, 52, 96, 168, 336)
# Minimum correlation of changes that are one season apart; for noise, the correlation is at most about 1 / sqrt(n).
_AGREEMENT = 0.15
# A season is dropped if its correlation is below this fraction of the strongest correlation, unless the strongest
# season is a multiple of it. The correlation of a multiple must exceed that of shorter seasons by the second value.
_WEAKEST, _CLEARLY = 0.6, 0.01


def find_seasons(values: NDArray[np.float64], grid: Grid) -> tuple[int, ...]:
    """Detect the season lengths in steps and return them in increasing order; often there are none.

    The candidates are calendar seasons, or common lengths if times are numbers. A candidate is a season if the
    autocorrelation of the changes of the series has a peak at its length.

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
    agreement = _agreement(values, max(candidates) + 1)
    seasons = []
    for season in candidates:
        around = agreement[season - 1 : season + 2]
        if season > 1 and len(around) == 3 and agreement[season] >= max(_AGREEMENT, float(around.max())):
            seasons.append(season)
    strongest = max(seasons, key=lambda season: agreement[season], default=1)
    weakest = _WEAKEST * agreement[strongest] if seasons else 0.0
    seasons = [season for season in seasons if agreement[season] > weakest or strongest % season == 0]
    return tuple(s for s in seasons if all(_adds_to(s, shorter, agreement) for shorter in seasons if shorter < s))


def _adds_to(season: int, shorter: int, agreement: NDArray[np.float64]) -> bool:
    """Return whether a season is more than the repetition of a shorter season, whose multiples also correlate.

    For example, a week adds to a day if its correlation exceeds the correlations of two to six days.
    """
    if season % shorter:
        return True
    between = agreement[2 * shorter : season : shorter]
    largest = between.max() if len(between) else agreement[shorter]
    return bool(agreement[season] > largest + _CLEARLY)


def _agreement(values: NDArray[np.float64], n_lags: int) -> NDArray[np.float64]:
    """Compute the autocorrelation of the changes, averaged over the series that are long enough, [lags]."""
    n_lags = min(n_lags, values.shape[1] // 2 + 1)
    n_times = 1 << int(np.ceil(np.log2(2 * values.shape[1])))
    changes = np.diff(values, axis=1)
    spread = np.nanstd(np.where(np.isnan(changes).all(axis=1, keepdims=True), 0.0, changes), axis=1, keepdims=True)
    unit = np.where(spread > 0, spread, 1.0)
    changes = np.clip(np.nan_to_num(changes / unit), -5, 5)  # a single jump must not dominate
    spectrum = np.fft.rfft(changes, n_times, axis=1)
    products = np.fft.irfft(np.abs(spectrum) ** 2, n_times, axis=1)[:, :n_lags]
    lengths = (~np.isnan(values)).sum(axis=1, keepdims=True)
    # Long lags have fewer products. A series must contain three seasons.
    fraction = np.clip(1 - np.arange(n_lags) / np.maximum(lengths, 1), 0.1, 1)
    long_enough = (lengths >= 3 * np.arange(n_lags)) & (products[:, :1] > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        of_series = products / products[:, :1] / fraction
        means = np.where(long_enough, of_series, 0.0).sum(axis=0) / long_enough.sum(axis=0)
    # Keep the lags for which most non-constant series are long enough; these are the shortest lags.
    usual = long_enough.sum(axis=0) * 2 > max(int((products[:, 0] > 0).sum()), 1)
    return np.asarray(means[usual])


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
