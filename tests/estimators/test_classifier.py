"""What MCLClassifier promises."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from tables import QUICK, Counting

import torchmcl as mcl
from torchmcl.estimators import Guesses, MCLClassifier


def ambiguous(n=400, seed=0):
    """Return a table whose class is decided by x, or is "other" for half of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    side = np.where(X[:, 0] > 0, "right", "left")
    return X, np.where(rng.uniform(size=n) < 0.5, "other", side)


@pytest.fixture(scope="module")
def model():
    return MCLClassifier(**{**QUICK, "n_epochs": 100}, n_hypotheses=2).fit(*ambiguous())


def test_it_is_a_top_level_name():
    assert mcl.MCLClassifier is MCLClassifier


def test_two_guesses_hold_the_truth_where_one_cannot(model):
    X, y = ambiguous(seed=1)
    assert model.oracle_score(X, y) > 0.95
    assert model.score(X, y) < 0.7
    values, probabilities, shares = guesses = model.predict_hypotheses(X)
    assert isinstance(guesses, Guesses)
    assert values.shape == probabilities.shape == (400, 2)
    assert shares.shape == (400, 2, 3)
    assert set(values.ravel()) <= set(model.classes_)
    np.testing.assert_allclose(shares.sum(axis=-1), 1.0)


def test_class_probabilities_mix_the_guesses_by_their_scores(model):
    X, _ = ambiguous(20, seed=1)
    _, probabilities, shares = model.predict_hypotheses(X)
    expected = (probabilities[..., None] * shares).sum(axis=1)
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-6)
    assert (model.predict(X) == model.classes_[expected.argmax(axis=1)]).all()


def test_oracle_score_takes_weights(model):
    X, y = ambiguous(50, seed=2)
    right = (model.predict_hypotheses(X).values == y[:, None]).any(axis=1)
    weights = np.arange(1.0, 51.0)
    assert model.oracle_score(X, y, weights) == pytest.approx((weights * right).sum() / weights.sum())


def test_weights_are_copies_and_rows_without_weight_bring_no_class():
    X, y = ambiguous(60)
    weights = np.random.default_rng(0).integers(0, 4, size=60)
    weights[y == "left"] = 0
    settings = {**QUICK, "n_epochs": 5}
    weighted = MCLClassifier(**settings).fit(X, y, sample_weight=weights)
    repeated = MCLClassifier(**settings).fit(X.repeat(weights, axis=0), y.repeat(weights))
    assert weighted.classes_.tolist() == ["other", "right"]
    np.testing.assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0, 0), (0.1, 10), (0.25, 25), (0.33, 33)])
def test_exactly_the_validation_fraction_is_held_out(fraction, held_out):
    X, y = np.arange(100.0)[:, None], np.repeat(["a", "b", "c"], [57, 36, 7])
    rule = Counting()
    settings = {"rule": rule, "n_epochs": 1, "hidden": (2,), "batch_size": 100, "random_state": 0}
    MCLClassifier(**settings, validation_fraction=fraction, final_fit_on_all_rows=True).fit(X, y)
    # The training, a look at what is held out, and the final fit.
    assert rule.rows == ([100 - held_out, held_out, 100] if held_out else [100])


def test_partial_fit_learns_batch_by_batch():
    fitted = MCLClassifier(n_hypotheses=2, hidden=(16,), learning_rate=0.05, n_epochs=20, random_state=0)
    for seed in range(40):
        fitted.partial_fit(*ambiguous(100, seed=seed), classes=["left", "other", "right"])
    assert fitted.oracle_score(*ambiguous(seed=99)) > 0.9


def test_bad_input_is_named(model):
    X, y = ambiguous(20)
    with pytest.raises(NotFittedError):
        MCLClassifier().predict(X)
    with pytest.raises(ValueError, match=r"MCLClassifier: `classes` must be given in the first call, got None"):
        MCLClassifier().partial_fit(X, y)
    with pytest.raises(
        ValueError, match=r"MCLClassifier: `y` must hold classes among \['left', 'right'\], got .*other"
    ):
        MCLClassifier(**QUICK).partial_fit(X, y, classes=["left", "right"])
    with pytest.raises(ValueError, match=r"MCLClassifier: `y` must have 20 rows, got 19"):
        model.oracle_score(X, y[:19])
    with pytest.raises(ValueError, match="Unknown label type"):
        MCLClassifier().fit(X, np.linspace(0, 1, 20))
