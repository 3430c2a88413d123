"""Weights, weighted costs and the cross-entropy of scores in C, each in a separate pass: `c/rows.h`.

They are used if cost, rule, loss and scores are called one by one; `mcl_step` computes all of them in one pass.
"""

import ctypes
import math
from ctypes import Structure
from typing import Any

import torch
from torch import Tensor

from torchmcl._eager import may_work_in_place
from torchmcl.accel.eager.one_target import cross_entropy_gradient
from torchmcl.accel.native.compiled import MAX_HYPOTHESES
from torchmcl.accel.native.extension import floats, in_blocks, integers, library, pointers, serves

_WEIGHTS, _ENTROPIES, _PRODUCTS = range(3)
# Minimum number of costs per model for which a separate call for each model is faster.
_FEWEST_ENTRIES = 4096


class _RowWise(Structure):
    _fields_ = (
        *integers("first last n_columns kind"),
        *floats("temperature top rest"),
        *pointers("values others out sums"),
    )


def softmin(cost: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the softmin of each row for a single finite temperature."""
    if isinstance(temperature, Tensor) or math.isinf(temperature) or cost.shape[-1] > MAX_HYPOTHESES:
        return NotImplemented
    return _weights(cost, temperature, 1.0, 0.0)  # hard weights if the temperature rounds to 0 in single precision


def winner_weights(cost: Tensor, winner: float | Tensor = 1.0, other: float | Tensor = 0.0) -> Tensor:
    """Return `winner` at the cheapest hypothesis of each row and `other` elsewhere; both are numbers."""
    if isinstance(winner, Tensor) or isinstance(other, Tensor) or cost.shape[-1] > MAX_HYPOTHESES:
        return NotImplemented
    return _weights(cost, 0.0, winner, other)


def serves_models(cost: Tensor) -> bool:
    """Return whether `mixed_rows` supports a cost, and a separate call for each model is faster."""
    return serves(cost) and cost.shape[-1] <= MAX_HYPOTHESES and cost[0].numel() >= _FEWEST_ENTRIES


def mixed_rows(cost: Tensor, temperatures: Tensor, epsilons: Tensor) -> Tensor:
    """Return softmin weights where a model's temperature is positive, winner weights where it is 0.

    Args:
        cost: [models, ..., hypotheses]
        temperatures: [models], 0 for hard weights.
        epsilons: [models], the total weight of the other hypotheses under hard weights.
    """
    cost = cost.contiguous()
    weights, n_others = torch.empty_like(cost), cost.shape[-1] - 1
    for own, out, temperature, epsilon in zip(cost, weights, temperatures.tolist(), epsilons.tolist(), strict=True):
        hard = (1 - epsilon, epsilon / n_others) if n_others else (1.0, 0.0)
        _run(_WEIGHTS, own, out=out, numbers=(temperature, *hard))
    return weights


def weighted_sum(weights: Tensor, cost: Tensor) -> Tensor:
    """Return the sum of weights * cost over the last axis; only the cost gets a gradient."""
    if weights.shape != cost.shape or weights.requires_grad or cost.shape[-1] > MAX_HYPOTHESES:  # long sums lose digits
        return NotImplemented
    return _WeightedSum.apply(cost, weights)


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of logits, summed over the last axis."""
    if logits.shape[-1] > MAX_HYPOTHESES or logits.shape != labels.shape:
        return NotImplemented
    return _SummedCrossEntropy.apply(logits, labels)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cost: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        sums = cost.new_empty(cost.shape[:-1])
        _run(_PRODUCTS, cost.contiguous(), others=weights.contiguous(), sums=sums)
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return weights * grad.unsqueeze(-1), None


class _SummedCrossEntropy(torch.autograd.Function):
    """Compute the gradient together with the sums, as both need the same exponential of every logit."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        x = logits.contiguous()
        sums = x.new_empty(x.shape[:-1])
        slopes = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        _run(_ENTROPIES, x, others=labels.contiguous(), out=slopes, sums=sums)
        ctx.save_for_backward(logits, labels)
        ctx.slopes = slopes
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        logits, labels = ctx.saved_tensors
        slopes, ctx.slopes = ctx.slopes, None
        grad = grad.unsqueeze(-1)
        to_logits = None
        if ctx.needs_input_grad[0]:
            taken = slopes is None or not may_work_in_place(grad)  # by an earlier pass, or differentiated again
            to_logits = cross_entropy_gradient(logits, labels, grad) if taken else slopes.mul_(grad)
        return to_logits, -logits * grad if ctx.needs_input_grad[1] else None


def _weights(cost: Tensor, temperature: float, top: float, rest: float) -> Tensor:
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    _run(_WEIGHTS, cost, out=weights, numbers=(temperature, top, rest))
    return weights


def _run(
    kind: int,
    values: Tensor,
    *,
    others: Tensor | None = None,
    out: Tensor | None = None,
    sums: Tensor | None = None,
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> None:
    n_columns = values.shape[-1]
    places = [None if part is None else part.data_ptr() for part in (values, others, out, sums)]

    def part(first: int, last: int) -> None:
        work = _RowWise(first, last, n_columns, kind, *numbers, *places)
        library().torchmcl_row_wise(ctypes.byref(work))

    in_blocks(part, values.numel() // n_columns, n_columns)
