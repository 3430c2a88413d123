"""Modules that return Predictions."""

from torchmcl.nn.dprnn import DPRNN
from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.nn.mlp import MultiHypothesisMLP

__all__ = ["DPRNN", "MultiHypothesisHead", "MultiHypothesisMLP"]
