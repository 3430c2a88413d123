"""Estimators with scikit-learn's interface: several answers for each row of a table."""

from torchmcl_tables.estimators._conformal import PredictionIntervals
from torchmcl_tables.estimators._predicting import Hypotheses
from torchmcl_tables.estimators._regions import PredictionRegions
from torchmcl_tables.estimators.classifier import Guesses, MCLClassifier
from torchmcl_tables.estimators.loading import load_estimator
from torchmcl_tables.estimators.regressor import MCLRegressor

__all__ = [
    "Guesses",
    "Hypotheses",
    "MCLClassifier",
    "MCLRegressor",
    "PredictionIntervals",
    "PredictionRegions",
    "load_estimator",
]
