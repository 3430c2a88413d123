"""Costs that are a sum over coordinates of a function of the difference.

Broadcasting would build [..., targets, hypotheses, dim] several times over and keep it for the
backward pass. Walking the coordinates keeps one [..., targets, hypotheses] tensor, saves nothing
but the inputs, and takes each difference exactly, so that a large common offset costs no accuracy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import kernels
from torchmcl._eager import in_forward_mode, is_plain_eager, may_work_in_place

__all__ = ["ABSOLUTE", "SQUARE", "Element", "huber_element", "separable_cost", "separable_pull", "separable_value"]

# The coordinate loop is unrolled by torch.compile, so it has at most this many turns; beyond that
# each turn takes a slab of several coordinates.
_MAX_TURNS = 32
_CHUNK_ENTRIES = 1 << 20


class Element(NamedTuple):
    """A function of one coordinate's difference, and its derivative; both may overwrite their argument."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def _square(difference: Tensor) -> Tensor:
    return difference.mul_(difference) if is_plain_eager() else difference.square()


def _twice(difference: Tensor) -> Tensor:
    return difference.mul_(2)


SQUARE = Element(_square, _twice)
ABSOLUTE = Element(torch.abs, torch.sign)


def huber_element(delta: float) -> Element:
    """Return the Huber function: quadratic within `delta`, linear beyond."""

    def value(difference: Tensor) -> Tensor:
        inside = difference.abs().clamp(max=delta)
        return inside * (difference.abs() - 0.5 * inside)

    def slope(difference: Tensor) -> Tensor:
        return difference.clamp(-delta, delta)

    return Element(value, slope)


def separable_cost(hypotheses: Tensor, targets: Tensor, element: Element) -> Tensor:
    """Return the sum over coordinates of `element.value(hypothesis - target)`, [..., targets, hypotheses]."""
    if element is SQUARE and hypotheses.shape[-1] <= _MAX_TURNS and kernels.usable(hypotheses, targets):
        fused: Tensor = _FusedSquares.apply(hypotheses, targets)
        return fused
    if in_forward_mode():
        return _walk(hypotheses, targets, element.value)
    cost: Tensor = _SeparableCost.apply(hypotheses, targets, element.value, element.slope)
    return cost


def separable_value(hypotheses: Tensor, targets: Tensor, element: Element) -> Tensor:
    """Return the same cost without a graph, for those who ask for its gradient by `separable_pull`."""
    return _walk(hypotheses, targets, element.value)


def separable_pull(hypotheses: Tensor, targets: Tensor, grad: Tensor, element: Element, to_hypotheses: Tensor) -> None:
    """Write the gradient at the hypotheses, given that at the cost."""
    _pull(hypotheses, targets, grad, element.slope, to_hypotheses, None)


def _slabs(n_dims: int) -> list[slice]:
    width = max(1, -(-n_dims // _MAX_TURNS))
    return [slice(start, min(start + width, n_dims)) for start in range(0, n_dims, width)]


def _difference(hypotheses: Tensor, targets: Tensor, slab: slice) -> Tensor:
    """Return [..., targets, hypotheses] for one coordinate, with a trailing slab axis for more."""
    if slab.stop - slab.start == 1:
        return hypotheses[..., None, :, slab.start] - targets[..., :, None, slab.start]
    return hypotheses[..., None, :, slab] - targets[..., :, None, slab]


def _samples_per_chunk(n_samples: int, n_entries: int) -> int:
    return max(1, _CHUNK_ENTRIES * n_samples // max(n_entries, 1))


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


class _SeparableCost(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        hypotheses: Tensor, targets: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if hypotheses.ndim < 3 or hypotheses.device.type != "cpu" or not is_plain_eager():
            return _walk(hypotheses, targets, value)
        # In the cache, a few samples at a time: on CPUs fresh memory for the intermediates is slow.
        n_samples = _samples_per_chunk(len(hypotheses), hypotheses.shape[-2] * targets.shape[:-1].numel())
        if n_samples >= len(hypotheses):
            return _walk(hypotheses, targets, value)
        cost = hypotheses.new_empty(*hypotheses.shape[:-2], targets.shape[-2], hypotheses.shape[-2])
        for start in range(0, len(hypotheses), n_samples):
            rows = slice(start, start + n_samples)
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
        # Made from `grad`, so that under torch.vmap they can take what depends on it.
        to_hypotheses = grad.new_empty(hypotheses.shape) if ctx.needs_input_grad[0] else None
        to_targets = grad.new_empty(targets.shape) if ctx.needs_input_grad[1] else None
        if grad.ndim < 3 or grad.device.type != "cpu" or not may_work_in_place():
            _pull(hypotheses, targets, grad, ctx.slope, to_hypotheses, to_targets)
            return to_hypotheses, to_targets, None, None
        # In the cache, a few samples at a time: on CPUs fresh memory for the intermediates is slow.
        n_samples = _samples_per_chunk(len(grad), grad.numel())
        for start in range(0, len(grad), n_samples):
            rows = slice(start, start + n_samples)
            parts = [None if part is None else part[rows] for part in (to_hypotheses, to_targets)]
            _pull(hypotheses[rows], targets[rows], grad[rows], ctx.slope, *parts)
        return to_hypotheses, to_targets, None, None


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
        # A single coordinate has no slab axis, neither here nor in what it is written to.
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


class _FusedSquares(torch.autograd.Function):
    """The squared Euclidean cost in one kernel each way."""

    @staticmethod
    def forward(ctx: Any, hypotheses: Tensor, targets: Tensor) -> Tensor:
        from torchmcl.kernels import pairs

        ctx.save_for_backward(hypotheses, targets)
        flat = [x.contiguous().view(-1, *x.shape[-2:]) for x in (hypotheses, targets)]
        return pairs.sq_few_dims(*flat).view(*hypotheses.shape[:-2], targets.shape[-2], hypotheses.shape[-2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hypotheses, targets = ctx.saved_tensors
        if not may_work_in_place():  # differentiated again: take the way that autograd can follow
            difference = hypotheses.unsqueeze(-3) - targets.unsqueeze(-2)
            pull = 2 * grad.unsqueeze(-1) * difference
            return pull.sum(dim=-3), -pull.sum(dim=-2)
        from torchmcl.kernels import pairs

        flat = [x.contiguous().view(-1, *x.shape[-2:]) for x in (hypotheses, targets, grad)]
        needs = ctx.needs_input_grad
        return (
            pairs.sq_few_dims_to_hypotheses(*flat).view(hypotheses.shape) if needs[0] else None,
            pairs.sq_few_dims_to_targets(*flat).view(targets.shape) if needs[1] else None,
        )
