"""Pairwise costs: functions of keyword-only tensors with result [..., targets, hypotheses]; lower is better."""

from torchmcl.costs.aligned import pairwise_rmsd
from torchmcl.costs.combined import AnchoredCost, Pairwise, SumOfCosts
from torchmcl.costs.declared import (
    MEAN,
    MEDIAN,
    Center,
    CostDeclaration,
    NormalMixtureFormula,
    NormFormula,
    cost_declaration,
    declare_cost,
)
from torchmcl.costs.families import BivariateNormal, FullNormal, HypothesisFamily
from torchmcl.costs.likelihood import MixtureNLL, MixtureNLLWithCRPS, pairwise_gaussian_nll, pairwise_laplace_nll
from torchmcl.costs.masks import (
    pairwise_dice,
    pairwise_focal,
    pairwise_iou,
    pairwise_mask_bce,
    pairwise_pixel_cross_entropy,
)
from torchmcl.costs.rotations import pairwise_geodesic, pairwise_sq_angle, rotation_matrices, wrap_angle
from torchmcl.costs.sequences import (
    pairwise_ade,
    pairwise_fde,
    pairwise_sq_ade,
    pairwise_token_cross_entropy,
)
from torchmcl.costs.vector import (
    pairwise_cosine,
    pairwise_cross_entropy,
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
    "AnchoredCost",
    "BivariateNormal",
    "Center",
    "CostDeclaration",
    "FullNormal",
    "HypothesisFamily",
    "MixtureNLL",
    "MixtureNLLWithCRPS",
    "NormFormula",
    "NormalMixtureFormula",
    "Pairwise",
    "SumOfCosts",
    "cost_declaration",
    "declare_cost",
    "pairwise_ade",
    "pairwise_cosine",
    "pairwise_cross_entropy",
    "pairwise_dice",
    "pairwise_euclidean",
    "pairwise_fde",
    "pairwise_focal",
    "pairwise_gaussian_nll",
    "pairwise_geodesic",
    "pairwise_huber",
    "pairwise_iou",
    "pairwise_l1",
    "pairwise_laplace_nll",
    "pairwise_mask_bce",
    "pairwise_neg_si_sdr",
    "pairwise_neg_snr",
    "pairwise_pixel_cross_entropy",
    "pairwise_rmsd",
    "pairwise_sq_ade",
    "pairwise_sq_angle",
    "pairwise_sq_euclidean",
    "pairwise_token_cross_entropy",
    "rotation_matrices",
    "wrap_angle",
]
