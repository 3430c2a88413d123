"""Prediction sets hold what they promise on fresh rows, whatever weights, copies or groups the table had."""

import numpy as np
import pytest

from tables import QUICK
from torchmcl_tables import DensityRegressor

# Networks that learn their rows by heart: rows that were trained on say nothing of fresh ones.
BY_HEART = {
    **QUICK,
    "n_epochs": 30,
    "batch_size": 512,
    "n_restarts": 1,
    "n_hypotheses": 3,
    "hidden": (32,),
    "weight_decay": 0.0,
    "validation_fraction": 0.4,
    "n_bins": 0,
}
N_TABLES = 10


def rough(rng, n):
    """Return a table of noise that no network can predict."""
    X = rng.uniform(-1, 1, size=(n, 6))
    return X, X[:, 0] + 0.5 * rng.normal(size=n)


def plain(rng):
    return *rough(rng, 200), None, None


def tripled(rng):
    X, y = rough(rng, 200)
    return X.repeat(3, axis=0), y.repeat(3), None, None


def equal_weights(rng):
    return *rough(rng, 200), np.full(200, 5), None


def integer_weights(rng):
    return *rough(rng, 200), rng.integers(1, 6, size=200), None


def real_weights(rng):
    return *rough(rng, 200), rng.uniform(0, 2, size=200), None


def near_copies(rng):
    X, y = rough(rng, 200)
    X, y, groups = X.repeat(4, axis=0), y.repeat(4), np.arange(200).repeat(4)
    return X + 1e-3 * rng.normal(size=X.shape), y + 1e-3 * rng.normal(size=800), None, groups


@pytest.mark.parametrize("make", [plain, tripled, equal_weights, integer_weights, real_weights, near_copies])
def test_nine_of_ten_fresh_rows_are_covered(make):
    covered = []
    for seed in range(N_TABLES):
        rng = np.random.default_rng(seed)
        X, y, weights, groups = make(rng)
        model = DensityRegressor(**{**BY_HEART, "random_state": seed}).fit(X, y, sample_weight=weights, groups=groups)
        fresh, truth = rough(rng, 300)
        covered.append(model.predict_interval(fresh).contains(truth).mean())
    assert 0.86 < np.mean(covered) < 0.96


def test_weights_that_say_where_fresh_rows_lie_are_believed():
    # Half of the rows are noisy and have four times the weight: four of five fresh rows are such.
    covered = []
    for seed in range(N_TABLES):
        rng = np.random.default_rng(seed)
        X, y = rough(rng, 240)
        noisy = X[:, 1] > 0
        y[noisy] += 4 * rng.normal(size=noisy.sum())
        model = DensityRegressor(**{**BY_HEART, "random_state": seed}).fit(
            X, y, sample_weight=np.where(noisy, 4.0, 1.0)
        )
        fresh, truth = rough(rng, 500)
        noisy = fresh[:, 1] > 0
        truth[noisy] += 4 * rng.normal(size=noisy.sum())
        inside = model.predict_interval(fresh).contains(truth)
        covered.append(np.average(inside, weights=np.where(noisy, 4.0, 1.0)))
    assert 0.86 < np.mean(covered) < 0.96


@pytest.mark.parametrize("factor", [5, 0.3, 1e6])
def test_weights_times_a_constant_change_nothing(factor):
    rng = np.random.default_rng(0)
    X, y, weights, _ = real_weights(rng)
    once = DensityRegressor(**{**BY_HEART, "n_epochs": 5}).fit(X, y, weights)
    more = DensityRegressor(**{**BY_HEART, "n_epochs": 5}).fit(X, y, factor * weights)
    np.testing.assert_array_equal(once.predict(X), more.predict(X))
    np.testing.assert_array_equal(once.predict_interval(X).lower, more.predict_interval(X).lower)


def test_groups_that_do_not_fit_are_named():
    X, y = rough(np.random.default_rng(0), 20)
    with pytest.raises(ValueError, match=r"DensityRegressor: `groups` must have a label for each of 20 rows, got"):
        DensityRegressor(**QUICK).fit(X, y, groups=np.arange(19))


def zero_inflated(rng, n):
    X = rng.normal(size=(n, 3))
    return X, np.where(rng.uniform(size=n) < 0.4, 0.0, np.exp(X[:, 0] + rng.normal(size=n)))


def counts(rng, n):
    X = rng.normal(size=(n, 3))
    return X, rng.poisson(np.exp(1 + 0.5 * X[:, 0])).astype(float)


def coarse_counts(rng, n):
    X = rng.integers(0, [3, 4], size=(n, 2)).astype(float)
    return X, rng.poisson(1 + X[:, 0]).astype(float)


@pytest.mark.parametrize("make", [zero_inflated, counts, coarse_counts])
def test_targets_with_ties_are_covered_as_often_as_others(make):
    covered = []
    for seed in range(N_TABLES):
        rng = np.random.default_rng(seed)
        model = DensityRegressor(**{**BY_HEART, "n_epochs": 5, "random_state": seed}).fit(*make(rng, 250))
        fresh, truth = make(rng, 300)
        sets = model.predict_interval(fresh)
        assert np.isfinite(sets.hull).all()
        covered.append(sets.contains(truth).mean())
    assert 0.86 < np.mean(covered) < 0.96
