"""Bounds of targets: counts and prices are non-negative, censored values end at their limit."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["bounds_of", "unbounded", "without_crossed"]

# An end at which at least this share of the rows lies exactly, and so many, is the end of the scale, not of the sample,
# if none of the values beside it, in this share of the rows, is a third as common: values that are rounded repeat, too.
_PILED_UP, _MIN_ROWS, _BESIDE = 0.01, 5, 0.1


def bounds_of(targets: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lowest and highest possible value of each output, [2, outputs].

    A target that is never negative is bounded by 0, and so is one that is never positive. An end at which targets pile
    up is a bound. Everything else is unbounded.

    Args:
        targets: [rows, outputs]
        weights: [rows]
    """
    shares = weights / weights.sum()
    found = []
    for column in targets.T:
        low, high = column.min(), column.max()
        lower = low if _piled_up(column - low, shares) else 0.0 if low >= 0 else -np.inf
        upper = high if _piled_up(high - column, shares) else 0.0 if high <= 0 else np.inf
        found.append((lower, upper))
    return np.array(found, dtype=np.float64).T


def without_crossed(bounds: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bounds [2, outputs] without those crossed by further targets [rows, outputs]."""
    crossed = np.stack([(targets < bounds[0]).any(axis=0), (targets > bounds[1]).any(axis=0)])
    return np.where(crossed, unbounded(bounds.shape[1]), bounds)


def _piled_up(distances: NDArray[np.float64], weights: NDArray[np.float64]) -> bool:
    """Return whether an end is a bound, by the distances of the rows from it."""
    there = distances == 0
    if there.sum() < _MIN_ROWS or weights[there].sum() < _PILED_UP:
        return False
    beside = np.sort(distances[~there])[: max(1, round(_BESIDE * len(distances)))]
    most = np.unique(beside, return_counts=True)[1].max(initial=0)
    return bool(there.sum() >= 3 * most)


def unbounded(n_outputs: int) -> NDArray[np.float64]:
    """Return infinite bounds, [2, outputs]."""
    return np.stack([np.full(n_outputs, -np.inf), np.full(n_outputs, np.inf)])
