"""The mode in which operations run: eager, compiled, transformed, in forward mode or under autocast."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")
_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """Return the same as `torch.broadcast_shapes`, whose first call takes half a second to import sympy.

    Raises:
        RuntimeError: for shapes that do not broadcast, like the original.

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
    """Return False inside torch.compile, under torch.vmap and other transforms of torch.func, and in forward mode.

    Also inside torch.jit.trace, which would record results of compiled loops as constants.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and not in_forward_mode()
    )


def in_forward_mode() -> bool:
    """Return whether forward-mode differentiation is active (`torch.autograd.forward_ad`, `torch.func.jacfwd`).

    Forward mode supports only plain operations, neither `out=` nor fused kernels. Through an `autograd.Function`, even
    one with a `jvp`, forward mode over forward mode silently gives 0.
    """
    return forward_ad._current_level >= 0


def may_work_in_place(*gradients: Tensor | None) -> bool:
    """Return whether a backward pass may overwrite its own intermediate results, given its incoming gradients.

    Not when it is itself differentiated, compiled (the compiler fuses anyway) or under torch.vmap,
    where a shared tensor cannot take per-sample values. `is_grads_batched` has batched gradients outside of torch.vmap.
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
