"""The estimator without a temperature to choose, and with a search over ways to train."""

import numpy as np
import pytest
from tables import QUICK, forked

from torchmcl import WTA
from torchmcl.annealing import AutoAnnealing
from torchmcl.estimators import MCLClassifier, MCLRegressor
from torchmcl.fleet import Candidate, FleetSearch

SEARCH = FleetSearch(
    [Candidate("frozen", WTA(), learning_rate=0.0), Candidate("auto", AutoAnnealing(), learning_rate=0.05)], n_splits=2
)


def test_both_branches_are_found_without_a_temperature():
    X, y = forked()
    model = MCLRegressor(n_hypotheses=2, schedule="auto", **(QUICK | {"n_epochs": 150})).fit(X, y)
    values = np.sort(model.predict_hypotheses([[0.5, 0.5]]).values.ravel())
    np.testing.assert_allclose(values, [-1.5, 1.5], atol=0.15)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_the_target_changes_nothing_but_the_scale(scale):
    X, y = forked()
    options = {"n_hypotheses": 2, "schedule": "auto", **(QUICK | {"n_epochs": 150})}
    distortions = []
    for factor in (1.0, scale):
        values = MCLRegressor(**options).fit(X, factor * y).predict_hypotheses(X).values[..., 0] / factor
        distortions.append(((values - y[:, None]) ** 2).min(axis=1).mean())
    # Not to the bit: which answer takes which branch is decided by rounding.
    assert 0.5 < distortions[1] / distortions[0] < 2
    assert max(distortions) < 0.02


def test_a_classifier_can_anneal_by_itself():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = np.where(rng.uniform(size=200) < 0.5, "up", np.where(X[:, 0] > 0, "right", "left"))
    model = MCLClassifier(n_hypotheses=2, schedule="auto", **(QUICK | {"n_epochs": 100})).fit(X, y)
    assert model.oracle_score(X, y) > 0.85


def test_the_search_goes_on_with_what_was_best(tmp_path):
    X, y = forked()
    model = MCLRegressor(n_hypotheses=2, search=SEARCH, **QUICK).fit(X, y)
    assert model.best_candidate_ == "auto"
    assert len(model.trials_) == 4
    assert {trial["candidate"] for trial in model.trials_} == {"frozen", "auto"}
    model.save(tmp_path / "model")
    loaded = MCLRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.trials_ == model.trials_
    assert loaded.search == SEARCH


def test_the_word_fleet_stands_for_the_default_search():
    X, y = forked(60)
    model = MCLRegressor(n_hypotheses=2, search="fleet", **(QUICK | {"n_epochs": 4})).fit(X, y)
    assert len(model.trials_) == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "automatic"}, "`schedule` must be"),
        ({"search": "grid"}, "`search` must be"),
        ({"schedule": "auto", "rule": "mcl"}, "`schedule` must go with an annealed `rule`"),
    ],
)
def test_words_that_mean_nothing_are_refused(options, message):
    X, y = forked(40)
    with pytest.raises(ValueError, match=message):
        MCLRegressor(**(QUICK | options)).fit(X, y)


def test_weighted_rows_cannot_be_searched():
    X, y = forked(40)
    with pytest.raises(ValueError, match="`search` must be None with rows of different weight"):
        MCLRegressor(search=SEARCH, **QUICK).fit(X, y, sample_weight=np.arange(1.0, 41.0))


def test_a_training_without_an_end_has_no_schedule_of_its_own():
    X, y = forked(40)
    with pytest.raises(ValueError, match="`schedule` must be a schedule or None for partial_fit"):
        MCLRegressor(schedule="auto", **QUICK).partial_fit(X, y)
