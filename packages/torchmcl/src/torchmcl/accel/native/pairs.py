"""Squared distances between all hypotheses and targets in C: `c/pairs.h`."""

import ctypes
import math
from collections.abc import Callable
from ctypes import Structure
from typing import Any

import torch
from torch import Tensor

from torchmcl._eager import may_work_in_place
from torchmcl.accel.eager.distances import centred_pull
from torchmcl.accel.native.extension import aligned, in_blocks, integers, library, pointers

# Up to 4 dimensions are loops of their own, and from 16 on a vector holds coordinates of one point. The targets of a
# sample must fit in the cache, and sums over more coordinates would lose digits.
_FEW_DIMS = 4
_MANY_DIMS = range(16, 1025)
_MAX_TARGET_VALUES = 1 << 15


class _Pairs(Structure):
    _fields_ = (
        *integers("first last n_hypotheses n_targets n_dims"),
        *pointers("hypotheses targets grad cost to_hypotheses to_targets scratch"),
    )


def squared_distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return |h - t|^2 of every pair, [..., targets, hypotheses], for tensors with equal leading axes."""
    n_dims, n_targets = hypotheses.shape[-1], targets.shape[-2]
    if n_dims > _FEW_DIMS and (n_dims not in _MANY_DIMS or n_targets * n_dims > _MAX_TARGET_VALUES):
        return NotImplemented
    return _SquaredDistances.apply(hypotheses, targets)


class _SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hypotheses: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(hypotheses, targets)
        cost = hypotheses.new_empty(*hypotheses.shape[:-2], targets.shape[-2], hypotheses.shape[-2])
        _run(library().torchmcl_pair_costs, hypotheses.contiguous(), targets.contiguous(), None, cost)
        return cost

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hypotheses, targets = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if not may_work_in_place(grad):  # differentiated again
            return centred_pull(hypotheses, targets, grad, needs)
        h, t, grad = hypotheses.contiguous(), targets.contiguous(), grad.contiguous()
        many = h.shape[-1] > _FEW_DIMS
        to_h = torch.empty_like(h) if needs[0] else None
        to_t = torch.empty_like(t) if needs[1] and many else None
        if to_h is not None or to_t is not None:
            _run(library().torchmcl_pair_pulls, h, t, grad, None, to_h, to_t)
        return to_h, centred_pull(h, t, grad, (False, True))[1] if needs[1] and not many else to_t


def _run(function: Callable[..., None], h: Tensor, t: Tensor, *tensors: Tensor | None) -> None:
    """Call a function of the extension; `tensors` are the gradient, the cost, and the gradients to write."""
    sizes = h.shape[-2], t.shape[-2], h.shape[-1]
    places = [None if tensor is None else tensor.data_ptr() for tensor in (h, t, *tensors)]

    def part(first: int, last: int) -> None:
        pairs = _Pairs(first, last, *sizes, *places)
        scratch = aligned(library().torchmcl_pairs_scratch(ctypes.byref(pairs)))
        pairs.scratch = scratch.data_ptr()
        function(ctypes.byref(pairs))

    in_blocks(part, h.shape[:-2].numel(), math.prod(sizes), block=1)
