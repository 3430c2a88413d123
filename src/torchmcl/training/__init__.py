"""The training step, written once, and a recorder of what happens on the way."""

from torchmcl.training.recorder import Recorder
from torchmcl.training.step import mcl_step

__all__ = ["Recorder", "mcl_step"]
