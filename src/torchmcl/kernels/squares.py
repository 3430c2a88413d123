"""Squared Euclidean distances: coordinate by coordinate for short vectors, by one matrix product for long ones.

|h - t|^2 = |h|^2 + |t|^2 - 2 h.t cancels badly when the points share an offset; a shift changes no
difference, so both sets are centred on the mean target first. The centred copies are made again in
the backward pass rather than kept: a pass over memory is cheaper than holding it.
"""

from typing import Any

import torch
from torch import Tensor

from torchmcl._eager import may_work_in_place, without_autocast
from torchmcl.kernels.coordinates import MAX_TURNS, sum_of_squares

__all__ = ["centred_pull", "squared_distances"]


def squared_distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return |h - t|^2 of every pair, [..., targets, hypotheses]."""
    if hypotheses.shape[-1] <= MAX_TURNS:
        return sum_of_squares(hypotheses, targets)
    cost: Tensor = _CentredSquares.apply(hypotheses, targets)
    return cost


class _CentredSquares(torch.autograd.Function):
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
        hypotheses, targets = ctx.saved_tensors
        return centred_pull(hypotheses, targets, grad, ctx.needs_input_grad)


def centred_pull(
    hypotheses: Tensor, targets: Tensor, grad: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients at hypotheses and targets, None where not needed, in a form that autograd can follow."""
    hypotheses, targets = _centred(hypotheses, targets)
    to_hypotheses = to_targets = None
    grad = 2 * grad
    with without_autocast(hypotheses):
        if needs[1]:
            to_targets = grad.sum(dim=-1, keepdim=True) * targets - grad @ hypotheses
        if needs[0]:
            total = grad.sum(dim=-2).unsqueeze(-1)
            if hypotheses.ndim == 3 and may_work_in_place():
                to_hypotheses = hypotheses.mul_(total).baddbmm_(grad.mT, targets, alpha=-1)
            else:
                to_hypotheses = hypotheses * total - grad.mT @ targets
    return to_hypotheses, to_targets


def _centred(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    centre = targets.sum(dim=-2, keepdim=True) / max(targets.shape[-2], 1)
    return hypotheses - centre, targets - centre
