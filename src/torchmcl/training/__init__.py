"""The training step, written once, and what stands around it: records, finite steps, models as CUDA graphs."""

from torchmcl.training.captured import CapturedModel
from torchmcl.training.finite import FiniteSteps, NonFiniteLoss
from torchmcl.training.recorder import Recorder
from torchmcl.training.step import mcl_step

__all__ = ["CapturedModel", "FiniteSteps", "NonFiniteLoss", "Recorder", "mcl_step"]
