"""Modules that return Predictions."""

from torchmcl.nn.latents import Concatenated, EmbeddedLatent, LatentHypotheses, NormalLatent
from torchmcl.nn.networks import MultiHypothesisHead, MultiHypothesisMLP

__all__ = [
    "Concatenated",
    "EmbeddedLatent",
    "LatentHypotheses",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "NormalLatent",
]
