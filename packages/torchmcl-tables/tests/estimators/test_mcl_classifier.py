"""MCLClassifier: guesses, probabilities, folds, weights, and bad input."""

import copy

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from tables import QUICK
from torchmcl_tables import Cooling, MCLClassifier, TopClasses
from torchmcl_tables.estimators.classes import best_temperature, dealt_folds
from torchmcl_tables.estimators.rows import split_rows


def ambiguous(n=400, seed=0):
    """Return a table whose class is decided by x, or is "other" for half of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    side = np.where(X[:, 0] > 0, "right", "left")
    return X, np.where(rng.uniform(size=n) < 0.5, "other", side)


@pytest.fixture(scope="module")
def model():
    likelihood = Cooling(5.0, 1.0, share=0.5, linear=True)
    return MCLClassifier(**{**QUICK, "n_epochs": 100}, rule=likelihood, n_hypotheses=2).fit(*ambiguous())


def test_two_guesses_hold_the_truth_where_one_cannot(model):
    X, y = ambiguous(seed=1)
    assert model.oracle_score(X, y) > 0.95
    assert model.score(X, y) < 0.7
    values, probabilities = guesses = model.predict_hypotheses(X)
    assert isinstance(guesses, TopClasses)
    assert values.shape == probabilities.shape == (400, 2)
    assert set(values.ravel()) <= set(model.classes_)
    assert (values[:, 0] != values[:, 1]).all()
    assert (probabilities[:, 0] >= probabilities[:, 1]).all()
    assert (values[:, 0] == model.predict(X)).all()


def test_there_are_no_more_guesses_than_classes():
    X, y = ambiguous(60)
    values, probabilities = MCLClassifier(**{**QUICK, "n_epochs": 3}).fit(X, y).predict_hypotheses(X)
    assert values.shape == (60, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)


def test_probabilities_mix_hypotheses_and_networks(model):
    X, _ = ambiguous(20, seed=1)
    inputs = torch.from_numpy(model._mixture.encoder(X, np.float64))
    expected = 0
    for module in model.modules_:
        hypotheses, scores = copy.deepcopy(module).double()(inputs)
        mixed = (hypotheses.softmax(-1) * scores.softmax(-1)[..., None]).sum(1)
        expected += (mixed.log() / model.temperature_).softmax(-1).detach().numpy() / len(model.modules_)
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-9)


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


@pytest.mark.parametrize(("fraction", "n_folds"), [(0.1, 10), (0.2, 5), (0.33, 3), (0.5, 2), (0.9, 2)])
def test_each_network_holds_out_other_rows_of_all_classes(fraction, n_folds):
    X, y = np.arange(120.0)[:, None], np.repeat([0, 1, 2], [60, 48, 12])
    rows = split_rows(X, y, None, seed=0).train
    folds = dealt_folds(rows, n_folds, fraction)
    held = [set(part.inputs[:, 0]) for _, part in folds]
    assert sum(map(len, held)) == len(set.union(*held)) == 120
    assert max(map(len, held)) - min(map(len, held)) <= 1
    for train, part in folds:
        assert len(train) + len(part) == 120
        assert abs((part.targets == 2).sum() - 12 / n_folds) < 2
    again = dealt_folds(rows, n_folds + 1, fraction)[-1][1]
    np.testing.assert_array_equal(again.inputs, folds[0][1].inputs)


def test_groups_are_held_out_together():
    X, y = np.arange(60.0)[:, None], np.tile([0, 1], 30)
    rows = split_rows(X, y, None, seed=0, groups=np.arange(60) // 6).train
    for train, held in dealt_folds(rows, 5, 0.2):
        assert not set(train.inputs[:, 0] // 6) & set(held.inputs[:, 0] // 6)


def test_nothing_is_held_out_or_calibrated_on_request():
    X, y = ambiguous(60)
    fitted = MCLClassifier(**{**QUICK, "n_epochs": 3}, validation_fraction=0).fit(X, y)
    assert fitted.temperature_ == 1
    assert fitted.best_epoch_ == -1
    assert np.isinf(fitted.validation_losses_).all()


def test_the_temperature_is_that_of_the_lowest_log_loss():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(4000, 3)))
    classes = np.array([rng.choice(3, p=row) for row in logits.softmax(-1).numpy()])
    sure, unsure = (3 * logits).log_softmax(-1), (logits / 2).log_softmax(-1)
    ones = np.ones(4000)
    assert best_temperature(sure, classes, ones) == pytest.approx(3, rel=0.1)
    assert best_temperature(unsure, classes, ones) == pytest.approx(0.5, rel=0.1)
    # Three rows that are all right are no reason to be certain.
    best = logits.argmax(-1).numpy()
    assert best_temperature(logits[:3].log_softmax(-1), best[:3], ones[:3]) > 0.8


def test_the_probabilities_are_calibrated(model):
    X, y = ambiguous(4000, seed=5)
    given = model.predict_proba(X)
    happened = y[:, None] == model.classes_
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0)):
        chosen = (given > low) & (given <= high)
        if chosen.sum() > 400:
            assert abs(given[chosen].mean() - happened[chosen].mean()) < 0.12


def test_class_weights_are_weights_of_rows():
    X, y = ambiguous(80)
    settings = {**QUICK, "n_epochs": 4}
    given = MCLClassifier(**settings, class_weight={"other": 3, "left": 1, "right": 1}).fit(X, y)
    weighted = MCLClassifier(**settings).fit(X, y, sample_weight=np.where(y == "other", 3, 1))
    np.testing.assert_array_equal(given.predict_proba(X), weighted.predict_proba(X))
    rare = (y == "left") & (np.arange(80) % 4 > 0)
    X, y = X[~rare], y[~rare]
    balanced, plain = (MCLClassifier(**settings, class_weight=how).fit(X, y) for how in ("balanced", None))
    place = list(plain.classes_).index("left")
    assert balanced.predict_proba(X)[:, place].mean() > plain.predict_proba(X)[:, place].mean()
    with pytest.raises(ValueError, match=r"`class_weight` must be None, 'balanced' or a dictionary .*, got 'even'"):
        MCLClassifier(**settings, class_weight="even").fit(X, y)


def test_missing_values_are_an_input_of_their_own():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = rng.integers(0, 2, size=300)
    X[y == 1, 0] = np.nan  # that it is missing tells the class
    fitted = MCLClassifier(**QUICK).fit(X, y)
    assert fitted.score(X, y) == 1
    assert fitted.modules_[0].trunk[0].in_features == 3
    X[:, 1] = np.nan  # that was never missing in the training
    assert np.isfinite(fitted.predict_proba(X)).all()


def test_bad_input_is_named(model):
    X, y = ambiguous(20)
    with pytest.raises(NotFittedError):
        MCLClassifier().predict(X)
    with pytest.raises(ValueError, match=r"MCLClassifier: `y` must have 20 rows, got 19"):
        model.oracle_score(X, y[:19])
    with pytest.raises(ValueError, match="Unknown label type"):
        MCLClassifier().fit(X, np.linspace(0, 1, 20))


def test_a_coarse_table_is_learned_row_by_row():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, size=2000)
    y = rng.uniform(size=2000) < np.where(x == 1, 0.9, 0.1)
    shares = MCLClassifier(**QUICK).fit(x[:, None], y).predict_proba([[0], [1]])[:, 1]
    np.testing.assert_allclose(shares, [y[x == 0].mean(), y[x == 1].mean()], atol=0.03)


def test_a_table_of_frequencies_is_the_table_of_its_rows():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(300, 2)).astype(float)
    y = (rng.uniform(size=300) < 0.2 + 0.3 * X[:, 0]).astype(int)
    cells, counts = np.unique(np.c_[X, y], axis=0, return_counts=True)
    settings = {**QUICK, "n_epochs": 4, "class_weight": "balanced"}
    rows = MCLClassifier(**settings).fit(X, y)
    frequencies = MCLClassifier(**settings).fit(cells[:, :2], cells[:, 2].astype(int), sample_weight=counts)
    np.testing.assert_array_equal(rows.predict_proba(X), frequencies.predict_proba(X))


@pytest.mark.parametrize("hidden", [(8,), (8, 8, 8)])
@pytest.mark.filterwarnings("ignore")
def test_networks_that_diverge_are_no_model(hidden):
    X = np.random.default_rng(0).normal(size=(120, 3))
    options = {"learning_rate": 1e30, "n_epochs": 3, "n_restarts": 1, "validation_fraction": 0.0, "random_state": 1}
    model = MCLClassifier(hidden=hidden, **options)
    with pytest.raises(ValueError, match=r"`learning_rate` must let the training converge, got 1e\+30"):
        model.fit(X, X[:, 0] > 0)
