"""`DensityRegressor` with the interface of skpro: its checks, calibrated intervals, and exact energies."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad

pytest.importorskip("skpro", reason="skpro is not installed")

from torchmcl_tables import DensityRegressor
from torchmcl_tables.adapters import KernelDistribution, SkproRegressor

QUICK = {"n_epochs": 2, "n_restarts": 1, "hidden": (4,), "random_state": 0}


def frames(n=120, n_outputs=1):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=n), "town": rng.choice(["Ulm", "Bonn"], size=n)}, index=range(7, n + 7))
    y = pd.DataFrame({f"y{k}": (k + 1) * X["size"] + 0.1 * rng.normal(size=n) for k in range(n_outputs)})
    return X, y


def test_the_regressor_passes_the_checks_of_skpro():
    checks = pytest.importorskip("skpro.utils.estimator_checks", reason="skpro is not installed")
    with warnings.catch_warnings(action="ignore"):
        results = checks.check_estimator(SkproRegressor, raise_exceptions=True, verbose=False)
    assert set(results.values()) == {"PASSED"}


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_intervals_are_the_calibrated_sets(n_outputs):
    X, y = frames(n_outputs=n_outputs)
    model = SkproRegressor(DensityRegressor(**QUICK)).fit(X, y)
    found = model.predict_interval(X.head(), coverage=[0.5, 0.8])
    for share in (0.5, 0.8):
        lower, upper = model.regressor_.predict_interval(X.head(), share).hull
        for k, name in enumerate(y.columns):
            ours = found[name, share]
            np.testing.assert_array_equal(ours["lower"], lower.reshape(5, -1)[:, k])
            np.testing.assert_array_equal(ours["upper"], upper.reshape(5, -1)[:, k])
    assert found.index.equals(X.head().index)


def test_quantiles_and_densities_are_those_of_the_regressor():
    X, y = frames()
    model = SkproRegressor(DensityRegressor(**QUICK)).fit(X, y)
    density = model.predict_proba(X.head())
    expected = model.regressor_.log_prob(X.head(), y.head().to_numpy()[:, 0])
    np.testing.assert_allclose(density.log_pdf(y.head()).to_numpy()[:, 0], expected, rtol=1e-10)
    quantiles = model.predict_quantiles(X.head(), alpha=[0.1, 0.5])
    for level in (0.1, 0.5):
        np.testing.assert_allclose(density.cdf(quantiles["y0", level].to_frame("y0")), level, atol=1e-8)


def test_a_further_batch_moves_the_model():
    X, y = frames()
    model = SkproRegressor(DensityRegressor(**QUICK)).fit(X, y)
    before = model.predict(X)
    assert not before.equals(model.update(X, y + 5).predict(X))


def mixtures():
    rng = np.random.default_rng(0)
    shares = rng.uniform(size=(3, 4))
    parts = shares / shares.sum(axis=1, keepdims=True), rng.normal(size=(3, 4, 2)), rng.uniform(0.2, 1, size=(3, 4, 2))
    return KernelDistribution(*parts, index=[5, 6, 7], columns=["a", "b"])


def test_the_energy_is_the_mean_distance_of_two_draws():
    density = mixtures()
    for row in (0, 2):
        # The mean distance of two draws is twice the integral of F (1 - F).
        expected = sum(
            2 * quad(lambda x, at=density.iat[row, k]: at.cdf(x) * (1 - at.cdf(x)), -12, 12, limit=200)[0]
            for k in range(2)
        )
        np.testing.assert_allclose(density.energy().to_numpy()[row, 0], expected, rtol=1e-6)
        np.testing.assert_allclose(density.iloc[[row]].energy().to_numpy()[0, 0], expected, rtol=1e-6)


def test_draws_have_the_moments_of_the_density():
    np.random.seed(0)
    density = mixtures()
    draws = density.sample(4000)
    assert draws.index.nlevels == 2
    means = draws.groupby(level=1).mean()
    np.testing.assert_allclose(means, density.mean(), atol=0.08)
    np.testing.assert_allclose(draws.groupby(level=1).var(), density.var(), rtol=0.1)
    assert density.sample().index.equals(density.index)
    assert isinstance(density.iat[0, 1].sample(), float)
    assert density.iat[0, 1].sample(3).shape == (3, 1)
