"""Modules that return Predictions."""

from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.nn.latents import Concatenated, EmbeddedLatent, FiLM, LatentHypotheses, NormalLatent
from torchmcl.nn.mlp import MultiHypothesisMLP

__all__ = [
    "Concatenated",
    "EmbeddedLatent",
    "FiLM",
    "LatentHypotheses",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "NormalLatent",
]
