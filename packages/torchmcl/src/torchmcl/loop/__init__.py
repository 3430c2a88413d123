"""Tools for training loops: a rule scheduler, a recorder, a guard against NaN losses, and models as CUDA graphs."""

from torchmcl.loop.cuda_graphs import CUDAGraphModel
from torchmcl.loop.finite import FiniteGuard, NonFiniteLossError
from torchmcl.loop.recorder import Recorder
from torchmcl.loop.scheduler import RuleScheduler

__all__ = ["CUDAGraphModel", "FiniteGuard", "NonFiniteLossError", "Recorder", "RuleScheduler"]
