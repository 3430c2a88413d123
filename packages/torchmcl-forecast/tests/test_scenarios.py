"""Samples of any forecaster as a few scenarios, with the loss of telling no more."""

import numpy as np
import pytest
import torch

from grids import for_each
from torchmcl_forecast import reduce_samples
from torchmcl_forecast.scenarios import settled


def forks(n_series=2, n_samples=400, horizon=6, seed=0):
    rng = np.random.default_rng(seed)
    slope = rng.choice([-1.0, 0.0, 2.0], size=(n_series, n_samples, 1), p=[0.2, 0.5, 0.3])
    return slope * np.arange(1, horizon + 1) + 0.01 * rng.normal(size=(n_series, n_samples, horizon))


def test_the_branches_are_found_with_their_shares():
    found = reduce_samples(forks(), n=3)
    np.testing.assert_allclose(found.paths[0, :, -1], [0, 12, -6], atol=0.1)
    np.testing.assert_allclose(found.probabilities[0], [0.5, 0.3, 0.2], atol=0.08)
    np.testing.assert_allclose(found.loss, 0.01, rtol=0.1)
    assert (found.spread > 100 * found.loss).all()
    assert (np.abs(found.energy) < 0.01).all()


def test_the_loss_falls_with_more_scenarios_and_is_zero_for_all():
    samples = np.random.default_rng(0).normal(size=(30, 4))
    losses = [float(reduce_samples(samples, n=n, moved=False).loss[0]) for n in (1, 3, 30)]
    assert losses[0] > losses[1] > losses[2] == 0


@for_each(
    "samples, n, message",
    [
        (np.zeros(5), 1, "`samples` must be numbers of shape"),
        (np.zeros((5, 2)), 6, "`n` must be at most the number of samples, 5"),
        (np.full((5, 2), np.nan), 2, "`samples` must be finite"),
        (np.zeros((5, 2)), 0, "`n` must be >= 1"),
        (np.array([["a"]]), 1, "`samples` must be numbers of shape"),
    ],
)
def test_bad_samples_are_named(samples, n, message):
    with pytest.raises(ValueError, match=f"^reduce_samples: {message}"):
        reduce_samples(samples, n)


def nearest(centers, samples):
    return float(torch.cdist(samples, centers).amin(dim=-1).mean())


def test_settled_centers_are_nearer_to_new_samples():
    given = torch.from_numpy(np.random.default_rng(0).standard_t(3, size=(70, 2000, 3)))  # several groups at a time
    samples, others = given[:, :1000], given[:, 1000:]
    before = samples[:, :5]
    after, shares = settled(before, samples, samples)
    assert nearest(after, others) < 0.9 * nearest(before, others)
    few, _ = settled(before, before, before)  # each center is its only sample
    torch.testing.assert_close(few, before)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(70).double())
