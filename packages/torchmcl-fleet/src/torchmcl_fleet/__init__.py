# ruff: noqa: F403
"""Fleets: many small models trained at once on a leading axis.

Names are imported on first use, so that `torchmcl --help` can list the commands without importing torch.
"""

from typing import TYPE_CHECKING

from torchmcl import optional

if TYPE_CHECKING:
    from torchmcl_fleet.backends.training import *
    from torchmcl_fleet.fleet import *
    from torchmcl_fleet.history import *
    from torchmcl_fleet.model_selection import *
    from torchmcl_fleet.modules.optimizers import *
    from torchmcl_fleet.modules.stacked import *
    from torchmcl_fleet.plan import *
    from torchmcl_fleet.problem import *
    from torchmcl_fleet.search import *

# Public name -> module that defines it, imported on first use.
_HOMES = {
    "Adam": "torchmcl_fleet.modules.optimizers",
    "Candidate": "torchmcl_fleet.search",
    "Checkpointing": "torchmcl_fleet.plan",
    "EpochInfo": "torchmcl_fleet.backends.training",
    "Fleet": "torchmcl_fleet.fleet",
    "FleetData": "torchmcl_fleet.problem",
    "FleetHistory": "torchmcl_fleet.history",
    "FleetRecorder": "torchmcl_fleet.fleet",
    "FleetSearch": "torchmcl_fleet.search",
    "HeldOutCost": "torchmcl_fleet.plan",
    "HypothesisCounts": "torchmcl_fleet.model_selection",
    "MixtureLogLoss": "torchmcl_fleet.plan",
    "SGD": "torchmcl_fleet.modules.optimizers",
    "SampledData": "torchmcl_fleet.problem",
    "SearchResult": "torchmcl_fleet.search",
    "Validation": "torchmcl_fleet.plan",
    "WeightedDistortion": "torchmcl_fleet.plan",
    "build_modules": "torchmcl_fleet.modules.stacked",
    "choose_n_hypotheses": "torchmcl_fleet.model_selection",
    "current_loss": "torchmcl_fleet.plan",
    "default_batch_size": "torchmcl_fleet.plan",
    "default_candidates": "torchmcl_fleet.search",
    "even_batch_size": "torchmcl_fleet.plan",
    "hard_distortion": "torchmcl_fleet.plan",
    "least_distortions": "torchmcl_fleet.model_selection",
}
__all__ = list(_HOMES)

__getattr__, __dir__ = optional.lazy_names(__name__, _HOMES)
