"""Tables: several plausible outcomes for every row, with a density and calibrated intervals."""

from typing import TYPE_CHECKING

from torchmcl._optional import lazy_names

if TYPE_CHECKING:
    from torchmcl_tables.estimators import DensityRegressor, TableEncoder

__all__ = ["DensityRegressor", "TableEncoder"]

# The commands read tables, and print their help, without torch.
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "torchmcl_tables.estimators"))
