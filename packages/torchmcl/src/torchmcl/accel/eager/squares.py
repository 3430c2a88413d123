"""Squared Euclidean distances: coordinate by coordinate for short vectors, slab by slab for long ones.

Both take differences first. |h|^2 + |t|^2 - 2 h.t would be one matrix product, but it needs a common origin, and its
error grows with the distance from that origin: near pairs lose their digits, equal points are not at distance 0, and an
origin made of the targets lets padded targets change the cost of real ones.

The gradients are matrix products, around an origin to which padded targets do not contribute.
"""

from typing import Any

import torch
from torch import Tensor

from torchmcl._eager import may_work_in_place, without_autocast
from torchmcl.accel.eager.coordinates import MAX_TURNS, sum_of_squares

__all__ = ["centred_pull", "pulled_centre", "squared_distances"]

# Coordinates that `torch.cdist` adds up at a time: it adds one after another, and errors of float32 pile up.
_SLAB = 1024


def squared_distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return |h - t|^2 of every pair, [..., targets, hypotheses]."""
    if hypotheses.shape[-1] <= MAX_TURNS:
        return sum_of_squares(hypotheses, targets)
    cost: Tensor = _LongSquares.apply(hypotheses, targets)
    return cost


class _LongSquares(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hypotheses: Tensor, targets: Tensor) -> Tensor:
        width = max(_SLAB, -(-hypotheses.shape[-1] // MAX_TURNS))
        slabs = zip(targets.split(width, dim=-1), hypotheses.split(width, dim=-1), strict=True)
        with without_autocast(hypotheses):
            parts = [torch.cdist(t, h, compute_mode="donot_use_mm_for_euclid_dist").square() for t, h in slabs]
        return sum(parts[1:], parts[0])

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
    centre = pulled_centre(targets, grad)
    hypotheses, targets = hypotheses - centre, targets - centre
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


def pulled_centre(targets: Tensor, grad: Tensor) -> Tensor:
    """Return the mean of the targets weighted by the size of their gradients, [..., 1, dim].

    The gradients of points do not depend on the origin but for rounding, so it needs no gradient itself. Padded targets
    have the gradient 0 and do not count.
    """
    shares = grad.detach().abs().sum(dim=-1, keepdim=True).nan_to_num(0.0, 0.0)
    shares = shares / shares.sum(dim=-2, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
    return (shares * targets.detach()).sum(dim=-2, keepdim=True)
