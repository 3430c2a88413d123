"""Pairwise costs: keyword-only tensors in, cost [..., targets, hypotheses] out, lower is better."""

from torchmcl.costs.audio import pairwise_neg_si_sdr, pairwise_neg_snr
from torchmcl.costs.classification import pairwise_cross_entropy
from torchmcl.costs.lifted import pairwise
from torchmcl.costs.vector import (
    pairwise_cosine,
    pairwise_euclidean,
    pairwise_huber,
    pairwise_l1,
    pairwise_sq_euclidean,
)

__all__ = [
    "pairwise",
    "pairwise_cosine",
    "pairwise_cross_entropy",
    "pairwise_euclidean",
    "pairwise_huber",
    "pairwise_l1",
    "pairwise_neg_si_sdr",
    "pairwise_neg_snr",
    "pairwise_sq_euclidean",
]
