"""Tables that once were learned wrongly, never ended, or failed late."""

import numpy as np
import pytest

from tables import QUICK
from torchmcl_tables import DensityRegressor


def test_a_coarse_table_is_learned_row_by_row():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, size=(1200, 1)).astype(float)
    y = (rng.uniform(size=1200) < np.where(X[:, 0] > 0, 0.9, 0.1)).astype(float)
    model = DensityRegressor(**{**QUICK, "n_epochs": 20}).fit(X, y)
    np.testing.assert_allclose(
        model.predict([[0.0], [1.0]]), [y[X[:, 0] == 0].mean(), y[X[:, 0] == 1].mean()], atol=0.06
    )


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
