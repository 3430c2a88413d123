"""Multiple choice learning with scikit-learn's interface.

A fit is a pipeline of frozen parts: `tables` and `rows` check and split the table, a `Preprocessor` converts rows to
tensors, a `Trainer` trains networks, a `Predictive` returns hypotheses and densities, and a `Calibrator` returns sets.
"""

from pathlib import Path

from torchmcl_tables.mcl.answers import PredictionIntervals, PredictionRegions
from torchmcl_tables.mcl.classifier import MCLClassifier, TopClasses
from torchmcl_tables.mcl.parameters import Cooling
from torchmcl_tables.mcl.predictive import Hypotheses
from torchmcl_tables.mcl.regressor import MCLRegressor
from torchmcl_tables.mcl.saving import read_estimator

__all__ = [
    "Cooling",
    "Hypotheses",
    "MCLClassifier",
    "MCLRegressor",
    "PredictionIntervals",
    "PredictionRegions",
    "TopClasses",
    "load_estimator",
]


def load_estimator(folder: str | Path) -> MCLRegressor | MCLClassifier:
    """Return the estimator written by `save` into a folder.

    Raises:
        ValueError: if the folder contains no such model, or one of an unsupported version.
    """
    kinds = (MCLRegressor, MCLClassifier)
    return read_estimator("load_estimator", Path(folder), kinds)
