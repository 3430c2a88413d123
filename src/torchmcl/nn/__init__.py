"""Modules that return Predictions, what they are made of, and what separators need around them."""

from torchmcl.nn.bilstm import BiLSTM, FusedBiLSTM
from torchmcl.nn.dprnn import DPRNN
from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.nn.long_recordings import StreamingSeparator, separate_long
from torchmcl.nn.mlp import MultiHypothesisMLP
from torchmcl.nn.saved import load_model, save_model

__all__ = [
    "DPRNN",
    "BiLSTM",
    "FusedBiLSTM",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "StreamingSeparator",
    "load_model",
    "save_model",
    "separate_long",
]
