"""Data sets: each returns a Batch, or samples to build one from."""

from torchmcl.data.synthetic import conditional_three_gaussians, folded_response, three_gaussians

__all__ = ["conditional_three_gaussians", "folded_response", "three_gaussians"]
