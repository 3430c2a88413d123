"""Covariates, known ahead or not, change the forecast; those that are missing are named."""

import numpy as np
import pandas as pd
import pytest
from quick_sales import QUICK, UNTRAINED, sales

from grids import for_each
from torchmcl_forecast import Forecaster

HORIZON = 7


def promoted(n_days=157, seed=1):
    """Return sales that double on days of a promotion, and visitors that are seen a day ahead of their purchases."""
    frame = sales(n_days, 2)
    rng = np.random.default_rng(seed)
    frame["promotion"] = (rng.uniform(size=len(frame)) < 0.2).astype(float)
    frame["visitors"] = rng.normal(size=len(frame))
    level = frame.groupby("unique_id").y.transform("mean")
    bought = frame.groupby("unique_id").visitors.shift(fill_value=0.0)
    return frame.assign(y=frame.y + level * (frame.promotion + bought))


@pytest.fixture(scope="module")
def parts():
    frame = promoted()
    end = frame.ds.max() - pd.Timedelta(days=HORIZON)
    return frame[frame.ds <= end], frame[frame.ds > end]


@pytest.fixture(scope="module")
def informed(parts):
    return Forecaster(**QUICK, known=["promotion"], past=["visitors"]).fit(parts[0], horizon=HORIZON)


def test_what_is_known_ahead_moves_the_forecast_of_its_day(informed, parts):
    ahead = parts[1]
    means = [
        informed.forecast(future=ahead.assign(promotion=value)).mean()["mean"].to_numpy().reshape(2, HORIZON)
        for value in (0.0, ahead.promotion.to_numpy(), 1.0)
    ]
    assert (means[2] > means[0]).all()
    moved = (means[1] - means[0]) / (means[2] - means[0])
    days = ahead.promotion.to_numpy().reshape(2, HORIZON) > 0
    assert moved[days].min() > 0.5 > moved[~days].max()


def test_a_saved_forecaster_keeps_its_covariates(informed, parts, tmp_path):
    informed.save(tmp_path)
    future = parts[1]
    loaded = Forecaster.load(tmp_path).predict(future=future)
    for other in (informed.predict(future=future), informed.predict(parts[0], future=future)):
        pd.testing.assert_frame_equal(loaded, other, rtol=1e-3)  # single precision; drawn paths between two futures


def test_a_covariate_that_never_changed_is_not_divided_by_a_rounding_error(parts):
    fitted = Forecaster(**UNTRAINED, past=["price"]).fit(parts[0].assign(price=0.1), horizon=HORIZON)
    assert fitted.scaling_.tolist() == [[0.1, 1.0]]


def test_covariates_of_a_wide_frame_are_shared_by_all_series_and_by_joint_ones(parts):
    past, ahead = parts
    shared = past[past.unique_id == "shop 0"].set_index("ds").promotion
    wide = past.pivot(index="ds", columns="unique_id", values="y").assign(promotion=shared)
    future = ahead[ahead.unique_id == "shop 0"][["ds", "promotion"]]
    for joint in (False, True):
        forecaster = Forecaster(**UNTRAINED, known=["promotion"], joint=joint).fit(wide, horizon=HORIZON)
        assert forecaster.predict(future=future).unique_id.unique().tolist() == ["shop 0", "shop 1"]


@for_each(
    "change, message",
    [
        (lambda f: None, "`future`"),
        (
            lambda f: f.iloc[1:],
            "have values for all 7 steps .*, got no 'promotion' for 'shop 0'",
        ),
        (lambda f: f.assign(promotion=np.nan), "got no 'promotion' for 'shop 0' at 2024-05-30"),
        (lambda f: f.drop(columns="promotion"), "`future`"),
        (lambda f: f.drop(columns="ds"), "`future`"),
        (lambda f: pd.concat([f, f]), "`future`"),
        (lambda f: f.assign(promotion="yes"), "`promotion`"),
    ],
)
def test_a_bad_future_is_named(informed, parts, change, message):
    with pytest.raises(ValueError, match=message):
        informed.predict(future=change(parts[1]))
