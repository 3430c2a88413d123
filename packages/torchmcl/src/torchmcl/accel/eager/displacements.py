"""Weighted sums over steps of the distance between every pair of sequences, and their gradients, in chunks.

The formula of autograd makes and keeps several tensors [samples, targets, hypotheses, steps, dim]. Here one coordinate
is taken at a time, for a few samples at a time, and nothing but the inputs is kept.
"""

from typing import Any

import torch
from torch import Tensor

from torchmcl.accel import accelerated, in_eager
from torchmcl.accel.eager.chunks import chunks, n_chunks_for

__all__ = ["weighted_distances"]


class _WeightedDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hypotheses: Tensor, targets: Tensor, weights: Tensor, squared: bool) -> Tensor:
        ctx.save_for_backward(hypotheses, targets, weights)
        ctx.squared = squared
        n_chunks = n_chunks_for(hypotheses, hypotheses.numel() * targets.shape[1])
        parts = chunks(n_chunks, hypotheses, targets, weights)
        return torch.cat([_distances(h, y, squared)[0].mul_(w.unsqueeze(-2)).sum(dim=-1) for h, y, w in parts])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hypotheses, targets, weights = ctx.saved_tensors
        to_hypotheses, to_targets, *_ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the gradient is itself differentiated
            leaves = [tensor for tensor, needed in ((hypotheses, to_hypotheses), (targets, to_targets)) if needed]
            cost = weighted_distances.definition(hypotheses, targets, weights, squared=ctx.squared)
            found = iter(torch.autograd.grad(cost, leaves, grad, create_graph=True))
            return next(found) if to_hypotheses else None, next(found) if to_targets else None, None, None
        pulls = (
            torch.empty_like(hypotheses) if to_hypotheses else None,
            torch.empty_like(targets) if to_targets else None,
        )
        n_chunks = n_chunks_for(hypotheses, hypotheses.numel() * targets.shape[1])
        for chunk in chunks(n_chunks, hypotheses, targets, weights, grad, *pulls):
            _pull(*chunk, squared=ctx.squared)
        return *pulls, None, None


def _in_chunks(hypotheses: Tensor, targets: Tensor, weights: Tensor, *, squared: bool = False) -> Tensor:
    if hypotheses.shape[-1] == 0:
        return NotImplemented
    cost: Tensor = _WeightedDistances.apply(hypotheses, targets, weights, squared)
    return cost


@accelerated(in_eager(_in_chunks))
def weighted_distances(hypotheses: Tensor, targets: Tensor, weights: Tensor, *, squared: bool = False) -> Tensor:
    """Return sum_s weights_s |h_s - y_s| of every pair, [samples, targets, hypotheses].

    Args:
        hypotheses: [samples, hypotheses, steps, dim]
        targets: [samples, targets, steps, dim]
        weights: [samples, targets, steps], without a gradient.
        squared: take the squares of the distances.
    """
    distances = (hypotheses.unsqueeze(-4) - targets.unsqueeze(-3)).square().sum(dim=-1)
    if not squared:
        hit = distances == 0  # where the gradient of the distance is taken as 0
        distances = distances.masked_fill(hit, 1).sqrt().masked_fill(hit, 0)
    return (distances * weights.unsqueeze(-2)).sum(dim=-1)


def _distances(hypotheses: Tensor, targets: Tensor, squared: bool) -> tuple[Tensor, list[Tensor]]:
    """Return the distances [samples, targets, hypotheses, steps] and the differences of each coordinate."""
    pairs = zip(hypotheses.unbind(-1), targets.unbind(-1), strict=True)
    differences = [h.unsqueeze(-3) - y.unsqueeze(-2) for h, y in pairs]
    distances = differences[0] * differences[0]
    for difference in differences[1:]:
        distances.addcmul_(difference, difference)
    return distances if squared else distances.sqrt_(), differences


def _pull(
    hypotheses: Tensor,
    targets: Tensor,
    weights: Tensor,
    grad: Tensor,
    to_hypotheses: Tensor | None,
    to_targets: Tensor | None,
    *,
    squared: bool,
) -> None:
    """Write the gradients of the points, given that of the cost."""
    distances, differences = _distances(hypotheses, targets, squared)
    slope = grad.unsqueeze(-1) * weights.unsqueeze(-2)
    slope = slope.mul_(2) if squared else slope.div_(distances).masked_fill_(distances == 0, 0)
    for axis, difference in enumerate(differences):
        pull = difference.mul_(slope)
        if to_hypotheses is not None:
            to_hypotheses[..., axis] = pull.squeeze(1) if pull.shape[1] == 1 else pull.sum(dim=1)
        if to_targets is not None:
            to_targets[..., axis] = pull.sum(dim=2).neg_()
