"""Kernels in Triton, imported when they are first called, so importing torchmcl does not need Triton."""

import math

import torch
from torch import Tensor

from torchmcl import dispatch

__all__ = ["held_by_program", "supports"]

# A kernel of `linear` holds the whole weight of a model in the registers of a program. Larger ones spill and are slower
# than the library for any number of models: 0.62 instead of 0.15 ms an epoch of 8 networks of 50 units, 105 outputs.
_MAX_HELD = 1024

# The kernels index with 32-bit integers.
_MAX_ENTRIES = 2**31 - 1


def held_by_program(*sizes: int) -> bool:
    """Return whether one program of a kernel can hold a weight of these sizes, padded to powers of 2 of at least 16."""
    return math.prod(max(16, 1 << (size - 1).bit_length()) for size in sizes) <= _MAX_HELD


def supports(*tensors: Tensor) -> bool:
    """Return whether the float32 kernels support these tensors in the current mode."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 and 0 < t.numel() <= _MAX_ENTRIES for t in tensors)
        and len(tensors) > 0
        and dispatch.runs_triton(tensors[0])  # the mode is the same for all
    )
