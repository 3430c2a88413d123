"""Modules that return Predictions, and what they are made of."""

from torchmcl.nn.bilstm import BiLSTM, FusedBiLSTM
from torchmcl.nn.dprnn import DPRNN
from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.nn.mlp import MultiHypothesisMLP

__all__ = ["DPRNN", "BiLSTM", "FusedBiLSTM", "MultiHypothesisHead", "MultiHypothesisMLP"]
