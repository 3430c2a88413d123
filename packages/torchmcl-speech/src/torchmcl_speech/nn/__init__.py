"""Separators: networks that return one waveform per hypothesis, and their use on long recordings."""

from torchmcl_speech.nn.bilstm import BiLSTM, FusedBiLSTM
from torchmcl_speech.nn.dprnn import DPRNN
from torchmcl_speech.nn.long_recordings import StreamingSeparator, separate_long
from torchmcl_speech.nn.saving import load_model, save_model

__all__ = ["DPRNN", "BiLSTM", "FusedBiLSTM", "StreamingSeparator", "load_model", "save_model", "separate_long"]
