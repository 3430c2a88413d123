"""Tables: several plausible outcomes for every row, with a density and calibrated intervals."""

from typing import TYPE_CHECKING

from torchmcl.optional import lazy_names

if TYPE_CHECKING:
    from torchmcl_tables.estimators.density import DensityRegressor as DensityRegressor
    from torchmcl_tables.estimators.frames import TableEncoder as TableEncoder
    from torchmcl_tables.mcl.classifier import MCLClassifier as MCLClassifier
    from torchmcl_tables.mcl.regressor import MCLRegressor as MCLRegressor

_HOMES = {
    "DensityRegressor": "torchmcl_tables.estimators",
    "MCLClassifier": "torchmcl_tables.mcl",
    "MCLRegressor": "torchmcl_tables.mcl",
    "TableEncoder": "torchmcl_tables.estimators",
}
__all__ = list(_HOMES)

# The commands read tables, and print their help, without torch.
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
