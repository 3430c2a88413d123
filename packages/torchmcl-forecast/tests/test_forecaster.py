"""The estimator: all kinds of series work, it learns, and bad parameters are named."""

import numpy as np
import pandas as pd
import pytest
import torch
from quick_sales import UNTRAINED, sales
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch.optim.optimizer import register_optimizer_step_pre_hook

import torchmcl as mcl
from grids import for_each
from torchmcl_forecast import Forecaster


def quick(**options):
    return Forecaster(**(UNTRAINED | options))


def test_futures_follow_the_end_of_each_series_with_probabilities_that_sum_to_one(fitted, frame):
    found = fitted.predict()
    assert found.columns.tolist() == [
        "unique_id",
        "ds",
        *(f"future_{k}" for k in (1, 2, 3)),
        *(f"probability_{k}" for k in (1, 2, 3)),
    ]
    assert len(found) == 21
    assert found.ds.min() == frame.ds.max() + pd.Timedelta(days=1)
    np.testing.assert_allclose(found.filter(like="probability").sum(axis=1), 1.0)
    assert (found.probability_1 >= found.probability_2).all()


@for_each(
    "values, least, most",
    [([20.0], 2, 600), ([20.0, 20.0], 2, 600), ([0.0], 2, 600), ([5.0] * 4, 0.5, 150), ([5.0] * 30, 0, 0.01)],
)
def test_a_few_values_are_not_certain_to_stay(fitted, values, least, most):
    days = pd.date_range("2024-05-01", periods=len(values))
    tube = fitted.forecast(pd.DataFrame({"unique_id": "new", "ds": days, "y": values})).tube()
    assert (tube.high - tube.low).between(least, most).all()


def test_a_week_is_learned(fitted, frame):
    mean = fitted.forecast().mean()
    after = sales(157)
    truth = after[after.ds > frame.ds.max()]
    error = np.abs(mean["mean"].to_numpy() - truth.y.to_numpy()).mean()
    assert error < 0.15 * truth.y.mean()


def test_the_same_seed_gives_the_same_forecast_and_another_seed_another(frame):
    one, same, other = (quick(random_state=seed).fit(frame, horizon=3).predict() for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(one, same)
    assert not one.future_1.equals(other.future_1)


def test_a_fit_neither_uses_nor_changes_the_random_state_of_torch(frame):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    quick(dropout=0.0).fit(frame, horizon=3)
    assert torch.equal(before, torch.get_rng_state())


def test_new_short_and_late_series_are_forecast(fitted):
    new = pd.DataFrame({"unique_id": ["new"] * 5, "ds": pd.date_range("2025-03-01", periods=5), "y": [3.0, 4, 5, 4, 3]})
    found = fitted.predict(new)
    assert found.ds.iloc[0] == pd.Timestamp("2025-03-06")
    assert np.isfinite(found.filter(like="future").to_numpy()).all()
    assert found.future_1.abs().max() < 100


def test_predict_with_the_frame_of_the_fit_is_predict_without(fitted, frame):
    pd.testing.assert_frame_equal(fitted.predict(frame), fitted.predict())


def test_a_frame_of_polars_comes_back_as_one(fitted, frame):
    polars = pytest.importorskip("polars")
    given = polars.DataFrame({name: frame[name].to_numpy() for name in frame})
    found = fitted.predict(given)
    assert isinstance(found, polars.DataFrame)
    np.testing.assert_allclose(found["future_1"].to_numpy(), fitted.predict().future_1)


@for_each("kind", ["missing", "late", "negative", "intermittent", "constant", "huge"])
def test_awkward_series_are_learned_from(kind):
    frame = sales(100, 2)
    rng = np.random.default_rng(0)
    if kind == "missing":
        frame.loc[rng.uniform(size=len(frame)) < 0.3, "y"] = np.nan
        frame.loc[frame.index[-3:], "y"] = np.nan
    elif kind == "late":
        frame = frame.drop(frame.index[:80])
    else:
        frame["y"] = {
            "negative": -frame.y,
            "intermittent": rng.poisson(0.1, len(frame)).astype(float),
            "constant": 5.0,
            "huge": 1e12 + 1e10 * frame.y,
        }[kind]
    found = quick().fit(frame, horizon=5).forecast()
    values = np.stack([found.futures().future_1, found.mean()["mean"], found.quantiles()["q0.9"]])
    assert np.isfinite(values).all()
    if kind in ("intermittent", "constant"):
        assert (values >= 0).all()
    if kind == "negative":
        assert (values < 0).any()
    if kind == "constant":
        np.testing.assert_allclose(values, 5.0, rtol=1e-3)


def test_series_that_are_joint_share_their_futures(frame):
    wide = frame.pivot(index="ds", columns="unique_id", values="y")
    forecaster = quick(joint=True).fit(wide, horizon=4)
    found = forecaster.predict()
    assert found.groupby("ds").probability_1.nunique().eq(1).all()
    paths = forecaster.forecast().paths
    assert (len(paths), *paths.shape[2:]) == (1, 3, 4)
    pd.testing.assert_frame_equal(forecaster.predict(wide[wide.columns[::-1]]), found)  # in any order
    with pytest.raises(ValueError, match="`frame`"):
        forecaster.predict(wide[["shop 0"]])


def test_the_rate_falls_along_a_cosine_under_rules_that_do_not_set_it(frame):
    def learning_rates(rule):
        rates = []

        def record(optimizer, args, kwargs):
            rates.append(optimizer.param_groups[0]["lr"])

        hook = register_optimizer_step_pre_hook(record)
        try:
            quick(rule=rule).fit(frame, horizon=3)
        finally:
            hook.remove()
        return rates

    falling = learning_rates(mcl.WTA())
    assert learning_rates(mcl.AutoAnnealing(rate=False)) == falling
    assert learning_rates(mcl.AutoAnnealing()) != falling


@for_each("rule", [mcl.WTA(), mcl.RelaxedWTA(0.1), lambda part: mcl.AnnealedWTA(1.0 / (1 + part))])
def test_any_rule_trains(frame, rule):
    assert len(quick(rule=rule).fit(frame, horizon=3).predict()) == 9


def test_a_series_too_short_for_tubes_is_forecast_without():
    frame = pd.DataFrame({"ds": range(24), "y": np.sin(np.arange(24.0))})
    forecaster = quick().fit(frame, horizon=6)
    assert forecaster.tube_level_ is None
    assert len(forecaster.predict()) == 6
    with pytest.raises(ValueError, match=r"Forecast\.tube: `frame`"):
        forecaster.forecast().tube()


def test_parameters_are_those_of_scikit_learn():
    forecaster = Forecaster(7, hidden=(32,))
    assert clone(forecaster).get_params() == forecaster.get_params()
    assert "Forecaster(" in repr(forecaster)
    with pytest.raises(NotFittedError, match="not fitted"):
        forecaster.predict()


@for_each(
    "options, message",
    [
        ({"n_futures": 0}, "`n_futures` must be >= 1"),
        ({"n_futures": 5}, "`n_futures` must be at most n_hypotheses"),
        ({"coverage": 1.0}, "`coverage` must lie in"),
        ({"dropout": 1.0}, "`dropout` must lie in"),
        ({"hidden": ()}, "`hidden` must be a sequence of integers >= 1"),
        ({"seasons": (1,)}, "`seasons` must be a sequence of integers >= 2"),
        ({"learning_rate": 0.0}, "`learning_rate` must be > 0"),
        ({"crps": -1.0}, "`crps` must be >= 0"),
    ],
)
def test_a_bad_parameter_is_named(frame, options, message):
    with pytest.raises(ValueError, match=rf"^Forecaster: {message}"):
        quick(**options).fit(frame, horizon=3)


def test_a_bad_horizon_is_named(frame):
    with pytest.raises(ValueError, match="`horizon`"):
        quick().fit(frame, horizon=0)
    with pytest.raises(ValueError, match="`frame`"):
        quick().fit(frame, horizon=500)
