"""The estimator without a temperature to choose, and with a search over ways to train."""

import numpy as np
import pytest
import torch

from tables import QUICK, forked
from torchmcl import WTA, Cosine, MultiHypothesisMLP
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet import Candidate, FleetSearch
from torchmcl_tables import Cooling, MCLClassifier, MCLRegressor
from torchmcl_tables.estimators.training import as_given

# Without a learning rate, which the search chooses.
SEARCHED = {"n_epochs": 40, "hidden": (16,), "random_state": 0}
SEARCH = FleetSearch(
    [Candidate("frozen", WTA(), learning_rate=0.0), Candidate("auto", AutoAnnealing(), learning_rate=0.05)], n_splits=2
)


def test_both_branches_are_found_without_a_temperature():
    X, y = forked()
    model = MCLRegressor(n_hypotheses=2, rule=AutoAnnealing(), **(QUICK | {"n_epochs": 150})).fit(X, y)
    values = np.sort(model.predict_hypotheses([[0.5, 0.5]]).values.ravel())
    np.testing.assert_allclose(values, [-1.5, 1.5], atol=0.15)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_the_target_changes_nothing_but_the_scale(scale):
    X, y = forked()
    options = {"n_hypotheses": 2, "rule": AutoAnnealing(), "n_restarts": 2, **(QUICK | {"n_epochs": 150})}
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
    model = MCLClassifier(n_hypotheses=2, rule=AutoAnnealing(), **(QUICK | {"n_epochs": 60})).fit(X, y)
    assert model.oracle_score(X, y) > 0.85


def test_the_search_goes_on_with_what_was_best(tmp_path):
    X, y = forked()
    model = MCLRegressor(n_hypotheses=2, search=SEARCH, **SEARCHED).fit(X, y)
    assert model.best_candidate_ == "auto"
    assert len(model.trials_) == 4
    assert {trial["candidate"] for trial in model.trials_} == {"frozen", "auto"}
    model.save(tmp_path / "model")
    loaded = MCLRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.trials_ == model.trials_
    assert loaded.search == SEARCH


def test_a_repeated_row_is_searched_as_a_row_of_weight_two():
    X, y = forked(60)
    settings = {"n_hypotheses": 2, "n_restarts": 1, "search": SEARCH, **(SEARCHED | {"n_epochs": 10})}
    repeated = MCLRegressor(**settings).fit(np.vstack([X, X[:1]]), np.append(y, y[0]))
    weighted = MCLRegressor(**settings).fit(X, y, sample_weight=np.r_[2.0, np.ones(59)])
    assert repeated.trials_ == weighted.trials_
    np.testing.assert_array_equal(repeated.predict(X), weighted.predict(X))


def test_the_search_compares_by_the_weighted_distortion():
    # Of two candidates that stay where they begin, the weights decide which is better.
    inputs, targets = torch.zeros(40, 1), torch.tensor([0.0, 1.0]).repeat(20).view(40, 1, 1)
    weights = torch.tensor([0.5, 1.5]).repeat(20)

    def untrained():
        model = MultiHypothesisMLP(1, 1, 1, hidden=())
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
        return model

    search = FleetSearch([Candidate("frozen", WTA(), learning_rate=0.0)], n_splits=2, held_out=0.5)
    plain, weighted = (
        search.run(untrained, inputs, targets, 2, weights=given).values.mean() for given in (None, weights)
    )
    assert float(plain) == pytest.approx(0.5, abs=0.01)
    assert float(weighted) == pytest.approx(0.75, abs=0.1)


def test_the_search_holds_groups_out_together():
    groups = torch.arange(60) // 3
    splits = FleetSearch(n_splits=4, held_out=0.25)._splits(60, groups, seed=0)
    for train, held in splits:
        assert not set(groups[train].tolist()) & set(groups[held].tolist())
        assert sorted(torch.cat([train, held]).tolist()) == list(range(60))
        assert len(held) == 15
    assert sorted(torch.cat([held for _, held in splits]).tolist()) == list(range(60))
    with pytest.raises(ValueError, match="`inputs` must have more than 1 groups to hold out"):
        FleetSearch()._splits(60, torch.zeros(60, dtype=torch.long), seed=0)


def test_a_table_of_groups_is_searched_by_groups():
    given = []

    class Recorded(FleetSearch):
        def run(self, *rest, **how):
            given.append(how["groups"])
            return super().run(*rest, **how)

    X, y = forked(60)
    search = Recorded([Candidate("hard", WTA())])
    settings = {"search": search, "n_restarts": 1, "n_bins": 0, **(SEARCHED | {"n_epochs": 1})}
    MCLRegressor(**settings).fit(X, y, groups=np.arange(60) // 4)
    MCLClassifier(**settings).fit(X, y > 0, groups=[f"group {i // 4}" for i in range(60)])
    MCLRegressor(**settings).fit(X, y)
    assert [None if groups is None else len(groups.unique()) for groups in given] == [12, 15, None]


@pytest.mark.slow
def test_more_rows_are_annealed_on_the_way_by_themselves(tmp_path):
    model = MCLRegressor(
        n_hypotheses=2, rule=AutoAnnealing(), n_epochs=40, hidden=(32,), learning_rate=0.05, random_state=0
    )
    for seed in range(20):
        model.partial_fit(*forked(100, seed=seed))
    model.save(tmp_path / "model")
    model = MCLRegressor.load(tmp_path / "model")
    for seed in range(20, 40):
        model.partial_fit(*forked(100, seed=seed))
    assert model.distortion(*forked(300, seed=99)) < 0.05


# ------------------------------------------------------------------ what was used


def test_the_course_of_a_schedule_is_kept():
    X, y = forked(60)
    model = MCLRegressor(**(QUICK | {"n_epochs": 10}), rule=Cooling()).fit(X, y)
    expected = [float(model.rule_(epoch).temperature) for epoch in range(10)]
    np.testing.assert_array_equal(model.temperature_curve_, expected)
    assert expected[0] == 0.5
    np.testing.assert_allclose(model.learning_rate_curve_, [Cosine(0.05, 0.0, 10)(epoch) for epoch in range(10)])
    hard = MCLRegressor(**(QUICK | {"n_epochs": 10}), rule=WTA()).fit(X, y)
    assert hard.temperature_curve_ is None
    assert hard.rule_ == WTA()
    default = MCLRegressor(**(QUICK | {"n_epochs": 3})).fit(X, y)
    assert default.rule_ == AutoAnnealing()


@pytest.mark.parametrize(
    ("options", "rates", "decay"),
    [
        ({}, [0.1] * 5, 0.0),
        ({"rate": False}, [Cosine(0.1, 0.0, 5)(epoch) for epoch in range(5)], 0.0),
        ({"noise_decay": 0.0}, [0.1] * 5, 0.05),
    ],
)
def test_parts_of_annealing_that_are_off_leave_the_usual_settings_of_an_estimator(options, rates, decay):
    settings = as_given(AutoAnnealing(**options), 0.1, None, 0.05, 5)
    assert settings.weight_decay == decay
    rate = settings.learning_rate
    assert [rate(epoch) if callable(rate) else rate for epoch in range(5)] == rates


@pytest.mark.parametrize(
    "options", [{"rule": AutoAnnealing(), "learning_rate": 0.05}, {"search": SEARCH}], ids=["auto", "search"]
)
def test_the_course_that_was_decided_in_training_is_kept(options, tmp_path):
    X, y = forked()
    model = MCLRegressor(n_hypotheses=2, n_restarts=2, **options, **(SEARCHED | {"n_epochs": 60})).fit(X, y)
    assert isinstance(model.rule_, AutoAnnealing)
    temperatures, rates = model.temperature_curve_, model.learning_rate_curve_
    assert len(temperatures) == len(rates) == 60
    assert temperatures[0] > 1
    assert temperatures[-1] == 0
    assert (np.diff(temperatures[temperatures < temperatures[0] / 10]) <= 0).all()
    assert rates[0] == pytest.approx(0.05)
    assert 0 <= rates[-1] < 0.005
    assert (np.diff(rates) <= 0).all()
    assert rates[temperatures > 0].min() == pytest.approx(0.05)  # the rate falls when all is cold
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(MCLRegressor.load(tmp_path / "model").temperature_curve_, temperatures)
