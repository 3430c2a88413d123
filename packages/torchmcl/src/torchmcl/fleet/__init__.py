"""Fleets: many small models trained at once on a leading axis."""

from torchmcl.fleet.batches import default_batch_size, even_batch_size
from torchmcl.fleet.data import FleetData, FreshRows
from torchmcl.fleet.epochs import EpochEnd
from torchmcl.fleet.evaluation import MixtureLogLoss, WeightedDistortion, current_loss, hard_distortion
from torchmcl.fleet.fleet import Fleet
from torchmcl.fleet.history import FleetHistory
from torchmcl.fleet.optimizers import SGD, Adam
from torchmcl.fleet.options import Checkpointing, Validation
from torchmcl.fleet.recorder import FleetRecorder
from torchmcl.fleet.search import Candidate, FleetSearch, Trials, default_candidates

__all__ = [
    "SGD",
    "Adam",
    "Candidate",
    "Checkpointing",
    "EpochEnd",
    "Fleet",
    "FleetData",
    "FleetHistory",
    "FleetRecorder",
    "FleetSearch",
    "FreshRows",
    "MixtureLogLoss",
    "Trials",
    "Validation",
    "WeightedDistortion",
    "current_loss",
    "default_batch_size",
    "default_candidates",
    "even_batch_size",
    "hard_distortion",
]
