"""LSTM layers in Triton."""
