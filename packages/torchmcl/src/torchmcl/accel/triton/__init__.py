"""Faster ways in Triton, for CUDA devices."""
