"""The compiled pass of the networks of a kind equals their outputs; kernels can be moved, joined and trimmed."""

import numpy as np
import pytest
import torch

from torchmcl import MultiHypothesisMLP
from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators.kernels import Kernels, network_kernels, network_pass
from torchmcl_tables.estimators.rows import Encoder, Rows


def table(n=50, seed=0, *, missing=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    X[:, 1] = rng.integers(0, 6, size=n)
    X[:, 3] = 2.5  # constant: no bins
    if missing:
        X[rng.uniform(size=X.shape) < 0.2] = np.nan
    return X


def encoder(X, n_bins):
    return Encoder.fit(Rows(X, X, np.ones(len(X)), np.arange(len(X))), n_bins)


def networks(inputs, n, hidden=(7, 5), n_outputs=2, dropout=0.0):
    torch.manual_seed(0)
    options = {"hidden": hidden, "scales": True, "dropout": dropout}
    return [MultiHypothesisMLP(inputs.n_columns, n_outputs, 3, **options).eval() for _ in range(n)]


@pytest.mark.parametrize("missing", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize(("n_bins", "n_networks", "hidden"), [(0, 3, (7, 5)), (2, 1, (4,)), (9, 2, ())])
@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["compiled", "by torch"])  # the compiled pass has no dropout
def test_kernels_are_the_outputs_of_the_modules(missing, n_bins, n_networks, hidden, dropout):
    X = table(missing=missing)
    inputs = encoder(X, n_bins)
    nets = networks(inputs, n_networks, hidden, dropout=dropout)
    asked = np.vstack([table(30, seed=1, missing=missing), 100 * table(5, seed=2)])
    kernels = network_pass(nets, inputs, "cpu")(asked, widths=True)
    expected = network_kernels([net.double() for net in nets], torch.from_numpy(inputs(asked, np.float64)))
    for ours, theirs in zip(kernels, expected, strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs.expand_as(ours), rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(kernels.probabilities.sum(dim=1), torch.ones(35, dtype=torch.float64))


def test_no_rows_have_no_kernels():
    X = table()
    inputs = encoder(X, 5)
    assert network_pass(networks(inputs, 2), inputs, "cpu")(X[:0], widths=True).values.shape == (0, 6, 2)


def test_kernels_move_stretch_and_join():
    torch.manual_seed(0)
    one = Kernels(torch.randn(4, 3, 2), torch.rand(4, 3).softmax(dim=-1), torch.rand(4, 3, 2))
    moved = one.moved(torch.tensor([2.0, 3.0]), torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(moved.values[..., 1], 3 * one.values[..., 1] - 1)
    torch.testing.assert_close(moved.widths[..., 0], 2 * one.widths[..., 0])
    torch.testing.assert_close(one.stretched(0.5).widths, one.widths / 2)
    both = Kernels.joined([one.times(0.25), moved.times(0.75)])
    assert both.values.shape == (4, 6, 2)
    torch.testing.assert_close(both.probabilities.sum(dim=1), torch.ones(4))


@pytest.mark.parametrize(("n_kernels", "share"), [(1, 0.2), (2, 0.01), (7, 0.49), (102, 0.2)])
def test_a_share_of_the_mass_is_cut_off_at_each_end(n_kernels, share):
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(60, n_kernels)), rng.uniform(size=(60, n_kernels)) ** 4
    values[20:40] = values[20:40].round()  # ties
    values[40:50] = 3.0
    weights[50:, ::2] = 0 if n_kernels > 1 else 1
    weights /= weights.sum(axis=1, keepdims=True)
    given = Kernels(*(torch.from_numpy(part) for part in (values[..., None], weights, np.ones((60, n_kernels, 1)))))
    expected = np.zeros_like(weights)
    for row, (places, masses) in enumerate(zip(values, weights, strict=True)):
        below = 0.0
        for k in np.argsort(places, kind="stable"):
            above = below + masses[k]
            expected[row, k] = max(min(above, 1 - share) - max(below, share), 0)
            below = above
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(given.trimmed(share).probabilities, expected, atol=1e-12)
    as_torch = given._replace(values=given.values.requires_grad_()).trimmed(share)  # not for the compiled loop
    np.testing.assert_allclose(as_torch.means().detach()[:, 0], (expected * values).sum(axis=1), atol=1e-12)


@pytest.mark.parametrize("targets", ["one", "two", "few values"])
def test_means_are_those_of_the_kernels(targets):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 2)), rng.normal(size=(120, 2))
    y = {"one": y[:, 0], "two": y, "few values": y[:, 0].round()}[targets]
    model = DensityRegressor(n_epochs=2, hidden=(4,), n_restarts=2, random_state=0).fit(X, y)
    blend = model._fitted.predictive
    assert torch.equal(blend.means(X), blend.kernels(X, knowing=True).means())
