"""Estimators with scikit-learn's interface.

A fit is a pipeline of immutable components: rows are checked and split, an encoder converts them to tensors, a
`Trainer` trains networks, which define a predictive distribution, and a calibrator computes prediction sets.
"""

from torchmcl_tables.estimators.classifier import MCLClassifier
from torchmcl_tables.estimators.density import DensityRegressor
from torchmcl_tables.estimators.regressor import MCLRegressor
from torchmcl_tables.estimators.results import Hypotheses, PredictionIntervals, PredictionRegions, TopClasses
from torchmcl_tables.estimators.tables import TableEncoder
from torchmcl_tables.estimators.training import Cooling

__all__ = [
    "Cooling",
    "DensityRegressor",
    "Hypotheses",
    "MCLClassifier",
    "MCLRegressor",
    "PredictionIntervals",
    "PredictionRegions",
    "TableEncoder",
    "TopClasses",
]
