"""The estimators among scikit-learn's tools."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tables import QUICK, forked, two_outputs
from torchmcl import WTA
from torchmcl_tables import Cooling, MCLClassifier, MCLRegressor

# One network and a batch of the whole table: few steps, which are what takes the time.
CHEAP = {"n_epochs": 30, "hidden": (32,), "batch_size": 512, "learning_rate": 0.05, "n_restarts": 1, "n_bins": 0}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:can't convert np.ndarray of type:UserWarning")
@parametrize_with_checks([MCLRegressor(**CHEAP), MCLClassifier(**CHEAP)])
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)


def test_it_works_in_a_pipeline_and_a_grid_search():
    X, y = forked(120)
    quick = {**QUICK, "n_epochs": 10}
    pipeline = make_pipeline(StandardScaler(), MCLRegressor(**quick))
    grid = {"mclregressor__n_hypotheses": np.array([1, 3]), "mclregressor__rule": [WTA(), Cooling()]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_estimator_.predict(X).shape == (120,)
    assert len(search.cv_results_["params"]) == 4


def test_cross_val_predict_gives_a_row_for_each_row():
    X, y = forked(90)
    assert cross_val_predict(MCLRegressor(**{**QUICK, "n_epochs": 5}), X, y, cv=3).shape == (90,)
    labels = np.where(y > 0, "plus", "minus")
    proba = cross_val_predict(MCLClassifier(**{**QUICK, "n_epochs": 5}), X, labels, cv=3, method="predict_proba")
    assert proba.shape == (90, 2)


def test_hypotheses_are_features_for_the_next_step():
    X, y = forked(100)
    pipeline = make_pipeline(MCLRegressor(**{**QUICK, "n_epochs": 5}), Ridge()).fit(X, y)
    assert pipeline.predict(X).shape == (100,)


def test_targets_may_be_transformed():
    X, y = forked(100)
    model = TransformedTargetRegressor(MCLRegressor(**{**QUICK, "n_epochs": 5}), func=np.exp, inverse_func=np.log)
    assert model.fit(X, y).predict(X).shape == (100,)


def test_clones_have_the_parameters_and_nothing_fitted():
    X, y = forked(50)
    fitted = MCLRegressor(**{**QUICK, "n_epochs": 5}, n_hypotheses=3).fit(X, y)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "modules_")


def test_pickles_answer_alike():
    X, y = forked(50)
    fitted = MCLRegressor(**{**QUICK, "n_epochs": 5}).fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(again.predict_interval(X).upper, fitted.predict_interval(X).upper)


@pytest.mark.slow
def test_fits_side_by_side_in_threads_are_the_same():
    X, y = forked(90)
    model = MCLRegressor(**{**QUICK, "n_epochs": 5})
    alone = cross_val_score(model, X, y, cv=4)
    with joblib.parallel_backend("threading", n_jobs=4):
        np.testing.assert_allclose(cross_val_score(model, X, y, cv=4, n_jobs=4), alone)


def test_predictions_side_by_side_in_threads_are_the_same_and_leave_the_networks_as_they_are():
    X, y = forked(90)
    model = MCLRegressor(**{**QUICK, "n_epochs": 2}).fit(X, y)
    rows = {dtype: np.random.default_rng(0).normal(size=(5_000, X.shape[1])).astype(dtype) for dtype in "fd"}
    alone = {dtype: model.predict(inputs) for dtype, inputs in rows.items()}
    with ThreadPoolExecutor(4) as threads:
        for dtype, found in threads.map(lambda dtype: (dtype, model.predict(rows[dtype])), "fd" * 10):
            np.testing.assert_allclose(found, alone[dtype], rtol=1e-5)
    assert all(isinstance(p, torch.nn.Parameter) for module in model.modules_ for p in module.parameters())


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_data_frames_in_named_columns_out(frame):
    X, Y = two_outputs(60)
    table = frame({"width": X[:, 0], "height": X[:, 1]})
    targets = frame({"price": Y[:, 0], "weight": Y[:, 1]})
    fitted = MCLRegressor(**{**QUICK, "n_epochs": 5}, n_hypotheses=2).fit(table, targets)
    assert fitted.feature_names_in_.tolist() == ["width", "height"]
    assert fitted.target_names_.tolist() == ["price", "weight"]
    output = fitted.set_output(transform="pandas" if frame is pd.DataFrame else "polars").transform(table)
    assert isinstance(output, frame)
    assert list(output.columns) == [
        *("price_hypothesis0", "weight_hypothesis0", "price_hypothesis1", "weight_hypothesis1"),
        *("probability0", "probability1"),
    ]
    plain = MCLRegressor(**{**QUICK, "n_epochs": 5}, n_hypotheses=2).fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(table), plain.predict(X))
