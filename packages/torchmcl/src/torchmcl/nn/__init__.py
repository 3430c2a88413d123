"""Modules that return Predictions."""

from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.nn.mlp import MultiHypothesisMLP

__all__ = ["MultiHypothesisHead", "MultiHypothesisMLP"]
