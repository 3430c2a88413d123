"""The CRPS of normal mixtures at single steps: exactly, or without bias from random pairs of hypotheses."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["mixture_crps", "random_crps"]


def mixture_crps(centers: Tensor, scales: Tensor, shares: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Return the mean CRPS over the known steps, from all pairs of hypotheses.

    Args:
        centers: [windows, hypotheses, steps]
        scales: of the same shape, standard deviations.
        shares: [windows, hypotheses], probabilities.
        truth: [windows, steps], finite.
        known: [windows, steps], False for steps to leave out.

    Example:
        >>> one = torch.ones(1, 1)
        >>> mixture_crps(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1e-6), one, one, one.bool())
        tensor(1.0000)
    """
    one, other = torch.triu_indices(shares.shape[1], shares.shape[1], device=shares.device)
    both = (scales[:, one].square() + scales[:, other].square()).sqrt()
    twice = shares[:, one] * shares[:, other] * torch.where(one == other, 1.0, 2.0)
    spread = (twice.unsqueeze(-1) * _mean_distance(centers[:, one] - centers[:, other], both)).sum(dim=1)
    return _mean(_near(centers, scales, shares, truth) - spread / 2, known)


def random_crps(centers: Tensor, scales: Tensor, shares: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Return an unbiased estimate of `mixture_crps` that pairs each hypothesis with a random other one in each window.

    All steps then cost less than all pairs of hypotheses at a few steps, and the gradient of a path is smoother.
    """
    n = shares.shape[1]
    # The distance between two draws from the same hypothesis is known without a partner.
    spread = (shares.square().unsqueeze(-1) * scales).sum(dim=1) * (2 / math.sqrt(math.pi))
    if n > 1:
        shift = torch.randint(1, n, (len(shares), 1), device=shares.device)
        partner = (torch.arange(n, device=shares.device) + shift) % n  # [windows, hypotheses]
        at = partner.unsqueeze(-1).expand_as(scales)
        both = (scales.square() + scales.gather(1, at).square()).sqrt()
        gap = _mean_distance(centers - centers.gather(1, at), both)
        weights = (n - 1) * shares * shares.gather(1, partner)
        spread = spread + (weights.unsqueeze(-1) * gap).sum(dim=1)
    return _mean(_near(centers, scales, shares, truth) - spread / 2, known)


def _near(centers: Tensor, scales: Tensor, shares: Tensor, truth: Tensor) -> Tensor:
    """Return the mean distance of a draw from the truth, [windows, steps]."""
    return (shares.unsqueeze(-1) * _mean_distance(truth.unsqueeze(1) - centers, scales)).sum(dim=1)


def _mean(values: Tensor, known: Tensor) -> Tensor:
    return (values * known).sum() / known.sum().clamp_min(1)


class _MeanDistance(torch.autograd.Function):
    """The mean of |offset + scale z| for a standard normal z; its derivatives are by-products."""

    @staticmethod
    def forward(ctx: Any, offset: Tensor, scale: Tensor) -> Tensor:
        z = offset / scale
        sign = torch.erf(z * math.sqrt(0.5))
        bell = torch.exp(-z.square() / 2) * math.sqrt(2 / math.pi)
        ctx.save_for_backward(sign, bell)
        return offset * sign + scale * bell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        sign, bell = ctx.saved_tensors
        return gradient * sign, gradient * bell


def _mean_distance(offset: Tensor, scale: Tensor) -> Tensor:
    found: Tensor = _MeanDistance.apply(offset, scale)
    return found
