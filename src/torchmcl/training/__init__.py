"""The training step, written once, a recorder and a guard for what happens on the way, and models as CUDA graphs."""

from torchmcl.training.batches import as_batch, collate_batches
from torchmcl.training.captured import CapturedModel
from torchmcl.training.finite import FiniteGuard, NonFiniteLossError
from torchmcl.training.recorder import Recorder
from torchmcl.training.step import mcl_step

__all__ = ["CapturedModel", "FiniteGuard", "NonFiniteLossError", "Recorder", "as_batch", "collate_batches", "mcl_step"]
