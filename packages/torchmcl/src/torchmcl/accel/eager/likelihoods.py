"""Negative log-likelihoods of every pair, summed over the real coordinates, and their gradients, in chunks.

Autograd would make and keep several tensors [samples, targets, hypotheses, coordinates]. Here they are made for a few
samples at a time, and nothing but the inputs is kept.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from torchmcl.accel import accelerated, in_eager
from torchmcl.accel.eager.chunks import chunks, n_chunks_for

__all__ = ["GAUSSIAN", "LAPLACE", "Family", "summed_nll"]


class Family(ABC):
    """A family of distributions with a location and a scale.

    Attributes:
        constant: the part of the negative log-density that depends on neither.
    """

    constant: float

    @abstractmethod
    def nll(self, difference: Tensor, scale: Tensor) -> Tensor:
        """Return the negative log-density without its constant, of target - location."""

    @abstractmethod
    def pulls(self, difference: Tensor, scale: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of location and scale; slope is the gradient of the cost divided by the scale."""


class _Gaussian(Family):
    constant = math.log(2 * math.pi) / 2

    def nll(self, difference: Tensor, scale: Tensor) -> Tensor:
        ratio = difference / scale
        return torch.addcmul(scale.log(), ratio, ratio, value=0.5)

    def pulls(self, difference: Tensor, scale: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        ratio = difference.div_(scale)
        to_location = (ratio * slope).neg_()
        return to_location, slope.addcmul_(ratio, to_location)


class _Laplace(Family):
    constant = math.log(2)

    def nll(self, difference: Tensor, scale: Tensor) -> Tensor:
        return torch.addcdiv(scale.log(), difference.abs(), scale)

    def pulls(self, difference: Tensor, scale: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        to_location = (difference.sign() * slope).neg_()
        return to_location, slope.addcmul_(difference.div_(scale), to_location)


GAUSSIAN, LAPLACE = _Gaussian(), _Laplace()


def summed_nll(family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None) -> Tensor:
    """Return the negative log-likelihood of every pair, [samples, targets, hypotheses].

    Args:
        family: `GAUSSIAN` or `LAPLACE`.
        locations: [samples, hypotheses, coordinates]
        targets: [samples, targets, coordinates]
        scale: [samples, hypotheses, coordinates]
        real: [samples, targets, coordinates], True where a coordinate counts; None when all do.
    """
    cost = _without_constants(family, locations, targets, scale, real)
    # In the dtype of the cost: an integer tensor times a number is float32.
    n_real = targets.shape[-1] if real is None else real.sum(dim=-1, keepdim=True).to(cost.dtype)
    return cost + family.constant * n_real


class _SummedNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None
    ) -> Tensor:
        ctx.family = family
        ctx.save_for_backward(locations, targets, scale, real)
        n_chunks = n_chunks_for(locations, locations.numel() * targets.shape[1])
        return torch.cat([_summed(family, *chunk) for chunk in chunks(n_chunks, locations, targets, scale, real)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed, inputs = ctx.needs_input_grad[1:4], ctx.saved_tensors[:3]
        real = ctx.saved_tensors[3]
        if torch.is_grad_enabled():  # the gradient is itself differentiated
            leaves = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
            cost = _without_constants.definition(ctx.family, *ctx.saved_tensors)
            found = iter(torch.autograd.grad(cost, leaves, grad, create_graph=True))
            return None, *(next(found) if is_needed else None for is_needed in needed), None
        pulls = [torch.empty_like(t) if is_needed else None for t, is_needed in zip(inputs, needed, strict=True)]
        n_chunks = n_chunks_for(inputs[0], inputs[0].numel() * inputs[1].shape[1])
        for chunk in chunks(n_chunks, *inputs, real, grad, *pulls):
            _pull(ctx.family, *chunk)
        return None, *pulls, None


@accelerated(in_eager(_SummedNLL.apply))
def _without_constants(
    family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None
) -> Tensor:
    """Return the sum over the real coordinates without the constants of the family."""
    nll = family.nll(targets.unsqueeze(-2) - locations.unsqueeze(-3), scale.unsqueeze(-3))
    return (nll if real is None else nll.masked_fill(~real.unsqueeze(-2), 0)).sum(dim=-1)


def _summed(family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None) -> Tensor:
    """Return the formula with its mask applied in place, which autograd need not follow here."""
    nll = family.nll(targets.unsqueeze(-2) - locations.unsqueeze(-3), scale.unsqueeze(-3))
    return (nll if real is None else nll.masked_fill_(~real.unsqueeze(-2), 0)).sum(dim=-1)


def _pull(
    family: Family,
    locations: Tensor,
    targets: Tensor,
    scale: Tensor,
    real: Tensor | None,
    grad: Tensor,
    to_locations: Tensor | None,
    to_targets: Tensor | None,
    to_scale: Tensor | None,
) -> None:
    """Write the gradients of the inputs, given that of the cost."""
    scale = scale.unsqueeze(-3)
    slope = grad.unsqueeze(-1) / scale
    if real is not None:
        slope = slope.masked_fill_(~real.unsqueeze(-2), 0)
    located, scaled = family.pulls(targets.unsqueeze(-2) - locations.unsqueeze(-3), scale, slope)
    for written, pull, axis in ((to_locations, located, 1), (to_scale, scaled, 1)):
        if written is not None:
            written.copy_(pull.squeeze(axis) if pull.shape[axis] == 1 else pull.sum(dim=axis))
    if to_targets is not None:
        to_targets.copy_(located.sum(dim=2).neg_())
