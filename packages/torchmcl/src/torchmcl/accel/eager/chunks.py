"""Number of samples that a sequence kernel processes at a time.

A cost between sequences is a sum over [targets, hypotheses, steps, dim] for each sample. Written as a formula, each of
its operations makes such a tensor for the whole batch, and autograd keeps several of them until the backward pass. In
chunks that fit the cache nothing but the inputs is kept: the backward pass computes the formula again.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

__all__ = ["chunks", "n_chunks_for"]

# Entries of one intermediate result: small enough for the cache of a core, large enough to hide the calls.
_ENTRIES_ON_CPU = 1 << 16
_ENTRIES_ELSEWHERE = 1 << 22


def n_chunks_for(samples: Tensor, entries: int) -> int:
    """Return the number of chunks for samples with this many entries in all, at least 1."""
    at_once = _ENTRIES_ON_CPU if samples.device.type == "cpu" else _ENTRIES_ELSEWHERE
    return max(1, min(-(-entries // at_once), len(samples)))


def chunks(n_chunks: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Return the tensors of each chunk; None is passed on."""
    split = [[None] * n_chunks if tensor is None else tensor.tensor_split(n_chunks) for tensor in tensors]
    return zip(*split, strict=True)
