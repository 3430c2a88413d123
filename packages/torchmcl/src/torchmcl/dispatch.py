"""Slots for faster functions.

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
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torchmcl._eager import is_plain_eager

__all__ = ["active_kernels", "faster"]

# A module with a mapping `SLOTS` and a function `description`.
_KERNELS = "torchmcl.accel.kernels"


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
