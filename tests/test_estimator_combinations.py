"""Every parameter of every estimator with another value than its default: fitted, used, saved, continued."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone

import torchmcl as mcl
from grids import for_each
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet import Candidate, FleetSearch
from torchmcl_tables import Cooling, DensityRegressor, MCLClassifier, MCLRegressor

SMALL = {"n_epochs": 4, "hidden": (8,), "n_hypotheses": 3, "n_restarts": 2, "random_state": 0}
SEARCH = FleetSearch(
    [Candidate("hard", mcl.WTA(), learning_rate=0.05), Candidate("auto", AutoAnnealing(), learning_rate=0.05)],
    n_splits=2,
)
# Parameters, and words for the form of the table.
OF_ALL = [
    {"n_hypotheses": 1},
    {"hidden": (), "n_bins": 4, "several_outputs": True},
    {"n_epochs": 7, "batch_size": 16, "learning_rate": mcl.Constant(0.01), "weight_decay": 0.1},
    {"validation_fraction": 0, "n_restarts": 1, "grouped": True},
    {"n_restarts": None, "ensemble": False, "patience": 1, "weighted": True},
    {"device": torch.device("cpu"), "random_state": np.random.RandomState(1), "progress": True},
    {"weighted": True, "grouped": True, "several_outputs": True, "n_bins": 0},
]
OF_RULES = [
    {"rule": mcl.annealed(mcl.RelaxedWTA, epsilon=mcl.Linear(0.5, 0.0, 4)), "keep_best": True},
    {"rule": Cooling(), "keep_best": True, "patience": 2, "final_fit_on_all_rows": True, "ensemble": False},
    {"rule": Cooling(), "keep_best": False, "validation_fraction": 0, "final_fit_on_all_rows": False},
    {"rule": mcl.WTA(), "n_bins": None, "keep_best": False, "validation_fraction": 0.5},
    {"rule": AutoAnnealing(), "ensemble": False, "final_fit_on_all_rows": False, "n_bins": 3, "keep_best": True},
    {"search": SEARCH, "weighted": True, "final_fit_on_all_rows": True, "several_outputs": True},
    {"search": SEARCH, "keep_best": True, "ensemble": False, "patience": 2, "weighted": True, "grouped": True},
]
CASES = [
    *((kind, case) for kind in (MCLRegressor, MCLClassifier, DensityRegressor) for case in OF_ALL),
    *((MCLRegressor, case) for case in OF_RULES),
    *((MCLClassifier, {name: case[name] for name in case if name != "final_fit_on_all_rows"}) for case in OF_RULES),
    (MCLClassifier, {"class_weight": "balanced", "weighted": True, "grouped": True}),
    (MCLClassifier, {"class_weight": {"low": 2.0, "middle": 1.0, "high": 0.5}, "search": SEARCH}),
    (DensityRegressor, {"keep_best": False, "validation_fraction": 0, "n_bins": 10}),
    (DensityRegressor, {"keep_best": False, "patience": 1, "hidden": (), "learning_rate": 0.1, "grouped": True}),
]
WORDS = ("several_outputs", "weighted", "grouped")


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


def answers(model, rows, y):
    """Return the results of all methods, by name."""
    values, probabilities = model.predict_hypotheses(rows)
    found = {
        "values": values,
        "probabilities": probabilities,
        "mean": model.predict(rows),
        "score": model.score(rows, y),
    }
    if isinstance(model, MCLClassifier):
        return found | {"proba": model.predict_proba(rows), "oracle": model.oracle_score(rows, y)}
    sets, density = model.predict_interval(rows, 0.7), model.predict_distribution(rows)
    return found | {
        "lower": sets.lower,
        "upper": sets.upper,
        "density": density.log_prob(density.mean).numpy(),
        "samples": model.sample(rows, 2, random_state=0),
        "log_prob": model.log_prob(rows, y),
        "distortion": model.distortion(rows, y),
        "features": model.transform(rows),
    }


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.mark.parametrize(("kind", "case"), CASES, ids=name_of)
def test_every_setting_answers_is_saved_and_learns_on(kind, case, tmp_path):
    model = kind(**{**SMALL, **{name: value for name, value in case.items() if name not in WORDS}})
    X, y, how = table(kind, case)
    copy = clone(model)
    model.fit(X, y, **how)
    fresh, truth, _ = table(kind, case, 10, seed=1)
    found = answers(model, fresh, truth)
    for name, values in found.items():
        if np.asarray(values).dtype.kind == "f" and name not in ("lower", "upper"):
            assert np.isfinite(values).all(), name
    if not isinstance(model.random_state, np.random.RandomState):
        assert_same(answers(copy.fit(X, y, **how), fresh, truth), found)
    assert_same(answers(pickle.loads(pickle.dumps(model)), fresh, truth), found)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")
    assert_same(answers(loaded, fresh, truth), found)
    model.set_params(n_hypotheses=7, hidden=(3,), n_bins=0, weight_decay=1.0)
    assert_same(answers(model, fresh, truth), found)  # until the next fit
    if kind is MCLRegressor:
        weights = {name: value for name, value in how.items() if name == "sample_weight"}
        assert answers(loaded.partial_fit(X, y, **weights), fresh, truth).keys() == found.keys()


@pytest.mark.parametrize("case", [case for kind, case in CASES if kind is MCLRegressor])
def test_every_setting_learns_batch_by_batch(case, tmp_path):
    kind = MCLRegressor
    X, y, how = table(kind, case)
    further = {"sample_weight": how["sample_weight"]} if "sample_weight" in how else {}
    model = kind(**{**SMALL, **{name: value for name, value in case.items() if name not in WORDS}})
    model.partial_fit(X, y, **further).partial_fit(X, y, **further)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")
    fresh, truth, _ = table(kind, case, 10, seed=1)
    for each in (loaded, model):
        each.partial_fit(X, y, **further)
    assert_same(answers(loaded, fresh, truth), answers(model, fresh, truth))


@for_each("kind", [MCLRegressor, MCLClassifier, DensityRegressor])
def test_a_refit_leaves_nothing_of_an_earlier_fit(kind):
    cases = [case for each, case in CASES if each is kind]
    again = kind(**SMALL)
    for case in (cases[4], cases[-1], {}):
        again.set_params(**{**clone(kind(**SMALL)).get_params(), **{k: v for k, v in case.items() if k not in WORDS}})
        X, y, how = table(kind, case)
        again.fit(X, y, **how)
    fresh = kind(**SMALL).fit(*table(kind, {})[:2])
    assert vars(again).keys() == vars(fresh).keys()
    rows, truth, _ = table(kind, {}, 10, seed=1)
    assert_same(answers(again, rows, truth), answers(fresh, rows, truth))


@for_each("kind", [MCLRegressor, MCLClassifier, DensityRegressor])
def test_no_parameter_is_left_out(kind):
    parameters = inspect.signature(kind).parameters
    tried = {name for each, case in CASES if each is kind for name in case if name in parameters}
    assert tried | SMALL.keys() == set(parameters)
    for name in parameters:
        values = [{**SMALL, **case}.get(name) for each, case in CASES if each is kind]
        assert any(repr(value) != repr(parameters[name].default) for value in values), name
