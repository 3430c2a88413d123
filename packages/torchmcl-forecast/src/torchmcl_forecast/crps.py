"""CRPS of normal mixtures at single steps: the exact value, and an unbiased estimate from random pairs."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["mixture_crps", "random_crps"]


def mixture_crps(centers: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Compute the mean CRPS over the known steps from all pairs of hypotheses.

    Args:
        centers: Means of the hypotheses, [windows, hypotheses, steps].
        scales: Standard deviations of the same shape.
        probabilities: Probabilities of the hypotheses, [windows, hypotheses].
        truth: Finite target values, [windows, steps].
        known: Step mask [windows, steps], False for steps to leave out.

    Example:
        >>> one = torch.ones(1, 1)
        >>> mixture_crps(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1e-6), one, one, one.bool())
        tensor(1.0000)
    """
    one, other = torch.triu_indices(probabilities.shape[1], probabilities.shape[1], device=probabilities.device)
    both = (scales[:, one].square() + scales[:, other].square()).sqrt()
    twice = probabilities[:, one] * probabilities[:, other] * torch.where(one == other, 1.0, 2.0)
    spread = (twice.unsqueeze(-1) * _mean_distance(centers[:, one] - centers[:, other], both)).sum(dim=1)
    return _mean(_near(centers, scales, probabilities, truth) - spread / 2, known)


def random_crps(centers: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Estimate `mixture_crps` without bias, by pairing each hypothesis with one other random hypothesis per window.

    Random pairs at all steps take less time than all pairs at a few steps, and the gradient of a path is smoother.
    """
    n = probabilities.shape[1]
    # The mean distance between two draws from the same hypothesis has a closed form.
    spread = (probabilities.square().unsqueeze(-1) * scales).sum(dim=1) * (2 / math.sqrt(math.pi))
    if n > 1:
        shift = torch.randint(1, n, (len(probabilities), 1), device=probabilities.device)
        partner = (torch.arange(n, device=probabilities.device) + shift) % n  # [windows, hypotheses]
        at = partner.unsqueeze(-1).expand_as(scales)
        both = (scales.square() + scales.gather(1, at).square()).sqrt()
        gap = _mean_distance(centers - centers.gather(1, at), both)
        weights = (n - 1) * probabilities * probabilities.gather(1, partner)
        spread = spread + (weights.unsqueeze(-1) * gap).sum(dim=1)
    return _mean(_near(centers, scales, probabilities, truth) - spread / 2, known)


def _near(centers: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor) -> Tensor:
    """Return the mean distance between a draw and the target, [windows, steps]."""
    return (probabilities.unsqueeze(-1) * _mean_distance(truth.unsqueeze(1) - centers, scales)).sum(dim=1)


def _mean(values: Tensor, known: Tensor) -> Tensor:
    return (values * known).sum() / known.sum().clamp_min(1)


class _MeanDistance(torch.autograd.Function):
    """Mean of |offset + scale z| for a standard normal z; the derivatives are by-products of the forward pass."""

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
    distance: Tensor = _MeanDistance.apply(offset, scale)
    return distance
