"""The conformal quantile of scores with weights and groups.

Rows with weights stand for a population in which each is drawn in proportion to its weight. There the quantile is that
of the weighted scores, with the weight of the fresh row put at infinity. That weight is not known; a row drawn from the
weighted population weighs sum(w^2) / sum(w) on average, which is what is taken. In units of it the calibration rows
weigh sum(w)^2 / sum(w^2) together, Kish's effective number of rows, and the fresh row 1. Where rows belong to groups,
w are the weights of the groups: rows of a group are not independent, and a fresh row comes from a group of its own.

Reference:
    Tibshirani, Foygel Barber, Candes, Ramdas: Conformal prediction under covariate shift, 2019, Eq. (7).
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["effective_counts", "quantile", "rows_needed"]


def effective_counts(weights: NDArray[np.float64], units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weights [rows] in units of the mean weight of a new row; their sum is the effective number.

    Args:
        weights: [rows]
        units: [rows], the group that each row belongs to.
    """
    _, unit = np.unique(units, return_inverse=True)
    sums = np.bincount(unit.ravel(), weights)
    return weights * (sums.sum() / (sums @ sums)) if len(sums) else weights


def quantile(scores: NDArray[np.float64], counts: NDArray[np.float64], alpha: float) -> float:
    """Return the conformal quantile; infinite if there are too few calibration rows for `alpha`.

    Args:
        scores: [rows]
        counts: [rows], how much each row counts beside a fresh row, which counts 1.
        alpha: the share of rows that may be missed.
    """
    if len(scores) == 0:
        return math.inf
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(counts[order])
    rank = (1 - alpha) * (reached[-1] + 1)
    place = int(np.searchsorted(reached, rank - 1e-9))
    return math.inf if place >= len(order) else float(scores[order[place]])


def rows_needed(alpha: float) -> int:
    """Return the smallest number of calibration rows with a finite quantile.

    Example:
        >>> rows_needed(0.1), rows_needed(0.05)
        (9, 19)
    """
    return math.ceil((1 - alpha) / alpha - 1e-9)
