"""Windows are in units of their own past, and see nothing of their future."""

import numpy as np
import pytest
import torch

from grids import for_each
from torchmcl_forecast.frames import Panel
from torchmcl_forecast.grids import Grid
from torchmcl_forecast.windows import Layout, Source, described

RNG = np.random.default_rng(0)
GRID = Grid("number", 1.0)


def source(values, *, horizon=4, context=12, periods=(1, 6), lags=(), n_channels=1, means=()):
    values = np.atleast_2d(np.asarray(values, dtype=float))
    panel = Panel(np.arange(len(values)), np.full(len(values), values.shape[1]), values, GRID)
    return Source(panel, Layout(horizon, context, periods, lags, n_channels, 0, means=means), season=6)


@for_each("unit, level", [(5000, 1000), (1e-12, 0), (1, 1e9), (-1, -1e9), (100, 1e12)])
def test_inputs_and_targets_do_not_depend_on_level_and_unit_of_a_series(unit, level):
    values = RNG.normal(size=60).cumsum()
    one, other = source(values), source(unit * values + level)
    windows = [each.window(each.places()) for each in (one, other)]
    sign = 1 if unit > 0 else -1
    torch.testing.assert_close(windows[0].targets, sign * windows[1].targets, rtol=1e-3, atol=1e-3)
    linear = [window.inputs[:, : one.layout.n_linear] for window in windows]
    torch.testing.assert_close(linear[0], sign * linear[1], rtol=1e-3, atol=1e-3)


def test_a_window_sees_nothing_of_its_future():
    values = RNG.normal(size=60)
    later = values.copy()
    later[40:] += 1.0
    place = torch.tensor([[0, 40]])
    one, other = source(values), source(later)
    one.floor = other.floor = torch.zeros(1, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(one.window(place).inputs, other.window(place).inputs)
    torch.testing.assert_close(one.window(place).naive, other.window(place).naive)


def test_targets_times_unit_plus_naive_are_the_values():
    values = RNG.normal(size=60)
    each = source(values)
    window = each.window(torch.tensor([[0, 30]]))
    torch.testing.assert_close(
        (window.targets * window.unit + window.naive)[0, 0].numpy(), values[30:34], rtol=1e-5, atol=1e-5
    )


def test_the_best_naive_forecast_repeats_the_season_of_a_seasonal_series_and_the_last_value_of_a_walk():
    season = np.tile(RNG.normal(size=6), 10) + 0.01 * RNG.normal(size=60)
    torch.testing.assert_close(source(season).window(torch.tensor([[0, 48]])).naive[0, 0].numpy(), season[42:46])
    walk = RNG.normal(size=60).cumsum()
    found = source(walk).window(torch.tensor([[0, 48]])).naive[0, 0].numpy()
    np.testing.assert_allclose(found, walk[47])


def test_missing_targets_are_nan_and_missing_inputs_are_filled():
    values = RNG.normal(size=60)
    values[[20, 41]] = np.nan
    window = source(values).window(torch.tensor([[0, 40]]))
    assert window.inputs.isfinite().all()
    assert window.targets.isnan()[0, 0].tolist() == [False, True, False, False]


@for_each("values", [np.zeros(40), np.full(40, 7.0), 1e12 + np.arange(40.0), [0.0] * 39 + [1.0], [-1e-9] * 40])
def test_flat_huge_and_intermittent_series_give_finite_windows(values):
    each = source(values)
    window = each.window(each.places())
    assert window.inputs.isfinite().all()
    assert window.targets.isfinite().all()
    assert each.window(each.ends()).inputs.isfinite().all()


def test_a_long_season_is_read_at_the_horizon():
    values = RNG.normal(size=200)
    each = source(values, lags=(50,))
    assert each.layout.past == 50
    season = each.window(torch.tensor([[0, 100]])).inputs[0, 12 + 3 * 4 : 12 + 4 * 4]
    naive, unit = each.window(torch.tensor([[0, 100]]))[2:]
    torch.testing.assert_close(
        season.double() * unit[0, 0] + naive[0, 0], torch.from_numpy(values[50:54]), rtol=1e-4, atol=1e-4
    )


def seasonal_mean(values, before, n, season=6, horizon=4):
    last = np.arange(before - season, before)[:horizon]
    return np.array([np.nanmean(values[[t - k * season for k in range(n) if t >= k * season]]) for t in last])


@for_each("before", [20, 100])
def test_means_of_the_last_seasons_are_read_at_the_horizon(before):
    values = 1e6 + RNG.normal(size=200)
    values[RNG.random(200) < 0.2] = np.nan
    each = source(values, means=(3, 8))
    assert each.layout.past == 12
    window = each.window(torch.tensor([[0, before]]))
    found = window.inputs[0, 12 + 3 * 4 : 12 + 5 * 4].double().view(2, 4) * window.unit[0, 0] + window.naive[0, 0]
    known = np.asarray(each.known[0, 0, 12:-4])  # missing values are filled
    np.testing.assert_allclose(found[0], seasonal_mean(known, before, 3), atol=1e-4)
    few = before < 4 * 6  # less than half of eight seasons
    np.testing.assert_allclose(found[1], window.naive[0, 0] if few else seasonal_mean(known, before, 8), atol=1e-4)


@for_each("horizon", [12, 24, 48, 96])
def test_a_season_is_repeated_even_if_the_horizon_is_a_multiple_of_it(horizon):
    hours = torch.arange(400.0)
    values = torch.sin(2 * torch.pi * hours / 24) + 0.01 * torch.randn(400, generator=torch.Generator().manual_seed(0))
    layout = Layout(horizon=horizon, context=300, periods=(1, 24), lags=(), n_channels=1, n_calendar=0)
    _, naive, unit = described(values[None, None, :300].double(), torch.zeros(1, 1, 1), layout)
    assert (naive - values[300 : 300 + horizon]).abs().max() < 0.1
    assert unit.item() < 0.03


@for_each("n_given", [100, 12])
def test_the_unit_of_a_walk_is_its_mean_change_over_a_few_steps_of_the_horizon(n_given):
    walk = np.random.default_rng(3).normal(size=100).cumsum()[-n_given:]
    read = torch.full((1, 1, 100), torch.nan, dtype=torch.float64)
    read[..., 100 - n_given :] = torch.from_numpy(walk)
    layout = Layout(horizon=10, context=100, periods=(1,), lags=(), n_channels=1, n_calendar=0)
    unit = described(read, torch.zeros(1, 1, 1), layout)[2].item()
    lags = [lag for lag in (2, 5, 7, 10) if n_given - lag >= 3]  # with fewer pairs, a lag does not count
    assert unit == pytest.approx(np.mean([np.abs(walk[lag:] - walk[:-lag]).mean() for lag in lags]))
