"""Modules that return Predictions, and what they are made of."""

from torchmcl.nn.bilstm import BiLSTM, FusedBiLSTM
from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.nn.mlp import MultiHypothesisMLP

__all__ = ["BiLSTM", "FusedBiLSTM", "MultiHypothesisHead", "MultiHypothesisMLP"]
