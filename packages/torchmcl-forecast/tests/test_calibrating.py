"""Samples keep the correlation that errors had, and several moments calibrate tubes."""

import numpy as np
import pandas as pd
import pytest
import torch
from quick_sales import QUICK

from torchmcl_forecast import Forecaster
from torchmcl_forecast.calibrating import best_spread, choose_calibration, path_correlation
from torchmcl_forecast.forecast import drawn_paths
from torchmcl_forecast.frames import Columns, read_panel
from torchmcl_forecast.windows import Layout, Source


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_correlation_of_drawn_paths_is_found_again(correlation):
    paths = torch.stack([torch.zeros(300, 1, 40), torch.full((300, 1, 40), 50.0)], dim=1)
    shares = torch.tensor([[0.7, 0.3]]).expand(300, -1)
    drawn = drawn_paths(paths, torch.full_like(paths, 2.0), shares, 1, correlation, torch.Generator().manual_seed(0))
    truth = drawn[:, 0]
    truth[:, :, 7] = torch.nan
    assert path_correlation(paths, torch.full_like(paths, 2.0), shares, truth) == pytest.approx(correlation, abs=0.03)


def test_many_series_are_calibrated_at_several_moments():
    values = np.random.default_rng(0).normal(size=(400, 60))
    frame = pd.DataFrame(values.T, columns=[f"s{k}" for k in range(400)], index=pd.date_range("2024-01-01", periods=60))
    layout = Layout(horizon=3, context=12, periods=(1,), lags=(), n_channels=1, n_calendar=0)
    source = Source(read_panel("test", frame, Columns()), layout, 1)
    calibration = choose_calibration(source, 0.9)
    assert calibration.n_steps == 12
    assert calibration.places[:, 1].unique().tolist() == [48, 51, 54, 57]


def test_a_walk_has_samples_whose_errors_last():
    walk = np.random.default_rng(0).normal(size=(500, 1)).cumsum(axis=0)
    frame = pd.DataFrame(walk, columns=["walk"], index=pd.date_range("2020-01-01", periods=500))
    assert Forecaster(**QUICK).fit(frame, horizon=5).correlation_ > 0.2


def test_scales_that_are_too_wide_or_too_narrow_are_corrected():
    torch.manual_seed(0)
    paths, truth = torch.randn(300, 3, 2, 5), torch.randn(300, 2, 5)
    shares = torch.tensor([1.0, 0.0, 0.0]).expand(300, 3)
    truth = truth + paths[:, 0]
    truth[0, 0, 0] = torch.nan
    ones = torch.ones_like(paths)
    found = [best_spread(paths, scale * ones, shares, truth) for scale in (2.0, 1.0, 0.8)]
    assert found == [0.5, 1.0, 1.25]


def test_missing_values_do_not_change_the_spread():
    generator = torch.Generator().manual_seed(0)
    truth, paths = torch.randn(300, 2, 5, generator=generator), torch.full((300, 1, 2, 5), 3.0)  # all are wrong by 3
    expected = best_spread(paths[:150], paths[:150] / 3, torch.ones(150, 1), truth[:150] + 3)
    truth[150:] = torch.nan
    assert best_spread(paths, paths / 3, torch.ones(300, 1), truth + 3) == expected == 1.0


def test_the_spread_is_that_of_all_channels():
    noise = torch.randn(300, 2, 8, generator=torch.Generator().manual_seed(0))
    noise[:, 1] *= 0.3
    centers = torch.zeros(300, 1, 2, 8)
    both, first = (
        best_spread(centers[:, :, :n], centers[:, :, :n] + 1, torch.ones(300, 1), noise[:, :n]) for n in (2, 1)
    )
    assert both < first == 1.0


@pytest.mark.parametrize("n_channels", [1, 4, 7, 8, 16])
def test_the_spread_is_measured_at_several_steps_of_the_horizon(n_channels):
    noise = torch.randn(200, n_channels, 30, generator=torch.Generator().manual_seed(0))
    noise *= torch.where(torch.arange(30) == 0, 0.5, 1.4)  # the first step is not typical
    centers = torch.zeros(200, 1, n_channels, 30)
    assert best_spread(centers, centers + 1, torch.ones(200, 1), noise) > 1


def test_the_spread_is_1_without_known_values():
    centers = torch.zeros(3, 1, 1, 4)
    assert best_spread(centers, centers + 1, torch.ones(3, 1), torch.full((3, 1, 4), torch.nan)) == 1
