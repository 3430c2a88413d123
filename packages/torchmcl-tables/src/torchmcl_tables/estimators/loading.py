"""Reading a saved estimator without knowing which one it is."""

from pathlib import Path

from torchmcl_tables.estimators.classifier import MCLClassifier
from torchmcl_tables.estimators.regressor import MCLRegressor
from torchmcl_tables.estimators.saving import read_estimator

__all__ = ["load_estimator"]


def load_estimator(folder: str | Path) -> MCLRegressor | MCLClassifier:
    """Return the estimator that `save` wrote into a folder, whichever it is.

    Raises:
        ValueError: if the folder holds no such model, or one of a newer version.
    """
    kinds = {kind.__name__: kind for kind in (MCLRegressor, MCLClassifier)}
    estimator: MCLRegressor | MCLClassifier = read_estimator("load_estimator", Path(folder), kinds)
    return estimator
