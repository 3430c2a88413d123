"""One small fitted forecaster for all tests that only look at it."""

import pytest
from quick_sales import QUICK, sales

from torchmcl_forecast import Forecaster


@pytest.fixture(scope="session")
def frame():
    return sales()


@pytest.fixture(scope="session")
def fitted(frame):
    return Forecaster(**QUICK).fit(frame, horizon=7)
