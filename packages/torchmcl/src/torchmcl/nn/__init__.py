"""Modules that return Predictions."""

from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.nn.latents import Concatenated, EmbeddedLatent, LatentHypotheses, NormalLatent
from torchmcl.nn.mlp import MultiHypothesisMLP

__all__ = [
    "Concatenated",
    "EmbeddedLatent",
    "LatentHypotheses",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "NormalLatent",
]
