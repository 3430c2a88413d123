"""Every parameter with another value than its default, alone and with others: fitted, asked everything, kept."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl.density import VoronoiKernels
from torchmcl.fleet import Candidate, FleetSearch
from torchmcl_tables.estimators import MCLClassifier, MCLRegressor

SMALL = {"n_epochs": 4, "hidden": (8,), "n_hypotheses": 3, "n_restarts": 2, "random_state": 0}
SEARCH = FleetSearch(
    [Candidate("hard", mcl.WTA(), learning_rate=0.05), Candidate("auto", AutoAnnealing(), learning_rate=0.05)],
    n_splits=2,
)
# What a test runs with: parameters, and words for what is not one of them.
SHARED = [
    {"n_hypotheses": 1},
    {"rule": mcl.annealed(mcl.RelaxedWTA, epsilon=mcl.Linear(0.5, 0.0, 4))},
    {"hidden": (), "n_knots": 4, "several_outputs": True},
    {"n_epochs": 7, "batch_size": 16, "learning_rate": mcl.Constant(0.01), "weight_decay": 0.1},
    {"rule": "annealed", "keep_best": True, "patience": 2, "final_fit_on_all_rows": True, "ensemble": False},
    {"rule": "annealed", "keep_best": False, "validation_fraction": 0, "final_fit_on_all_rows": True, "ensemble": True},
    {"validation_fraction": 0, "keep_best": True, "n_restarts": 1},
    {"n_restarts": None, "ensemble": False, "final_fit_on_all_rows": False, "patience": 1},
    {"rule": "auto", "ensemble": True, "final_fit_on_all_rows": True, "weighted": True, "several_outputs": True},
    {"rule": "auto", "ensemble": False, "final_fit_on_all_rows": False, "n_knots": 3, "keep_best": True},
    {"rule": "auto", "validation_fraction": 0, "n_restarts": 1, "grouped": True},
    {"search": SEARCH, "ensemble": True, "weighted": True, "final_fit_on_all_rows": True, "several_outputs": True},
    {"search": SEARCH, "validation_fraction": 0, "grouped": True, "n_knots": 3},
    {
        "search": SEARCH,
        "keep_best": True,
        "ensemble": False,
        "patience": 2,
        "weighted": True,
        "grouped": True,
    },
    {"weighted": True, "grouped": True, "several_outputs": True, "keep_best": True, "ensemble": True},
    {"device": torch.device("cpu"), "random_state": np.random.RandomState(1), "progress": True},
    {"rule": "mcl", "n_knots": None, "ensemble": True, "keep_best": False, "validation_fraction": 0.5},
]
OF_REGRESSORS = [
    {"n_knots": 0, "keep_best": True, "patience": 2, "ensemble": False, "several_outputs": True, "weighted": True},
    {"n_knots": 10, "keep_best": False, "validation_fraction": 0, "final_fit_on_all_rows": False},
    {"n_restarts": 1, "keep_best": False, "patience": 1, "hidden": (), "learning_rate": 0.1, "grouped": True},
    {"density": VoronoiKernels, "rule": "annealed", "several_outputs": True},
    {"density": VoronoiKernels, "rule": "auto", "n_restarts": 1, "weighted": True},
    {"density": VoronoiKernels, "search": SEARCH, "validation_fraction": 0},
]
OF_CLASSIFIERS = [
    {"class_weight": "balanced", "weighted": True, "grouped": True},
    {"class_weight": {"low": 2.0, "middle": 1.0, "high": 0.5}, "search": SEARCH, "ensemble": False},
]
WORDS = ("several_outputs", "weighted", "grouped")
CASES = [(MCLRegressor, case) for case in SHARED + OF_REGRESSORS] + [
    (MCLClassifier, case) for case in SHARED + OF_CLASSIFIERS
]


def name_of(case):
    return ",".join(case) if isinstance(case, dict) else case.__name__


def table(kind, case, n=80, seed=0):
    """Return X, y and the further arguments of fit."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).round(1)
    y = X[:, 0] + rng.choice([-1.0, 1.0], size=n)
    if kind is MCLClassifier:
        y = np.array(["low", "middle", "high"])[np.clip(np.round(y) + 1, 0, 2).astype(int)]
    elif case.get("several_outputs"):
        y = np.stack([y, 100 * X[:, 1]], axis=1)
    how = {}
    if case.get("weighted"):
        how["sample_weight"] = rng.uniform(0, 2, size=n)
    if case.get("grouped"):
        how["groups"] = np.arange(n) // 2
    return X, y, how


def answers(model, X, y):
    """Return what every method says, by name."""
    if isinstance(model, MCLClassifier):
        guesses = model.predict_hypotheses(X)
        found = {"proba": model.predict_proba(X), "label": model.predict(X), "oracle": model.oracle_score(X, y)}
        return found | {
            "score": model.score(X, y),
            "guesses": guesses.values,
            "share": guesses.probabilities,
        }
    values, probabilities = model.predict_hypotheses(X)
    sets = model.predict_interval(X, 0.3)
    density = model.predict_distribution(X)
    return {
        "mean": model.predict(X),
        "values": values,
        "probabilities": probabilities,
        "lower": sets.lower,
        "upper": sets.upper,
        "density": density.log_prob(density.mean).numpy(),
        "samples": model.sample(X, 2, random_state=0),
        "log_prob": model.log_prob(X, y),
        "distortion": model.distortion(X, y),
        "score": model.score(X, y),
        "features": model.transform(X),
    }


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.mark.parametrize(("kind", "case"), CASES, ids=name_of)
def test_every_setting_answers_is_kept_and_learns_on(kind, case, tmp_path):
    parameters = {name: value for name, value in case.items() if name not in WORDS}
    model = kind(**{**SMALL, **parameters})
    X, y, how = table(kind, case)
    copy = clone(model)
    model.fit(X, y, **how)
    fresh, truth, _ = table(kind, case, 10, seed=1)
    found = answers(model, fresh, truth)
    for name, values in found.items():
        if name not in ("label", "guesses", "lower", "upper"):
            assert np.isfinite(values).all(), name
    if not isinstance(model.random_state, np.random.RandomState):
        assert_same(answers(copy.fit(X, y, **how), fresh, truth), found)
    assert_same(answers(pickle.loads(pickle.dumps(model)), fresh, truth), found)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")
    assert_same(answers(loaded, fresh, truth), found)
    model.set_params(n_hypotheses=7, hidden=(3,), n_knots=0, weight_decay=1.0)
    assert_same(answers(model, fresh, truth), found)  # until the next fit
    weights = {name: value for name, value in how.items() if name == "sample_weight"}
    further = answers(loaded.partial_fit(X, y, **weights), fresh, truth)
    assert {name: np.shape(value) for name, value in further.items() if name not in ("lower", "upper")} == {
        name: np.shape(value) for name, value in found.items() if name not in ("lower", "upper")
    }


@pytest.mark.parametrize(("kind", "case"), CASES, ids=name_of)
def test_every_setting_learns_batch_by_batch(kind, case, tmp_path):
    parameters = {name: value for name, value in case.items() if name not in WORDS}
    X, y, how = table(kind, case)
    further = {"sample_weight": how["sample_weight"]} if "sample_weight" in how else {}
    if kind is MCLClassifier:
        further["classes"] = np.unique(y)
    model = kind(**{**SMALL, **parameters}).partial_fit(X, y, **further).partial_fit(X, y, **further)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")
    fresh, truth, _ = table(kind, case, 10, seed=1)
    assert_same(answers(loaded, fresh, truth), answers(model, fresh, truth))
    for each in (loaded, model):
        each.partial_fit(X, y, **further)
    assert_same(answers(loaded, fresh, truth), answers(model, fresh, truth))


@pytest.mark.parametrize("kind", [MCLRegressor, MCLClassifier])
def test_no_parameter_is_left_out(kind):
    parameters = inspect.signature(kind).parameters
    tried = {name for each, case in CASES if each is kind for name in case if name in parameters}
    assert tried == set(parameters)
    for name in parameters:
        values = [case[name] for each, case in CASES if each is kind and name in case]
        assert any(repr(value) != repr(parameters[name].default) for value in values), name
