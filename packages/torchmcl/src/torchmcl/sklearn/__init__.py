"""Multiple choice learning with scikit-learn's interface (the extra `sklearn`).

A fit is a pipeline of frozen parts: `tables` and `rows` check and split the table, a `Preprocessor` converts rows to
tensors, a `Trainer` trains networks, a `Predictive` returns hypotheses and densities, and a `Calibrator` returns sets.
"""

from pathlib import Path

from torchmcl._optional import optional_import

optional_import("sklearn", extra="sklearn", needed_by="torchmcl.sklearn")

from torchmcl.sklearn.answers import PredictionIntervals, PredictionRegions  # noqa: E402
from torchmcl.sklearn.classifier import MCLClassifier, TopClasses  # noqa: E402
from torchmcl.sklearn.parameters import Cooling  # noqa: E402
from torchmcl.sklearn.predictive import Hypotheses  # noqa: E402
from torchmcl.sklearn.regressor import MCLRegressor  # noqa: E402
from torchmcl.sklearn.saving import read_estimator  # noqa: E402

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
