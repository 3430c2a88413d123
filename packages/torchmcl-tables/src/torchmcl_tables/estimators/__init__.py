"""The density of every row of a table, with scikit-learn's interface."""

from torchmcl_tables.estimators.density import DensityRegressor
from torchmcl_tables.estimators.frames import TableEncoder

__all__ = ["DensityRegressor", "TableEncoder"]
