"""Seasons are found where they are, and missing values are filled by them."""

import numpy as np

from grids import for_each
from torchmcl_forecast.grids import Grid
from torchmcl_forecast.seasons import calendar_features, filled, find_seasons

HOURLY = Grid("time", 3600e9)
DAILY = Grid("time", 86400e9)


def wave(period, n_times=900, n_series=3, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    season = rng.normal(size=(n_series, period))
    return np.tile(season, n_times // period + 1)[:, :n_times] + noise * rng.normal(size=(n_series, n_times))


def test_a_day_of_hours_is_found_and_noise_has_none():
    assert find_seasons(wave(24), HOURLY) == (24,)
    assert find_seasons(np.random.default_rng(0).normal(size=(3, 900)), HOURLY) == ()


@for_each(
    "grid, period",
    [
        *((Grid("month", months), 12 // months) for months in (1, 2, 3)),
        *((Grid("time", minutes * 60e9), 1440 // minutes) for minutes in (10, 15, 30, 60)),
        *((HOURLY, 168), (DAILY, 7), (DAILY, 365), (Grid("time", 7 * 86400e9), 52)),
        *((Grid("business", 1.0), 5), (Grid("business", 1.0), 261), (Grid("number", 1.0), 12)),
    ],
)
def test_seasons_of_all_frequencies_are_found_in_few_periods(grid, period):
    rng, n_times = np.random.default_rng(0), int(np.ceil(2.5 * period)) + 2
    noise, level = rng.normal(size=(2, n_times)), 1e6 + np.arange(n_times) * 4 / period
    smooth = np.sin(2 * np.pi * (np.arange(n_times) / period + rng.random((2, 1))))
    steps = np.resize(rng.normal(size=period), n_times)
    assert period in find_seasons(level + smooth + 0.3 * noise, grid)
    assert period in find_seasons(level + steps / steps.std() + 0.2 * noise, grid)


def test_series_without_seasons_have_none():
    rng = np.random.default_rng(0)
    walks = rng.normal(size=(20, 60)).cumsum(axis=1)
    series = [*walks, *(walks + 5 * np.arange(60)), *rng.normal(size=(20, 60))]
    grids = (Grid("month", 1), DAILY, Grid("month", 3))
    assert sum(find_seasons(values[None], grid) != () for values in series for grid in grids) <= 0.05 * 3 * len(series)


def test_a_week_is_found_beside_the_day_where_it_adds_something():
    assert find_seasons(wave(24) + wave(168, seed=1), HOURLY) == (24, 168)


def test_missing_values_and_constant_series_do_no_harm():
    values = wave(24)
    values[0, 100:140] = np.nan
    values[1] = 5.0
    assert find_seasons(values, HOURLY) == (24,)
    values[0, ::2] = np.nan  # without any change between neighboring values
    assert find_seasons(np.concatenate([values, wave(24)]), HOURLY) == (24,)
    assert find_seasons(np.ones((2, 50)), HOURLY) == ()


def test_a_gap_longer_than_a_season_is_filled_by_its_repetition():
    values = np.tile([1.0, 2.0, 3.0], 4)[None]
    gap = values.copy()
    gap[:, 4:10] = np.nan
    np.testing.assert_array_equal(filled(gap, 3), values)
    assert np.isnan(gap[0, 4])  # the input is not changed


def test_the_calendar_repeats_after_a_day_and_a_week():
    features = calendar_features(HOURLY, np.array(["2024-03-01T05"], dtype="datetime64[ns]"), 24 * 7)
    assert features.shape == (1, 169, 6)
    np.testing.assert_allclose(features[0, 0, [0, 1, 3, 4]], features[0, -1, [0, 1, 3, 4]], atol=1e-6)
    month = calendar_features(Grid("month", 1), np.array(["2024-03-01"], dtype="datetime64[ns]"), 12)
    np.testing.assert_allclose(month[0, 0], month[0, -1], atol=1e-6)
    assert calendar_features(Grid("number", 1.0), np.array([5]), 3).shape == (1, 4, 0)
