"""The training step, written once."""

from torchmcl.training.step import mcl_step

__all__ = ["mcl_step"]
