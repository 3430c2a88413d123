"""The codebook is k-means of what happened, and is trusted as far as held-out windows support it."""

import numpy as np
import pandas as pd
import torch
from quick_sales import QUICK

from torchmcl_forecast import Forecaster
from torchmcl_forecast.codebook import Codebook, best_share


def test_two_kinds_of_paths_are_found_with_their_shares_and_widths():
    rows = torch.where(torch.rand(2000, 1) < 0.25, 5.0, -5.0) + 0.5 * torch.randn(2000, 3)
    found = Codebook(2, 1, 3).fit(rows.unsqueeze(1), torch.ones(2000, 1, 1), seed=0)(torch.ones(4, 1, 1))
    order = found.hypotheses[0, :, 0, 0].argsort()
    torch.testing.assert_close(found.hypotheses[0, order, 0, 0], torch.tensor([-5.0, 5.0]), atol=0.1, rtol=0)
    torch.testing.assert_close(found.score_logits[0, order].softmax(-1), torch.tensor([0.75, 0.25]), atol=0.05, rtol=0)
    assert ((found.scale - 0.5).abs() < 0.1).all()


def test_fewer_windows_than_paths_and_windows_with_gaps_do_no_harm():
    one = torch.ones(1, 1, 1)
    rows = torch.tensor([[[1.0, 2.0]], [[1.5, torch.nan]]])
    found = Codebook(4, 1, 2).fit(rows, torch.ones(2, 1, 1), seed=0)(one)
    torch.testing.assert_close(found.score_logits.softmax(-1)[0, 0], torch.tensor(1.0), atol=1e-4, rtol=0)
    nothing = Codebook(4, 1, 2).fit(torch.full((3, 1, 2), torch.nan), torch.ones(3, 1, 1), seed=0)
    assert nothing(one).scale.isfinite().all()


def test_channels_keep_half_of_their_usual_unit_and_the_larger_one_decides():
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (400, 1, 1), generator=generator) * 2.0 - 1
    # The first channel moves by 10 up or down; the second moves more in its own units, but hardly in values.
    targets = torch.cat([signs.expand(-1, 1, 2), 3 * torch.randn(400, 1, 2, generator=generator)], dim=1)
    units = torch.tensor([[[10.0], [1e-3]]], dtype=torch.float64).expand(400, -1, -1)
    codebook = Codebook(2, 2, 2).fit(targets, units, seed=0)
    usual, wild = (codebook(units[:1] * times).hypotheses.view(2, 2, 2) for times in (1.0, 4.0))
    torch.testing.assert_close(usual[:, 0].sort(dim=0).values, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    torch.testing.assert_close(wild, usual / 2)


def test_the_share_follows_what_is_nearer():
    truth = torch.randn(60, 3)
    near, far = truth.unsqueeze(1) + 0.1 * torch.randn(60, 8, 3), 5 * torch.randn(60, 8, 3)
    assert best_share(near, far, truth) < 0.3
    assert best_share(far, near, truth) > 0.7


def test_on_a_random_walk_the_codebook_has_a_part():
    walk = np.random.default_rng(0).normal(size=(500, 1)).cumsum(axis=0)
    frame = pd.DataFrame(walk, columns=["walk"], index=pd.date_range("2020-01-01", periods=500))
    forecaster = Forecaster(**QUICK).fit(frame, horizon=5)
    assert 0 < forecaster.codebook_share_ <= 1
    np.testing.assert_allclose(forecaster.forecast().probabilities.sum(), 1.0)
