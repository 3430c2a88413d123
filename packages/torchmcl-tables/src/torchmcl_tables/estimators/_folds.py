"""Rows that each network of a classifier holds out: other ones for each, so that all rows train and all select."""

import math

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.estimators._rows import Rows

__all__ = ["dealt_folds"]

# More rows than these settle nothing further.
_MAX_HELD_OUT = 10_000


def dealt_folds(rows: Rows, n_networks: int, share: float) -> list[tuple[Rows, Rows]]:
    """Return for each network the rows to train on and those that it holds out.

    Units (rows that belong together) are dealt in turn, class by class, so that each fold has its share of each class.
    Networks beyond the number of folds begin with the first fold again.

    Args:
        rows: in the order of a hash, with class ids as targets.
        n_networks: how many networks there are.
        share: of the units that each holds out, rounded to 1/2, 1/3, 1/4 ...; 0 for none.
    """
    if share == 0:
        return [(rows, rows.head(0))] * n_networks
    _, first, unit = np.unique(rows.units, return_index=True, return_inverse=True)
    n_units = len(first)
    if n_units < 2:
        return [(rows, rows.head(0))] * n_networks
    n_folds = min(max(2, round(1 / share), math.ceil(n_units / _MAX_HELD_OUT)), n_units)
    order = np.lexsort((first, rows.targets[first]))
    fold = np.empty(n_units, dtype=np.int64)
    fold[order] = np.arange(n_units) % n_folds
    fold_of_row: NDArray[np.int64] = fold[unit.ravel()]
    folds = [fold_of_row == place for place in range(min(n_networks, n_folds))]
    dealt = [(rows.take(~held), rows.take(held)) for held in folds]
    return [dealt[place % len(dealt)] for place in range(n_networks)]
