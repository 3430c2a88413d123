"""Samples keep the correlation that errors had, and several moments calibrate tubes."""

import numpy as np
import pandas as pd
import pytest
import torch
from quick_sales import UNTRAINED

from grids import for_each
from torchmcl_forecast import Forecaster
from torchmcl_forecast.calibrating import best_spread, path_correlation, places_since, tube_level
from torchmcl_forecast.forecast import drawn_paths
from torchmcl_forecast.frames import Columns, read_panel
from torchmcl_forecast.windows import Layout, Source


@for_each("correlation", [0.0, 0.5, 0.9])
def test_the_correlation_of_drawn_paths_is_found_again(correlation):
    paths = torch.stack([torch.zeros(300, 1, 40), torch.full((300, 1, 40), 50.0)], dim=1)
    shares = torch.tensor([[0.7, 0.3]]).expand(300, -1)
    drawn = drawn_paths(paths, torch.full_like(paths, 2.0), shares, 1, correlation, torch.Generator().manual_seed(0))
    truth = drawn[:, 0]
    truth[:, :, 7] = torch.nan
    assert path_correlation(paths, torch.full_like(paths, 2.0), shares, truth) == pytest.approx(correlation, abs=0.03)


def test_scales_that_are_too_wide_or_too_narrow_are_corrected():
    torch.manual_seed(0)
    paths, truth = torch.randn(300, 3, 2, 5), torch.randn(300, 2, 5)
    shares = torch.tensor([1.0, 0.0, 0.0]).expand(300, 3)
    truth = truth + paths[:, 0]
    truth[0, 0, 0] = torch.nan
    ones = torch.ones_like(paths)
    found = [best_spread(paths, scale * ones, shares, truth) for scale in (2.0, 1.0, 0.8)]
    assert found == [0.5, 1.0, 1.25]


def rolled_coverage(scores, later, adapted):
    """Return the share of later paths inside their tubes, with a fixed level or one that follows the windows."""
    inside = [
        (window <= tube_level(scores, 0.9, later[:place] if adapted else [])).double().mean()
        for place, window in enumerate(later)
    ]
    return float(torch.stack(inside).mean())


@for_each("size", [0.6, 1.0, 1.5])
def test_tubes_hold_their_share_when_errors_become_smaller_or_larger(size):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(300, generator=generator).double().exp()
    later = [size * torch.randn(7, generator=generator).double().exp() for _ in range(40)]
    fixed, adapted = (rolled_coverage(scores, later, how) for how in (False, True))
    assert adapted == pytest.approx(0.9, abs=0.02)
    assert abs(adapted - 0.9) <= abs(fixed - 0.9) + 0.005


def test_the_level_is_a_score_whatever_happens():
    scores = torch.arange(1.0, 51.0).double()
    assert tube_level(scores, 0.9) == 46
    assert tube_level(scores, 0.9, [torch.full((50,), 1e9)] * 30) == 50
    assert tube_level(scores, 0.9, [torch.zeros(50)] * 200) >= 1


def frame_of(n_times, first="2024-01-01"):
    values = np.random.default_rng(0).normal(size=(n_times, 2)).cumsum(axis=0)
    return pd.DataFrame(values, columns=["a", "b"], index=pd.date_range(first, periods=n_times))


def test_windows_since_the_fit_begin_after_its_end_and_end_with_the_series():
    layout = Layout(horizon=5, context=12, periods=(1,), lags=(), n_channels=1, n_calendar=0)
    last = np.datetime64("2024-02-09")  # after 40 days
    for n_times, starts in ((40, []), (44, []), (45, [40]), (53, [43, 48]), (30, [])):
        panel = read_panel("test", frame_of(n_times), Columns())
        found = places_since(Source(panel, layout, 1), panel, last)
        assert [some[:, 1].tolist() for some in found] == [[start] * 2 for start in starts]
    later = pd.concat([frame_of(53).iloc[:, :1], frame_of(45).iloc[:, 1:]], axis=1)  # b ends before a
    panel = read_panel("test", later.melt(ignore_index=False, var_name="unique_id", value_name="y").dropna(), Columns())
    found = places_since(Source(panel, layout, 1), panel, last)
    assert [some.tolist() for some in found] == [[[0, 43]], [[0, 48], [1, 48]]]


@pytest.mark.parametrize("joint", [False, True])
def test_tubes_widen_after_windows_that_left_them_and_are_kept_in_files(tmp_path, joint):
    frame = frame_of(400)
    forecaster = Forecaster(**UNTRAINED, joint=joint).fit(frame.iloc[:360], horizon=4)
    assert forecaster.forecast().tube_level == forecaster.tube_level_
    assert forecaster.forecast(frame.iloc[:362]).tube_level == forecaster.tube_level_  # no whole window yet
    wild = frame.copy()
    wild.iloc[360:] += np.where(np.arange(40) // 4 % 2, 80.0, -80.0)[:, None]
    levels = [forecaster.forecast(given).tube_level for given in (frame, wild)]
    assert levels[1] > max(levels[0], forecaster.tube_level_)
    forecaster.save(tmp_path / "model")
    assert Forecaster.load(tmp_path / "model").forecast(wild).tube_level == levels[1]
