"""Slots for faster functions, and the mode in which operations run: eager, compiled, transformed, autocast.

The core is plain torch. Three of its functions look for a faster one first, which another module may provide:

================  =======================================================================================
slot              function
================  =======================================================================================
``step``          A whole `mcl_step` after the call of the model, from a `torchmcl.step.StepProblem`.
``assignment``    Weights of the cheapest one-to-one assignments, from a cost on a GPU and a mask.
``univariate``    Mixtures of normals on a line, from centers, weights and widths: an object with the methods
                  ``sets``, ``mass_above`` and ``best_points``.
================  =======================================================================================

A function in a slot returns `NotImplemented` for arguments beyond its limits; the definition in plain torch is computed
then. ``TORCHMCL_PURE=1`` leaves all slots empty.
"""

import functools
import importlib
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "active_kernels",
    "broadcast_shapes",
    "count_debug_checks",
    "debug_checks_enabled",
    "faster",
    "full_precision",
    "has_triton",
    "in_forward_mode",
    "is_plain_eager",
    "may_work_in_place",
    "runs_triton",
    "without_autocast",
]

# A module with a mapping `SLOTS` and a function `description`.
_KERNELS = "torchmcl_fleet.kernels"

P = ParamSpec("P")
R = TypeVar("R")
_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


def faster(slot: str, *arguments: Any) -> Any:
    """Call the function in a slot.

    Args:
        slot: Name of the slot.
        *arguments: Arguments of the definition.

    Returns:
        Result of the function; `NotImplemented` if the slot is empty, if the function does not support the arguments,
        and inside of `torch.compile` and transforms, which follow the definition.
    """
    if not is_plain_eager():
        return NotImplemented
    function = _slots().get(slot)
    return NotImplemented if function is None else function(*arguments)


def active_kernels() -> str:
    """Describe the functions in the slots, for bug reports."""
    return importlib.import_module(_KERNELS).description() if _slots() else "none: plain torch"


@functools.cache
def _slots() -> Mapping[str, Callable[..., Any]]:
    """Import the kernels on first use. A broken extension is reported once, and plain torch computes everything."""
    empty: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    if os.environ.get("TORCHMCL_PURE") == "1" or importlib.util.find_spec(_KERNELS.partition(".")[0]) is None:
        return empty
    try:
        slots: Mapping[str, Callable[..., Any]] = importlib.import_module(_KERNELS).SLOTS
    except (ImportError, OSError) as error:
        message = f"torchmcl computes in plain torch, because {_KERNELS} cannot be imported: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return empty
    return slots


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def runs_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels can run on the device of a tensor in the current mode."""
    return tensor.is_cuda and is_plain_eager() and has_triton()


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """Return the broadcast shape, like `torch.broadcast_shapes`, whose first call imports sympy for half a second.

    Raises:
        RuntimeError: For shapes that do not broadcast, like the original.

    Example:
        >>> broadcast_shapes(torch.Size([3, 1]), torch.Size([2]), torch.Size([]))
        torch.Size([3, 2])
    """
    whole = [1] * max(map(len, shapes))
    for shape in shapes:
        for place, size in enumerate(shape, start=len(whole) - len(shape)):
            if size != 1:
                if whole[place] not in (1, size):
                    raise RuntimeError(f"the shapes {', '.join(str(tuple(each)) for each in shapes)} do not broadcast")
                whole[place] = size
    return torch.Size(whole)


def is_plain_eager() -> bool:
    """Whether operations run in plain eager mode.

    Not inside `torch.compile`, transforms of `torch.func`, forward mode and `torch.jit.trace`, which would record
    results of compiled loops as constants.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is active (`torch.autograd.forward_ad`, `torch.func.jacfwd`).

    Forward mode supports only plain operations, neither `out=` nor fused kernels. Through an `autograd.Function`, even
    one with a `jvp`, forward mode over forward mode silently gives 0.
    """
    return forward_ad._current_level >= 0


def may_work_in_place(*gradients: Tensor | None) -> bool:
    """Whether a backward pass with these incoming gradients may overwrite its intermediate results.

    Not if it is differentiated, compiled (the compiler fuses operations anyway) or under `torch.vmap`, where a shared
    tensor cannot contain values of one sample. `is_grads_batched` gives batched gradients outside of `torch.vmap`.
    """
    if torch.is_grad_enabled() or not is_plain_eager():
        return False
    return not any(each is not None and torch._C._functorch.is_legacy_batchedtensor(each) for each in gradients)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context with autocast disabled; an empty one for the meta device, which has no autocast."""
    return nullcontext() if tensor.is_meta else torch.autocast(tensor.device.type, enabled=False)


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose products must not be rounded to half precision by autocast, on any device."""

    @functools.wraps(function)
    def precise(*args: P.args, **kwargs: P.kwargs) -> R:
        for device in _AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return precise(*args, **kwargs)
        return function(*args, **kwargs)

    return precise


# Number of open `debug_checks` in all threads: a module variable, so that torch.compile can guard on it.
_n_debug_checks = 0
_counting = threading.Lock()


def count_debug_checks(change: int) -> None:
    """Change the number of open contexts; contexts of different threads may end in any order."""
    global _n_debug_checks
    with _counting:
        _n_debug_checks += change


def debug_checks_enabled(*, always: bool = False) -> bool:
    """Whether to check the values of tensors: only if requested, and only in modes that allow reading them."""
    return (always or _n_debug_checks > 0) and is_plain_eager()
