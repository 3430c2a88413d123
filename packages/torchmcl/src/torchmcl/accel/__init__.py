"""Faster ways to compute what the rest of the package defines in plain formulas.

`accelerated` decorates a definition and is the only place that chooses between three ways to compute it:

- a Triton kernel (`rows`, `pairs`) for float32 tensors on a CUDA device, in plain eager mode;
- otherwise an `autograd.Function` (`coordinates`, `squares`, `products`, `cross_entropy`) that needs less memory
  and time than the formula, on any device, compiled and under `torch.vmap` too;
- in forward mode the definition itself, because plain operations are all that forward mode can follow.

`one_to_one` is an operator of torch instead: no formula defines it, and it runs in every mode.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from torchmcl._eager import in_forward_mode, is_plain_eager

__all__ = ["MAX_FEATURES", "accelerated", "has_triton", "runs_on", "runs_triton", "usable"]

# A kernel of `linear` holds the whole weight of a model.
MAX_FEATURES = 128

# The kernels index with 32-bit integers.
_MAX_ENTRIES = 2**31 - 1

F = TypeVar("F", bound=Callable[..., Any])


def accelerated(lean: Callable[..., Any] | None = None, *, triton: str | None = None) -> Callable[[F], F]:
    """Return a decorator that computes a definition by a faster function of the same signature.

    Args:
        lean: a function in plain torch, used wherever the kernel is not, except in forward mode.
        triton: "module.function" of this package, imported when first needed. The function returns
            `NotImplemented` for arguments that its kernel does not serve, such as too long rows.
    """

    def decorate(definition: F) -> F:
        @functools.wraps(definition)
        def fastest(*args: Any, **kwargs: Any) -> Any:
            if triton is not None and usable(*(value for value in args if isinstance(value, Tensor))):
                result = _kernel(triton)(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            if lean is None or in_forward_mode():
                return definition(*args, **kwargs)
            return lean(*args, **kwargs)

        return cast(F, fastest)

    return decorate


@functools.cache
def _kernel(name: str) -> Callable[..., Any]:
    module, function = name.split(".")
    kernel: Callable[..., Any] = getattr(importlib.import_module(f"torchmcl.accel.triton.{module}"), function)
    return kernel


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def runs_on(device: torch.device) -> bool:
    """Return whether Triton kernels can run on a device, or in Triton's interpreter on the CPU."""
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return (device.type == "cuda" or interpreted) and is_plain_eager() and has_triton()


def runs_triton(tensor: Tensor) -> bool:
    """Return whether Triton kernels can run on the device of this tensor in the present mode."""
    return tensor.is_cuda and is_plain_eager() and has_triton()


def usable(*tensors: Tensor) -> bool:
    """Return whether the kernels for float32 can serve these tensors in the present mode."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 and 0 < t.numel() <= _MAX_ENTRIES for t in tensors)
        and len(tensors) > 0
        and runs_triton(tensors[0])  # the mode is the same for all
    )
