"""Squared Euclidean cost of long vectors by one matrix product.

|h - t|^2 = |h|^2 + |t|^2 - 2 h.t cancels badly when the points share an offset; a shift changes no
difference, so both sets are centred on the mean target first. The centred copies are made again in
the backward pass rather than kept: a pass over memory is cheaper than holding it.
"""

from typing import Any

import torch
from torch import Tensor

from torchmcl import kernels
from torchmcl._eager import in_forward_mode, may_work_in_place
from torchmcl.costs._separable import SQUARE, separable_cost
from torchmcl.costs._shapes import without_autocast

__all__ = ["centred_sq_euclidean"]

_MAX_TILE = 64


def centred_sq_euclidean(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the cost [..., targets, hypotheses] of points with equal leading axes."""
    if in_forward_mode():
        return separable_cost(hypotheses, targets, SQUARE)
    # The kernel holds all targets of a sample in one tile.
    fused = targets.shape[-2] <= _MAX_TILE and kernels.usable(hypotheses, targets)
    cost: Tensor = (_FusedSqEuclidean if fused else _CentredSqEuclidean).apply(hypotheses, targets)
    return cost


def _centred(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    centre = targets.sum(dim=-2, keepdim=True) / max(targets.shape[-2], 1)
    return hypotheses - centre, targets - centre


class _CentredSqEuclidean(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hypotheses: Tensor, targets: Tensor) -> Tensor:
        hypotheses, targets = _centred(hypotheses, targets)
        lengths = torch.linalg.vector_norm(hypotheses, dim=-1).square().unsqueeze(-2)
        lengths = lengths + torch.linalg.vector_norm(targets, dim=-1).square().unsqueeze(-1)
        with without_autocast(hypotheses):
            return (lengths - 2 * (targets @ hypotheses.mT)).clamp_min(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hypotheses, targets = _centred(*ctx.saved_tensors)
        to_hypotheses = to_targets = None
        grad = 2 * grad
        with without_autocast(hypotheses):
            if ctx.needs_input_grad[1]:
                to_targets = grad.sum(dim=-1, keepdim=True) * targets - grad @ hypotheses
            if ctx.needs_input_grad[0]:
                total = grad.sum(dim=-2).unsqueeze(-1)
                if hypotheses.ndim == 3 and may_work_in_place():
                    to_hypotheses = hypotheses.mul_(total).baddbmm_(grad.mT, targets, alpha=-1)
                else:
                    to_hypotheses = hypotheses * total - grad.mT @ targets
        return to_hypotheses, to_targets


class _FusedSqEuclidean(torch.autograd.Function):
    """The same in kernels that centre the points as they read them, so that nothing is copied."""

    @staticmethod
    def forward(ctx: Any, hypotheses: Tensor, targets: Tensor) -> Tensor:
        from torchmcl.kernels import pairs

        ctx.save_for_backward(hypotheses, targets)
        h, t = (x.contiguous().view(-1, *x.shape[-2:]) for x in (hypotheses, targets))
        cost = pairs.sq_many_dims(h, t, t.mean(dim=-2))
        return cost.view(*hypotheses.shape[:-2], targets.shape[-2], hypotheses.shape[-2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not may_work_in_place():  # differentiated again: take the way that autograd can follow
            return _CentredSqEuclidean.backward(ctx, grad)
        from torchmcl.kernels import pairs

        hypotheses, targets = ctx.saved_tensors
        h, t, g = (x.contiguous().view(-1, *x.shape[-2:]) for x in (hypotheses, targets, grad))
        centre = t.mean(dim=-2)
        needs = ctx.needs_input_grad
        return (
            pairs.sq_many_dims_to_hypotheses(h, t, centre, g).view(hypotheses.shape) if needs[0] else None,
            pairs.sq_many_dims_to_targets(h, t, centre, g).view(targets.shape) if needs[1] else None,
        )
