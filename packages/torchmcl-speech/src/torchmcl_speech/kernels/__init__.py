"""Faster LSTM layers and norms, in Triton."""
