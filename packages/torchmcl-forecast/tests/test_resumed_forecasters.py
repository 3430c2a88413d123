"""A fit that was stopped resumes exactly where it was, in both of its phases and between them."""

import pandas as pd
import pytest
from quick_sales import QUICK, counted_steps, sales

import torchmcl as mcl
from torchmcl.io import TrainingInterrupted
from torchmcl_forecast import Forecaster

# 9 steps of each of two networks, one in each part, and 6 more with the last windows.
QUICKER = QUICK | {"n_steps": 9, "n_members": 2, "hidden": (8,)}


@pytest.fixture(scope="module")
def short():
    return sales(100, 2)


@pytest.fixture(scope="module")
def whole(short):
    return Forecaster(**QUICKER).fit(short, horizon=4).forecast()


@pytest.mark.parametrize("step", [7, 18, 23])
def test_a_stopped_fit_resumes_exactly(short, whole, tmp_path, step):
    message = "The progress is saved in .*: the same call resumes it"
    with pytest.raises(TrainingInterrupted, match=message), counted_steps(step):
        Forecaster(**QUICKER).fit(short, horizon=4, checkpoint=tmp_path)
    with counted_steps() as steps:
        resumed = Forecaster(**QUICKER).fit(short, horizon=4, checkpoint=tmp_path).forecast()
    assert len(steps) == 30 - step
    pd.testing.assert_frame_equal(resumed.futures(), whole.futures())
    pd.testing.assert_frame_equal(resumed.tube(), whole.tube())


def test_a_stopped_fit_without_a_checkpoint_ends_at_once(short):
    with pytest.raises(TrainingInterrupted), counted_steps(7) as steps:
        Forecaster(**QUICKER).fit(short, horizon=4)
    assert len(steps) == 7


@pytest.mark.parametrize(
    ("options", "factor", "message"),
    [
        ({}, 2.0, "`checkpoint`"),
        ({"learning_rate": 0.1}, 1.0, "`checkpoint`"),
        ({"rule": mcl.WTA()}, 1.0, "saved under the same rule"),
    ],
)
def test_the_state_of_another_fit_is_refused(short, tmp_path, options, factor, message):
    with pytest.raises(TrainingInterrupted), counted_steps(3):
        Forecaster(**QUICKER).fit(short, horizon=4, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=message):
        Forecaster(**QUICKER, **options).fit(short.assign(y=factor * short.y), horizon=4, checkpoint=tmp_path)
