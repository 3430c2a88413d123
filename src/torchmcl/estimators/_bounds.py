"""What targets never leave: counts and prices are not negative, a censored value ends where its scale does."""

import numpy as np
from numpy.typing import NDArray

from torchmcl.estimators._inputs import Scaler

__all__ = ["never_left", "unbounded"]

# An end at which at least this share of the rows lies exactly is the end of the scale, not of the sample.
_PILED_UP = 0.01


def never_left(targets: NDArray[np.float64], scaler: Scaler) -> NDArray[np.float64]:
    """Return the lowest and highest value that each output can take, [2, outputs], in standardised units.

    A target that is never negative cannot become so, and one that is never positive neither. An end at which targets
    pile up is one that they do not leave. Everything else is unbounded.

    Args:
        targets: [rows, outputs], of all rows.
        scaler: of the targets.
    """
    low, high = targets.min(axis=0), targets.max(axis=0)
    needed = np.maximum(2, _PILED_UP * len(targets))
    lower = np.where((targets == low).sum(axis=0) >= needed, low, np.where(low >= 0, 0.0, -np.inf))
    upper = np.where((targets == high).sum(axis=0) >= needed, high, np.where(high <= 0, 0.0, np.inf))
    return (np.stack([lower, upper]) - scaler.mean) / scaler.scale


def unbounded(n_outputs: int) -> NDArray[np.float64]:
    """Return bounds that bound nothing, [2, outputs]."""
    return np.stack([np.full(n_outputs, -np.inf), np.full(n_outputs, np.inf)])
