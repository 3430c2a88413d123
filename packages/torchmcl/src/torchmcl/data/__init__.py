"""Synthetic problems with known answers, as batches or samples."""

from torchmcl.data.synthetic import (
    CENTRES,
    DEVIATION,
    conditional_covariance,
    conditional_three_gaussians,
    folded_response,
    three_gaussians,
)

__all__ = [
    "CENTRES",
    "DEVIATION",
    "conditional_covariance",
    "conditional_three_gaussians",
    "folded_response",
    "three_gaussians",
]
