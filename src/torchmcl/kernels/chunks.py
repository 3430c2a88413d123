"""A formula computed for a few samples at a time, which holds its intermediate results for those samples only.

A cost between sequences is a sum over [targets, hypotheses, steps, dim] for each sample. Written as a formula, each of
its operations makes such a tensor for the whole batch, and autograd keeps several of them until the backward pass. In
chunks that fit the cache nothing but the inputs is kept: the backward pass computes the formula again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchmcl._eager import is_plain_eager

__all__ = ["in_chunks", "n_chunks_for"]

# Entries of one intermediate result: small enough for the cache of a core, large enough to hide the calls.
_ENTRIES_ON_CPU = 1 << 16
_ENTRIES_ELSEWHERE = 1 << 22


def in_chunks(formula: Callable[..., Tensor], *tensors: Tensor | None, entries: int) -> Tensor:
    """Return `formula(*tensors)`, computed for a few samples at a time where that saves memory.

    Args:
        formula: of tensors with the same leading axes, each sample by itself; returns these axes and others behind.
        tensors: with one leading axis of samples, equal in all; None is passed on.
        entries: how many entries the largest intermediate result has, for all samples.
    """
    n_chunks = n_chunks_for(next(tensor for tensor in tensors if tensor is not None), entries)
    if n_chunks <= 1 or not is_plain_eager():
        return formula(*tensors)
    result: Tensor = _InChunks.apply(formula, n_chunks, *tensors)
    return result


def n_chunks_for(samples: Tensor, entries: int) -> int:
    """Return into how many chunks to split samples with this many entries in all, at least 1."""
    at_once = _ENTRIES_ON_CPU if samples.device.type == "cpu" else _ENTRIES_ELSEWHERE
    return max(1, min(-(-entries // at_once), len(samples)))


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, formula: Callable[..., Tensor], n_chunks: int, *tensors: Tensor | None) -> Tensor:
        ctx.formula, ctx.n_chunks = formula, n_chunks
        ctx.save_for_backward(*tensors)
        return torch.cat([formula(*chunk) for chunk in _chunks(tensors, n_chunks)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # the gradient is itself differentiated
            return None, None, *_pulled(ctx.formula, ctx.saved_tensors, needed, grad, create_graph=True)
        gradients = [torch.empty_like(t) if n else None for t, n in zip(ctx.saved_tensors, needed, strict=True)]
        parts = zip(*(_chunks(group, ctx.n_chunks) for group in (ctx.saved_tensors, gradients, (grad,))), strict=True)
        for chunk, written, (pull,) in parts:
            leaves = [None if t is None else t.detach().requires_grad_(n) for t, n in zip(chunk, needed, strict=True)]
            with torch.enable_grad():
                pulled = _pulled(ctx.formula, leaves, needed, pull, create_graph=False)
            for target, value in zip(written, pulled, strict=True):
                if target is not None:
                    target.copy_(value)
        return None, None, *gradients


def _pulled(
    formula: Callable[..., Tensor], tensors: Any, needed: tuple[bool, ...], grad: Tensor, *, create_graph: bool
) -> list[Any]:
    """Return the gradients of the needed tensors, None for the others."""
    leaves = [tensor for tensor, is_needed in zip(tensors, needed, strict=True) if is_needed]
    gradients = iter(torch.autograd.grad(formula(*tensors), leaves, grad, create_graph=create_graph))
    return [next(gradients) if is_needed else None for is_needed in needed]


def _chunks(tensors: Any, n_chunks: int) -> list[tuple[Any, ...]]:
    """Return the tensors of each chunk."""
    split = [[None] * n_chunks if tensor is None else tensor.tensor_split(n_chunks) for tensor in tensors]
    return list(zip(*split, strict=True))
