"""Sums over coordinates of a function of the difference of every pair.

Broadcasting would build [..., targets, hypotheses, dim] several times over and keep it for the
backward pass. Walking the coordinates keeps one [..., targets, hypotheses] tensor, saves nothing
but the inputs, and takes each difference exactly, so that a large common offset costs no accuracy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl._eager import is_plain_eager, may_work_in_place

__all__ = ["MAX_TURNS", "sum_of_absolutes", "sum_of_hubers", "sum_of_squares"]

# The coordinate loop is unrolled by torch.compile, so it has at most this many turns; beyond that
# each turn takes a slab of several coordinates.
MAX_TURNS = 32
_CHUNK_ENTRIES = 1 << 20


class _Element(NamedTuple):
    """A function of one coordinate's difference, and its derivative; both may overwrite their argument."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


_SQUARE = _Element(lambda difference: difference.mul_(difference), lambda difference: difference.mul_(2))
_ABSOLUTE = _Element(torch.abs, torch.sign)


def _huber(delta: float) -> _Element:
    def value(difference: Tensor) -> Tensor:
        distance = difference.abs()
        inside = distance.clamp(max=delta)
        return inside * (distance - 0.5 * inside)

    return _Element(value, lambda difference: difference.clamp(-delta, delta))


def sum_of_squares(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the squared Euclidean distances, [..., targets, hypotheses]."""
    return _apply(hypotheses, targets, _SQUARE)


def sum_of_absolutes(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the sums of absolute differences, [..., targets, hypotheses]."""
    return _apply(hypotheses, targets, _ABSOLUTE)


def sum_of_hubers(hypotheses: Tensor, targets: Tensor, delta: float) -> Tensor:
    """Return the sums of the Huber function of the differences, [..., targets, hypotheses]."""
    return _apply(hypotheses, targets, _huber(delta))


def _apply(hypotheses: Tensor, targets: Tensor, element: _Element) -> Tensor:
    cost: Tensor = _SumOverCoordinates.apply(hypotheses, targets, *element)
    return cost


class _SumOverCoordinates(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        hypotheses: Tensor, targets: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if hypotheses.ndim < 3 or hypotheses.device.type != "cpu" or not is_plain_eager():
            return _walk(hypotheses, targets, value)
        cost = hypotheses.new_empty(*hypotheses.shape[:-2], targets.shape[-2], hypotheses.shape[-2])
        chunks = _chunks(cost)
        if len(chunks) == 1:
            return _walk(hypotheses, targets, value)
        for rows in chunks:
            cost[rows] = _walk(hypotheses[rows], targets[rows], value)
        return cost

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        hypotheses, targets, _, slope = inputs
        ctx.save_for_backward(hypotheses, targets)
        ctx.slope = slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hypotheses, targets = ctx.saved_tensors
        # Made from `grad`, so that under torch.vmap they can hold values that depend on it.
        to_hypotheses = grad.new_empty(hypotheses.shape) if ctx.needs_input_grad[0] else None
        to_targets = grad.new_empty(targets.shape) if ctx.needs_input_grad[1] else None
        if grad.ndim < 3 or grad.device.type != "cpu" or not may_work_in_place():
            _pull(hypotheses, targets, grad, ctx.slope, to_hypotheses, to_targets)
            return to_hypotheses, to_targets, None, None
        for rows in _chunks(grad):
            parts = [None if part is None else part[rows] for part in (to_hypotheses, to_targets)]
            _pull(hypotheses[rows], targets[rows], grad[rows], ctx.slope, *parts)
        return to_hypotheses, to_targets, None, None


def _chunks(cost: Tensor) -> list[slice]:
    """Return slices of a few samples that fit in the cache: on CPUs, fresh memory for intermediates is slow."""
    n_samples = max(1, _CHUNK_ENTRIES * len(cost) // max(cost.numel(), 1))
    return [slice(start, start + n_samples) for start in range(0, len(cost), n_samples)] or [slice(0, 0)]


def _slabs(n_dims: int) -> list[slice]:
    width = max(1, -(-n_dims // MAX_TURNS))
    return [slice(start, min(start + width, n_dims)) for start in range(0, n_dims, width)]


def _difference(hypotheses: Tensor, targets: Tensor, slab: slice) -> Tensor:
    """Return [..., targets, hypotheses] for one coordinate, with a trailing slab axis for more."""
    if slab.stop - slab.start == 1:
        return hypotheses[..., None, :, slab.start] - targets[..., :, None, slab.start]
    return hypotheses[..., None, :, slab] - targets[..., :, None, slab]


def _walk(hypotheses: Tensor, targets: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the cost, coordinate by coordinate."""
    cost = None
    for slab in _slabs(hypotheses.shape[-1]):
        part = value(_difference(hypotheses, targets, slab))
        if slab.stop - slab.start > 1:
            part = part.sum(dim=-1)
        cost = part if cost is None else cost.add_(part)
    if cost is None:  # no coordinates: nothing to differ in
        return (hypotheses[..., None, :, :] - targets[..., :, None, :]).sum(dim=-1)
    return cost


def _pull(
    hypotheses: Tensor,
    targets: Tensor,
    grad: Tensor,
    slope: Callable[[Tensor], Tensor],
    to_hypotheses: Tensor | None,
    to_targets: Tensor | None,
) -> None:
    """Write the gradients of the points, given that of the cost."""
    in_place = may_work_in_place()
    for slab in _slabs(hypotheses.shape[-1]):
        pull = slope(_difference(hypotheses, targets, slab))
        # A single coordinate has no slab axis, neither here nor in the gradient that it is written to.
        single = pull.ndim == grad.ndim
        where, targets_axis = (slab.start, -2) if single else (slab, -3)
        alone = pull.shape[targets_axis] == 1
        if in_place and single and alone and to_hypotheses is not None and to_targets is None:
            torch.mul(pull.squeeze(-2), grad.squeeze(-2), out=to_hypotheses[..., where])
            continue
        pull = pull * (grad if single else grad.unsqueeze(-1))
        if to_hypotheses is not None:
            to_hypotheses[..., where] = pull.squeeze(targets_axis) if alone else pull.sum(dim=targets_axis)
        if to_targets is not None:
            to_targets[..., where] = pull.sum(dim=targets_axis + 1).neg_()
