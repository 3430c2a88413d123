"""The training step, written once, and a recorder of what happens on the way."""

from torchmcl.training.finite import FiniteSteps, NonFiniteLoss
from torchmcl.training.recorder import Recorder
from torchmcl.training.step import mcl_step

__all__ = ["FiniteSteps", "NonFiniteLoss", "Recorder", "mcl_step"]
