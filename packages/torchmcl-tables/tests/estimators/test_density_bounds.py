"""What targets never leave, answers and sets do not leave either."""

import numpy as np
import pytest

from tables import QUICK, noisy
from torchmcl_tables import DensityRegressor, MCLRegressor
from torchmcl_tables.estimators.calibration import Calibrator
from torchmcl_tables.estimators.rows import Rows
from torchmcl_tables.estimators.tables import bounds_of, unbounded, without_crossed

SHORT = {**QUICK, "n_epochs": 5, "n_restarts": 1, "n_bins": 0, "ensemble": False}


def bounds(targets, weights=None):
    targets = np.asarray(targets, dtype=float)
    targets = targets[:, None] if targets.ndim == 1 else targets
    return bounds_of(targets, np.ones(len(targets)) if weights is None else np.asarray(weights, dtype=float))


def test_targets_that_are_never_negative_stay_so():
    assert bounds([0.1, 1, 5])[:, 0].tolist() == [0, np.inf]
    assert bounds([-0.1, -1, -5])[:, 0].tolist() == [-np.inf, 0]


def test_targets_of_both_signs_are_unbounded():
    assert bounds([-1, 0, 3])[:, 0].tolist() == [-np.inf, np.inf]


def test_an_end_at_which_targets_pile_up_is_not_left():
    censored = np.r_[np.linspace(-1, 1, 50), [2.0] * 5]
    assert bounds(censored)[:, 0].tolist() == [-np.inf, 2.0]
    rare = np.r_[np.linspace(-1, 1, 500), [2.0] * 5]
    assert bounds(rare)[1, 0] == np.inf


def test_tied_extremes_are_no_bounds():
    miles = [10.4, 10.4, 13.3, 14.3, 14.7, 15.0, 15.2, 15.2, 15.5, 15.8, 16.4, 17.3, 17.8, 18.1, 18.7, 19.2, 19.2, 33.9]
    assert bounds(np.array(miles) - 20)[:, 0].tolist() == [-np.inf, np.inf]
    rounded = np.random.default_rng(0).normal(size=400).round(0)  # every value is as common as its neighbors
    assert bounds(rounded)[:, 0].tolist() == [-np.inf, np.inf]


def test_weights_count_as_copies_and_their_scale_does_not_matter():
    targets, weights = np.r_[np.linspace(-1, 1, 700), [2.0] * 5], np.ones(705)
    weights[-5:] = 5
    for factor in (1, 1e-6):
        assert bounds(targets, factor * weights)[1, 0] == 2.0
    assert bounds(targets, np.ones(705))[1, 0] == np.inf


def test_bounds_that_further_targets_leave_are_given_up():
    known = np.array([[0.0, -1.0], [np.inf, 1.0]])
    np.testing.assert_array_equal(without_crossed(known, np.array([[0.0, 1.0]])), known)
    given_up = without_crossed(known, np.array([[-0.5, 2.0], [1.0, 0.0]]))
    np.testing.assert_array_equal(given_up, [[-np.inf, -1.0], [np.inf, np.inf]])
    np.testing.assert_array_equal(without_crossed(unbounded(2), np.array([[-9.0, 9.0]])), unbounded(2))


@pytest.mark.parametrize("kind", [DensityRegressor, MCLRegressor])
def test_answers_sets_and_samples_of_counts_are_never_negative(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 2))
    y = rng.exponential(0.2 + X[:, 0])
    model = kind(**SHORT).fit(X, y)
    far = rng.normal(scale=5, size=(100, 2))
    assert (model.sample(far, 20, random_state=0) >= 0).all()
    assert (model.predict(far) >= 0).all()
    assert (model.predict_interval(far).hull[0] >= 0).all()
    assert (model.predict_hypotheses(far).values >= 0).all()


def test_a_censored_scale_is_not_left_at_its_end():
    X, y = noisy(300)
    y = np.minimum(y, 2.5)
    model = DensityRegressor(**SHORT | {"ensemble": True}).fit(X, y)
    assert model.predict_hypotheses(X).values.max() <= 2.5
    sets = model.predict_interval(X)
    assert sets.upper.max() == 2.5
    assert sets.contains(y).mean() > 0.9  # the end itself belongs to the sets


def test_the_bound_itself_belongs_to_the_sets():
    # Moved back from standardized units, 0 was 1e-17, and no zero was covered.
    covered = []
    for seed in range(8):
        rng = np.random.default_rng(5000 + seed)
        X = rng.normal(size=(200, 3))
        y = np.where(rng.uniform(size=200) < 0.4, 0.0, np.exp(X[:, 0] + rng.normal(size=200)))
        sets = DensityRegressor(**{**SHORT, "random_state": seed}).fit(X, y).predict_interval(X)
        assert sets.contains(np.zeros(200))[sets.hull[0] <= 1e-9].all()
        covered.append(sets.contains(y).mean())
    assert np.mean(covered) > 0.8


def test_sets_of_too_few_calibrating_rows_hold_everything():
    X, y = noisy(60)
    sets = DensityRegressor(**SHORT).fit(X, np.abs(y)).predict_interval(X, coverage=0.99)
    assert np.isneginf(sets.lower).all()
    assert np.isposinf(sets.upper).all()


def test_calibrating_rows_beyond_the_bounds_widen_the_sets():
    X, y = noisy(200)
    model = DensityRegressor(**SHORT).fit(X, np.abs(y))
    beyond = Rows(X[:40], -np.abs(y[:40, None]), np.ones(40), np.arange(40))
    calibrator = Calibrator.fit(model._fitted.predictive, beyond, np.ones(1))
    assert np.isinf(calibrator(model._fitted.predictive, X, 0.9)[1]).all()
