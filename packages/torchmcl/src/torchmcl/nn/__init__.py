"""Networks and layers that return `Predictions`."""

from torchmcl.nn.latents import ConcatLatent, EmbeddedLatent, LatentHypotheses, NormalLatent
from torchmcl.nn.networks import MultiHypothesisHead, MultiHypothesisMLP

__all__ = [
    "ConcatLatent",
    "EmbeddedLatent",
    "LatentHypotheses",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "NormalLatent",
]
