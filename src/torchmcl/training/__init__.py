"""The training step, and what a loop around it needs: a scheduler, a recorder, a guard, and models as CUDA graphs."""

from torchmcl.training.batches import as_batch
from torchmcl.training.captured import CapturedModel
from torchmcl.training.finite import FiniteGuard, NonFiniteLossError
from torchmcl.training.recorder import Recorder
from torchmcl.training.scheduler import RuleScheduler
from torchmcl.training.step import mcl_step
from torchmcl.types import collate_batches

__all__ = [
    "CapturedModel",
    "FiniteGuard",
    "NonFiniteLossError",
    "Recorder",
    "RuleScheduler",
    "as_batch",
    "collate_batches",
    "mcl_step",
]
