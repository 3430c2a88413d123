"""Targets and inputs far from zero, and very large and very small ones, lose no digits."""

import numpy as np
import pytest

from tables import QUICK, forked
from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators.rows import Scaler

SOME = [(1.7e9, 10.0), (0.0, 1e-100)]
OTHERS = [(-1e15, 1e4), (1.0, 1e-9), (0.0, 1e-12), (0.0, 1e30), (1e35, 1e30)]
FAR = [*SOME, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
QUICKER = {**QUICK, "n_epochs": 30, "n_hypotheses": 2, "n_bins": 0}


@pytest.mark.parametrize(("center", "unit"), FAR)
def test_answers_are_as_near_as_for_targets_of_size_one(center, unit):
    X, y = forked(120)
    X, far = X.astype(np.float32), center + unit * y
    model = DensityRegressor(**QUICKER, n_restarts=2).fit(X, far)

    def back(values):
        return (values - center) / unit

    answers = back(model.predict_hypotheses(X).values[..., 0])
    assert ((answers - y[:, None]) ** 2).min(axis=1).mean() < 0.1
    assert model.distortion(X, far) / unit < 0.1 * unit
    np.testing.assert_allclose(
        back(model.predict(X)), (answers * model.predict_hypotheses(X).probabilities).sum(1), atol=5e-2
    )
    assert model.score(X, far) > -0.5
    samples = back(model.sample(X, 5, random_state=0))
    assert len(np.unique(samples)) > 0.9 * samples.size
    assert (np.abs(samples) < 4).mean() > 0.95
    assert np.mean(model.log_prob(X, far)) + np.log(unit) > -2
    # The density keeps the background, which the mean leaves out.
    blend = model._fitted.predictive
    mean, unknown = back(model.predict(X)), model.member_weights_["background"]
    if unknown < 0.3:  # else it is part of the answers
        mean = (1 - unknown) * mean + unknown * back(blend.targets.scaler.mean)
    np.testing.assert_allclose(back(model.predict_distribution(X).mean[:, 0].numpy()), mean, atol=1e-4)
    sets = model.predict_interval(X)
    assert sets.contains(far).mean() > 0.6
    assert 0.01 * unit < sets.width.mean() < 6 * unit


@pytest.mark.parametrize(("center", "unit"), FAR)
def test_inputs_of_any_size_are_told_apart(center, unit):
    X, y = forked(150)
    for kind in ({}, {"n_bins": 5, "ensemble": False}):
        model = DensityRegressor(**QUICKER | kind, n_restarts=1).fit(center + unit * X, np.abs(y))
        assert model.score(center + unit * X, np.abs(y)) > 0.8


@pytest.mark.parametrize(("center", "unit"), [*SOME, *OTHERS])
def test_mean_and_scale_are_exact(center, unit):
    column = np.array([[-1.0], [0.0], [4.0]])
    scaler = Scaler.fit(center + unit * column, np.array([1.0, 2.0, 1.0]))
    np.testing.assert_allclose((scaler.mean - center) / unit, 0.75, rtol=1e-4)
    np.testing.assert_allclose(scaler.scale / unit, np.sqrt(17 / 4 - 0.75**2), rtol=1e-4)
    np.testing.assert_allclose(scaler.inverse(scaler(center + unit * column, np.float64)), center + unit * column)
