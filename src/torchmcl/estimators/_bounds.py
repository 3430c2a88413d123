"""What targets never leave: counts and prices are not negative, a censored value ends where its scale does."""

import numpy as np
from numpy.typing import NDArray

from torchmcl.estimators._inputs import Scaler
from torchmcl.estimators._rows import Rows

__all__ = ["never_left", "still_never_left", "unbounded"]

# An end at which at least this share of the rows lies exactly is the end of the scale, not of the sample.
_PILED_UP = 0.01


def never_left(rows: Rows, scaler: Scaler) -> NDArray[np.float64]:
    """Return the lowest and highest value that each output can take, [2, outputs], in standardised units.

    A target that is never negative cannot become so, and one that is never positive neither. An end at which targets
    pile up is one that they do not leave. Everything else is unbounded.

    Args:
        rows: all of them; copies are one row.
        scaler: of the targets.
    """
    low, high = rows.targets.min(axis=0), rows.targets.max(axis=0)
    lower = np.where(_piled_up(rows, low), low, np.where(low >= 0, 0.0, -np.inf))
    upper = np.where(_piled_up(rows, high), high, np.where(high <= 0, 0.0, np.inf))
    return (np.stack([lower, upper]) - scaler.mean) / scaler.scale


def still_never_left(bounds: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bounds [2, outputs] without those that further targets [rows, outputs] have left.

    Both are in standardised units.
    """
    left = np.stack([(targets < bounds[0]).any(axis=0), (targets > bounds[1]).any(axis=0)])
    return np.where(left, unbounded(bounds.shape[1]), bounds)


def _piled_up(rows: Rows, end: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether several rows, and not too small a share of all, lie exactly at an end, [outputs]."""
    there = rows.targets == end
    share = rows.weights @ there / rows.weights.sum()
    return np.asarray((there.sum(axis=0) >= 2) & (share >= _PILED_UP))


def unbounded(n_outputs: int) -> NDArray[np.float64]:
    """Return bounds that bound nothing, [2, outputs]."""
    return np.stack([np.full(n_outputs, -np.inf), np.full(n_outputs, np.inf)])
