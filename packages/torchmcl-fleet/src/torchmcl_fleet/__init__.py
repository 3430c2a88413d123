"""Fleets: many small models trained at once on a leading axis."""

from torchmcl_fleet.data import FleetData, SampledData
from torchmcl_fleet.epochs import EpochInfo
from torchmcl_fleet.fleet import Fleet, FleetRecorder
from torchmcl_fleet.history import FleetHistory
from torchmcl_fleet.options import (
    Checkpointing,
    HeldOutCost,
    MixtureLogLoss,
    Validation,
    WeightedDistortion,
    current_loss,
    default_batch_size,
    even_batch_size,
    hard_distortion,
)
from torchmcl_fleet.search import Candidate, FleetSearch, SearchResult, default_candidates
from torchmcl_fleet.stacked import SGD, Adam

__all__ = [
    "SGD",
    "Adam",
    "Candidate",
    "Checkpointing",
    "EpochInfo",
    "Fleet",
    "FleetData",
    "FleetHistory",
    "FleetRecorder",
    "FleetSearch",
    "HeldOutCost",
    "MixtureLogLoss",
    "SampledData",
    "SearchResult",
    "Validation",
    "WeightedDistortion",
    "current_loss",
    "default_batch_size",
    "default_candidates",
    "even_batch_size",
    "hard_distortion",
]
