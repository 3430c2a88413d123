"""Multiple choice learning with scikit-learn's interface (`pip install torchmcl[sklearn]`).

A fit is a walk through frozen parts: `columns` and `rows` check and split the table, a `Preprocessor` makes tensors of
rows, a `Trainer` trains networks, a `Predictive` makes hypotheses and densities of them, and a `Calibrator` sets.
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
        ValueError: if the folder holds no such model, or one of another version.
    """
    kinds = (MCLRegressor, MCLClassifier)
    return read_estimator("load_estimator", Path(folder), kinds)
