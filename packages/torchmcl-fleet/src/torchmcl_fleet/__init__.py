"""Fleets: many small models trained at once on a leading axis."""

from typing import TYPE_CHECKING

from torchmcl import optional

if TYPE_CHECKING:
    from torchmcl_fleet.data import FleetData as FleetData
    from torchmcl_fleet.data import SampledData as SampledData
    from torchmcl_fleet.epochs import EpochInfo as EpochInfo
    from torchmcl_fleet.fleet import Fleet as Fleet
    from torchmcl_fleet.fleet import FleetRecorder as FleetRecorder
    from torchmcl_fleet.history import FleetHistory as FleetHistory
    from torchmcl_fleet.options import Checkpointing as Checkpointing
    from torchmcl_fleet.options import HeldOutCost as HeldOutCost
    from torchmcl_fleet.options import MixtureLogLoss as MixtureLogLoss
    from torchmcl_fleet.options import Validation as Validation
    from torchmcl_fleet.options import WeightedDistortion as WeightedDistortion
    from torchmcl_fleet.options import current_loss as current_loss
    from torchmcl_fleet.options import default_batch_size as default_batch_size
    from torchmcl_fleet.options import even_batch_size as even_batch_size
    from torchmcl_fleet.options import hard_distortion as hard_distortion
    from torchmcl_fleet.search import Candidate as Candidate
    from torchmcl_fleet.search import FleetSearch as FleetSearch
    from torchmcl_fleet.search import SearchResult as SearchResult
    from torchmcl_fleet.search import default_candidates as default_candidates
    from torchmcl_fleet.stacked import SGD as SGD
    from torchmcl_fleet.stacked import Adam as Adam

# Name -> module that it is imported from on first use: `torchmcl --help` asks for the commands without torch.
_HOMES = {
    "Adam": "torchmcl_fleet.stacked",
    "Candidate": "torchmcl_fleet.search",
    "Checkpointing": "torchmcl_fleet.options",
    "EpochInfo": "torchmcl_fleet.epochs",
    "Fleet": "torchmcl_fleet.fleet",
    "FleetData": "torchmcl_fleet.data",
    "FleetHistory": "torchmcl_fleet.history",
    "FleetRecorder": "torchmcl_fleet.fleet",
    "FleetSearch": "torchmcl_fleet.search",
    "HeldOutCost": "torchmcl_fleet.options",
    "MixtureLogLoss": "torchmcl_fleet.options",
    "SGD": "torchmcl_fleet.stacked",
    "SampledData": "torchmcl_fleet.data",
    "SearchResult": "torchmcl_fleet.search",
    "Validation": "torchmcl_fleet.options",
    "WeightedDistortion": "torchmcl_fleet.options",
    "current_loss": "torchmcl_fleet.options",
    "default_batch_size": "torchmcl_fleet.options",
    "default_candidates": "torchmcl_fleet.search",
    "even_batch_size": "torchmcl_fleet.options",
    "hard_distortion": "torchmcl_fleet.options",
}
__all__ = list(_HOMES)

__getattr__, __dir__ = optional.lazy_names(__name__, _HOMES)
