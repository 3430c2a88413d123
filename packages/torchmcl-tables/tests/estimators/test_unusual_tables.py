"""Tables that once were learned wrongly, never ended, or failed late."""

import numpy as np
import pytest

from tables import QUICK
from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators.density import relevance_of
from torchmcl_tables.estimators.rows import Encoder, Rows


def test_a_coarse_table_is_learned_row_by_row():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, size=(1200, 1)).astype(float)
    y = (rng.uniform(size=1200) < np.where(X[:, 0] > 0, 0.9, 0.1)).astype(float)
    model = DensityRegressor(**{**QUICK, "n_epochs": 20}).fit(X, y)
    np.testing.assert_allclose(
        model.predict([[0.0], [1.0]]), [y[X[:, 0] == 0].mean(), y[X[:, 0] == 1].mean()], atol=0.06
    )


def finite_table(seed):
    """Return a table with rare flags, rounded and heavy-tailed columns, constants, copies and missing values."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(60, 300))
    columns = [
        *(rng.random((n, rng.integers(1, 20))) < rng.choice([0.02, 0.5])).T,
        *np.round(rng.random((n, 3)) * 10 ** rng.integers(0, 4)).T,
        *rng.standard_t(1, (n, 2)).T * 10.0 ** rng.integers(-8, 9),
        np.full(n, 7.0),
        np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
    ]
    X = np.stack([*columns, columns[0]], axis=1).astype(float)
    mean = X[:, 0] + X[:, 1]
    targets = (rng.poisson(mean + 1), np.where(mean > 1, rng.integers(1, 11, n) * 10.0, 0.0), rng.standard_t(1, n))
    return X, np.append(targets[seed % 3][:-1], 3.5).astype(float)


def table_with_rare_flags(seed, n=500):
    """Return a table for which scikit-learn computes negative importances, for some seeds."""
    rng = np.random.default_rng(seed)
    flags, rounded = rng.integers(0, 2, (n, 12)), np.round(rng.random((n, 3)) * 100)
    X = np.c_[flags, rounded, rng.random((n, 12)) < 0.02].astype(float)
    y = np.where(X[:, 0] + X[:, 1] > 1, rng.integers(1, 11, n) * 10.0, 0.0)
    return X, (y - y.mean()) / y.std()


def test_the_relevance_of_columns_is_positive_in_any_table():
    for X, y in (*map(table_with_rare_flags, (4, 5, 18, 32)), *map(finite_table, range(3))):
        rows = Rows(X, y[:, None], np.ones(len(X)), np.arange(len(X)))
        relevance = relevance_of(Encoder.fit(rows, 0), rows, rows.targets, 0)
        assert (relevance > 0).all()
        assert relevance.max() == 1


@pytest.mark.parametrize("seed", range(3))
def test_any_finite_table_fits(seed):
    X, y = finite_table(seed)
    model = DensityRegressor(n_epochs=1, n_restarts=1, hidden=(4,), random_state=seed).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(model.predict_hypotheses(X).values).all()
    assert np.isfinite(model.log_prob(X, y)).all()


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_targets_whose_squares_overflow_are_refused_before_the_training(size):
    X = np.arange(60.0)[:, None]
    with pytest.raises(ValueError, match="Its squares overflow: use other units"):
        DensityRegressor().fit(X, size * np.sin(X[:, 0]))


@pytest.mark.parametrize(("n_outputs", "n_answers"), [(1, 500), (2, 110)])
def test_more_answers_than_rows_have_an_end(n_outputs, n_answers):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = X[:, :1] + rng.normal(size=(100, n_outputs))
    model = DensityRegressor(**{**QUICK, "n_epochs": 1}).fit(X, y)
    values, probabilities = model.predict_hypotheses(X[:2], n_hypotheses=n_answers)
    assert values.shape == (2, n_answers, n_outputs)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
