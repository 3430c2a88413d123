"""Estimators with scikit-learn's interface: several answers for each row of a table."""

from torchmcl._optional import optional_import

optional_import("sklearn", extra="sklearn", needed_by="torchmcl.estimators")

from torchmcl.estimators._conformal import PredictionIntervals  # noqa: E402
from torchmcl.estimators._predicting import Hypotheses  # noqa: E402
from torchmcl.estimators._regions import PredictionRegions  # noqa: E402
from torchmcl.estimators.classifier import Guesses, MCLClassifier  # noqa: E402
from torchmcl.estimators.loading import load_estimator  # noqa: E402
from torchmcl.estimators.regressor import MCLRegressor  # noqa: E402

__all__ = [
    "Guesses",
    "Hypotheses",
    "MCLClassifier",
    "MCLRegressor",
    "PredictionIntervals",
    "PredictionRegions",
    "load_estimator",
]
