"""The training step, written once, a recorder of what happens on the way, and models as CUDA graphs."""

from torchmcl.training.captured import CapturedModel
from torchmcl.training.recorder import Recorder
from torchmcl.training.step import mcl_step

__all__ = ["CapturedModel", "Recorder", "mcl_step"]
