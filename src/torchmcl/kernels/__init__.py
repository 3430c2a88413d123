"""Fused GPU kernels in Triton for what eager PyTorch would do in many passes over memory.

Each has a plain counterpart in the package that defines what it must compute; the kernels serve
float32 tensors on CUDA devices in eager mode, everything else takes the plain way.
"""

import functools
import importlib.util

import torch
from torch import Tensor

from torchmcl._eager import is_plain_eager

__all__ = ["MAX_FEATURES", "MAX_ROW", "runs_triton", "usable"]

# A kernel of `rows` holds a whole row of hypotheses.
MAX_ROW = 8192

# A kernel of `linear` holds the whole weight of a model.
MAX_FEATURES = 128

# The kernels index with 32-bit integers.
_MAX_ENTRIES = 2**31 - 1


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def runs_triton(tensor: Tensor) -> bool:
    """Return whether Triton kernels of any type can run where this tensor is, here and now."""
    return tensor.is_cuda and is_plain_eager() and _has_triton()


def usable(*tensors: Tensor) -> bool:
    """Return whether the kernels can serve these tensors here and now."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 and 0 < t.numel() <= _MAX_ENTRIES for t in tensors)
        and is_plain_eager()
        and _has_triton()
    )
