"""Tables: several plausible outcomes for every row, with a density and calibrated intervals."""

from typing import TYPE_CHECKING

from torchmcl import optional

if TYPE_CHECKING:
    from torchmcl_tables.estimators import Cooling as Cooling
    from torchmcl_tables.estimators import DensityRegressor as DensityRegressor
    from torchmcl_tables.estimators import Hypotheses as Hypotheses
    from torchmcl_tables.estimators import MCLClassifier as MCLClassifier
    from torchmcl_tables.estimators import MCLRegressor as MCLRegressor
    from torchmcl_tables.estimators import PredictionIntervals as PredictionIntervals
    from torchmcl_tables.estimators import PredictionRegions as PredictionRegions
    from torchmcl_tables.estimators import TableEncoder as TableEncoder
    from torchmcl_tables.estimators import TopClasses as TopClasses

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

# The commands read tables, and print their help, without torch.
__getattr__, __dir__ = optional.lazy_names(__name__, dict.fromkeys(__all__, "torchmcl_tables.estimators"))
