"""Faster implementations of definitions in the rest of the package.

`accelerated` decorates a definition with faster implementations, and is the only place that selects among them: the
first that supports the arguments in the current mode. There are two kinds:

- `in_torch`: a function of `accel.eager`, mostly an `autograd.Function`, that needs less memory and time than the
  formula, on any device, including under `torch.compile` and `torch.vmap`; `in_eager` where these do not support it;
- kernels of `accel.triton` and functions of `accel.native` in C, for float32 tensors in plain eager mode, each with its
  own condition.

In forward mode the definition itself is computed, because forward mode supports only plain operations.
`one_to_one` is a torch operator instead: no formula defines it, and it runs in every mode.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from torchmcl._eager import in_forward_mode, is_plain_eager

# A kernel of `linear` holds the whole weight of a model in the registers of a program. Larger ones spill and are slower
# than the library for any number of models: 0.62 instead of 0.15 ms an epoch of 8 networks of 50 units, 105 outputs.
_MAX_HELD = 1024

# The kernels index with 32-bit integers.
_MAX_ENTRIES = 2**31 - 1

P = ParamSpec("P")
R = TypeVar("R")


class Way(NamedTuple):
    """A faster implementation of a definition.

    Attributes:
        serves: returns whether it supports these arguments in the current mode.
        compute: has the signature of the definition, and returns `NotImplemented` for arguments beyond its limits.
    """

    serves: Callable[..., bool]
    compute: Callable[..., Any]


class Accelerated(Protocol[P, R]):
    """A definition with faster implementations; tests compare them, and backward passes may need the definition."""

    definition: Callable[P, R]
    ways: tuple[Way, ...]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of the first implementation that supports the arguments, or of the definition."""


def accelerated(*ways: Way) -> Callable[[Callable[P, R]], Accelerated[P, R]]:
    """Return a decorator that computes a definition by the first implementation that supports the arguments."""

    def decorate(definition: Callable[P, R]) -> Accelerated[P, R]:
        @functools.wraps(definition)
        def fastest(*args: P.args, **kwargs: P.kwargs) -> R:
            for way in ways:
                if way.serves(*args, **kwargs):
                    result: R = way.compute(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
            return definition(*args, **kwargs)

        decorated = cast(Accelerated[P, R], fastest)
        decorated.definition, decorated.ways = definition, ways
        return decorated

    return decorate


def in_torch(function: Callable[..., Any]) -> Way:
    """Return an implementation in plain torch, for all arguments except in forward mode."""
    return Way(lambda *args, **kwargs: not in_forward_mode(), function)


def in_eager(function: Callable[..., Any]) -> Way:
    """Return an implementation in plain torch without support for the compiler and `torch.vmap`."""
    return Way(lambda *args, **kwargs: is_plain_eager(), function)


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def runs_on(device: torch.device) -> bool:
    """Return whether Triton kernels can run on a device, or in Triton's interpreter on the CPU."""
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return (device.type == "cuda" or interpreted) and is_plain_eager() and has_triton()


def held_by_program(*sizes: int) -> bool:
    """Return whether one program of a kernel can hold a weight of these sizes, padded to powers of 2 of at least 16."""
    return math.prod(max(16, 1 << (size - 1).bit_length()) for size in sizes) <= _MAX_HELD


def runs_triton(tensor: Tensor) -> bool:
    """Return whether Triton kernels can run on the device of this tensor in the current mode."""
    return tensor.is_cuda and is_plain_eager() and has_triton()


def usable(*tensors: Tensor) -> bool:
    """Return whether the float32 kernels support these tensors in the current mode."""
    return (
        all(t.is_cuda and t.dtype == torch.float32 and 0 < t.numel() <= _MAX_ENTRIES for t in tensors)
        and len(tensors) > 0
        and runs_triton(tensors[0])  # the mode is the same for all
    )
