"""What targets never leave: counts and prices are not negative, a censored value ends where its scale does."""

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.estimators._rows import Rows

__all__ = ["never_left", "still_never_left", "unbounded"]

# An end at which at least this share of the rows lies exactly, and so many, is the end of the scale, not of the sample,
# if none of the values beside it, in this share of the rows, is a third as common: values that are rounded repeat, too.
_PILED_UP, _MIN_ROWS, _BESIDE = 0.01, 5, 0.1


def never_left(rows: Rows) -> NDArray[np.float64]:
    """Return the lowest and highest value that each output can take, [2, outputs].

    A target that is never negative cannot become so, and one that is never positive neither. An end at which targets
    pile up is one that they do not leave. Everything else is unbounded.

    Args:
        rows: those that calibrate must not be among them, or sets would hold these more surely than others.
    """
    weights = rows.weights / rows.weights.sum()
    found = []
    for column in rows.targets.T:
        low, high = column.min(), column.max()
        lower = low if _piled_up(column - low, weights) else 0.0 if low >= 0 else -np.inf
        upper = high if _piled_up(high - column, weights) else 0.0 if high <= 0 else np.inf
        found.append((lower, upper))
    return np.array(found, dtype=np.float64).T


def still_never_left(bounds: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bounds [2, outputs] without those that further targets [rows, outputs] have left."""
    left = np.stack([(targets < bounds[0]).any(axis=0), (targets > bounds[1]).any(axis=0)])
    return np.where(left, unbounded(bounds.shape[1]), bounds)


def _piled_up(distances: NDArray[np.float64], weights: NDArray[np.float64]) -> bool:
    """Return whether so many rows lie at an end, by their distance from it, that targets do not leave it."""
    there = distances == 0
    if there.sum() < _MIN_ROWS or weights[there].sum() < _PILED_UP:
        return False
    beside = np.sort(distances[~there])[: max(1, round(_BESIDE * len(distances)))]
    most = np.unique(beside, return_counts=True)[1].max(initial=0)
    return bool(there.sum() >= 3 * most)


def unbounded(n_outputs: int) -> NDArray[np.float64]:
    """Return bounds that bound nothing, [2, outputs]."""
    return np.stack([np.full(n_outputs, -np.inf), np.full(n_outputs, np.inf)])
