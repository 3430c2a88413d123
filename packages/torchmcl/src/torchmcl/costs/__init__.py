"""Pairwise costs: functions of keyword-only tensors with result [..., targets, hypotheses]; lower is better."""

from torchmcl.costs.classification import pairwise_cross_entropy, pairwise_dice
from torchmcl.costs.declared import MEAN, MEDIAN, Centre, CostDeclaration, Norm, NormalMixture, declaration, declares
from torchmcl.costs.lifted import Pairwise
from torchmcl.costs.likelihood import MixtureNLL, MixtureNLLWithCRPS, pairwise_gaussian_nll, pairwise_laplace_nll
from torchmcl.costs.sequences import (
    pairwise_ade,
    pairwise_fde,
    pairwise_sq_ade,
    pairwise_sq_fde,
    pairwise_token_cross_entropy,
)
from torchmcl.costs.vector import (
    pairwise_cosine,
    pairwise_euclidean,
    pairwise_huber,
    pairwise_l1,
    pairwise_neg_si_sdr,
    pairwise_neg_snr,
    pairwise_sq_euclidean,
)

__all__ = [
    "MEAN",
    "MEDIAN",
    "Centre",
    "CostDeclaration",
    "MixtureNLL",
    "MixtureNLLWithCRPS",
    "Norm",
    "NormalMixture",
    "Pairwise",
    "declaration",
    "declares",
    "pairwise_ade",
    "pairwise_cosine",
    "pairwise_cross_entropy",
    "pairwise_dice",
    "pairwise_euclidean",
    "pairwise_fde",
    "pairwise_gaussian_nll",
    "pairwise_huber",
    "pairwise_l1",
    "pairwise_laplace_nll",
    "pairwise_neg_si_sdr",
    "pairwise_neg_snr",
    "pairwise_sq_ade",
    "pairwise_sq_euclidean",
    "pairwise_sq_fde",
    "pairwise_token_cross_entropy",
]
