"""The codebook is k-means of what happened, and is trusted as far as held-out windows support it."""

import numpy as np
import pandas as pd
import pytest
import torch
from quick_sales import QUICK

from torchmcl_forecast import Forecaster
from torchmcl_forecast.calibrating import best_shares
from torchmcl_forecast.network import Codebook, Ridge
from torchmcl_forecast.windows import Layout, Window


def window_of(targets, unit, inputs=None):
    inputs = torch.zeros(len(targets), 1) if inputs is None else inputs
    return Window(inputs, targets, torch.zeros_like(targets), unit)


def test_two_kinds_of_paths_are_found_with_their_shares_and_widths():
    rows = torch.where(torch.rand(2000, 1) < 0.25, 5.0, -5.0) + 0.5 * torch.randn(2000, 3)
    window = window_of(rows.unsqueeze(1), torch.ones(2000, 1, 1))
    found = Codebook(2, 1, 3).fit(window, seed=0)(window)
    order = found.hypotheses[0, :, 0, 0].argsort()
    torch.testing.assert_close(found.hypotheses[0, order, 0, 0], torch.tensor([-5.0, 5.0]), atol=0.1, rtol=0)
    torch.testing.assert_close(found.score_logits[0, order].softmax(-1), torch.tensor([0.75, 0.25]), atol=0.05, rtol=0)
    assert ((found.scale - 0.5).abs() < 0.1).all()


def test_fewer_windows_than_paths_and_windows_with_gaps_do_no_harm():
    window = window_of(torch.tensor([[[1.0, 2.0]], [[1.5, torch.nan]]]), torch.ones(2, 1, 1))
    found = Codebook(4, 1, 2).fit(window, seed=0)(window)
    torch.testing.assert_close(found.score_logits.softmax(-1)[0, 0], torch.tensor(1.0), atol=1e-4, rtol=0)
    empty = window_of(torch.full((3, 1, 2), torch.nan), torch.ones(3, 1, 1))
    assert Codebook(4, 1, 2).fit(empty, seed=0)(window).scale.isfinite().all()
    joint = window_of(torch.full((3, 2, 2), torch.nan), torch.full((3, 2, 1), 1e4, dtype=torch.float64))
    torch.testing.assert_close(Codebook(4, 2, 2).fit(joint, seed=0)(joint).scale, torch.ones(3, 4, 4, 1))


def test_channels_keep_half_of_their_usual_unit_and_the_larger_one_decides():
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (400, 1, 1), generator=generator) * 2.0 - 1
    # The first channel moves by 10 up or down; the second moves more in its own units, but hardly in values.
    targets = torch.cat([signs.expand(-1, 1, 2), 3 * torch.randn(400, 1, 2, generator=generator)], dim=1)
    units = torch.tensor([[[10.0], [1e-3]]], dtype=torch.float64).repeat(400, 1, 1)
    codebook = Codebook(2, 2, 2).fit(window_of(targets, units), seed=0)
    usual, wild = (codebook(window_of(targets[:1], units[:1] * f)).hypotheses.view(2, 2, 2) for f in (1.0, 4.0))
    torch.testing.assert_close(usual[:, 0].sort(dim=0).values, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    torch.testing.assert_close(wild, usual / 2)


def test_around_a_linear_map_only_its_errors_are_left():
    layout = Layout(horizon=2, context=3, periods=(1,), lags=(), n_channels=1, n_calendar=0)
    inputs, generator = torch.randn(3000, layout.n_inputs), torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(3000, 1, 2, generator=generator)
    window = window_of(inputs[:, None, :2] + noise, torch.ones(3000, 1, 1), inputs)
    found = Codebook(4, 1, 2, Ridge(layout, window).solved()).fit(window, seed=0)(window)
    center = (found.score_logits.softmax(-1)[..., None] * found.hypotheses.squeeze(-1)).sum(dim=1)
    torch.testing.assert_close(center, inputs[:, :2], atol=0.02, rtol=0)
    assert (found.scale < 0.15).all()


def test_the_penalty_of_the_linear_map_is_stronger_the_more_noise_there_is():
    layout = Layout(horizon=1, context=30, periods=(1,), lags=(), n_channels=1, n_calendar=0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1000, layout.n_inputs, generator=generator)
    noise = torch.randn(1000, 1, 1, generator=generator)

    def best(size):
        targets = 0.3 * inputs[:, None, :1] + size * noise
        windows = [
            window_of(targets[rows], torch.ones(500, 1, 1), inputs[rows]) for rows in (slice(500), slice(500, 1000))
        ]
        return Ridge(layout, windows[0]).best_strength(windows[1])

    assert best(0.001) < best(2.0)


def test_the_shares_follow_what_is_nearer():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(60, 3, generator=generator)
    near = truth.unsqueeze(1) + 0.1 * torch.randn(60, 8, 3, generator=generator)
    far = 5 * torch.randn(60, 8, 3, generator=generator)
    assert best_shares([near, far, far], truth)[0] > 0.7
    assert best_shares([far, near, far], truth)[:2] == (0.8, 0.2)
    assert best_shares([far, far, near], truth)[2] > 0.7


def test_on_a_random_walk_the_codebook_has_a_part():
    walk = np.random.default_rng(0).normal(size=(500, 1)).cumsum(axis=0)
    frame = pd.DataFrame(walk, columns=["walk"], index=pd.date_range("2020-01-01", periods=500))
    forecaster = Forecaster(**QUICK).fit(frame, horizon=5)
    assert 0 < forecaster.shares_[2] <= 1
    assert sum(forecaster.shares_) == pytest.approx(1.0)
    np.testing.assert_allclose(forecaster.forecast().probabilities.sum(), 1.0)
