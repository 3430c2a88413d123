"""Kernels in Triton, imported when they are first called, so importing torchmcl does not need Triton."""

import torch
from torch import Tensor

from torchmcl import dispatch

__all__ = ["supports"]

# The kernels index with 32-bit integers.
_MAX_ENTRIES = 2**31 - 1


def supports(*tensors: Tensor) -> bool:
    """Return whether the float32 kernels support these tensors in the current mode."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 and 0 < t.numel() <= _MAX_ENTRIES for t in tensors)
        and len(tensors) > 0
        and dispatch.runs_triton(tensors[0])  # the mode is the same for all
    )
