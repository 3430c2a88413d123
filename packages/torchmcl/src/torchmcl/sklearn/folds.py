"""Folds of a classifier: each network holds out other rows, so all rows serve for training and selection."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.fleet import FleetData, MixtureLogLoss, Validation
from torchmcl.sklearn.examples import Examples
from torchmcl.sklearn.rows import Rows

__all__ = ["dealt_folds", "fold_data", "watched_folds"]

# More rows than these add nothing.
_MAX_HELD_OUT = 10_000


def dealt_folds(rows: Rows, n_networks: int, share: float) -> list[tuple[Rows, Rows]]:
    """Return the training rows and the held-out rows of each network.

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


def fold_data(examples: Sequence[Examples]) -> FleetData:
    """Return the rows of each network as the data of a fleet: shorter sets are padded with rows of weight 0."""
    sets = list({id(each): each for each in examples}.values())
    places = {id(each): place for place, each in enumerate(sets)}
    longest = max(len(each.weights) for each in sets)
    padded = [_padded(each, longest) for each in sets]
    data = FleetData.of_sets([(each.inputs, each.targets) for each in padded], [places[id(each)] for each in examples])
    weights = np.stack([each.weights for each in padded])
    if (weights == weights[0, 0]).all():
        return data
    means = np.maximum(weights.mean(axis=1, keepdims=True), 1e-300)
    return data._replace(weights=torch.from_numpy(weights / means).float())


def _padded(examples: Examples, n_rows: int) -> Examples:
    inputs, targets, weights = examples
    n_more = n_rows - len(weights)
    if not n_more:
        return examples
    inputs, targets = (torch.cat([part, part.new_zeros(n_more, *part.shape[1:])]) for part in (inputs, targets))
    return Examples(inputs, targets, np.concatenate([weights, np.zeros(n_more)]))


def watched_folds(examples: Sequence[Examples], *, every: int, patience: int) -> Validation | None:
    """Return the validation by the log-loss of all networks together, each on its own rows; None without rows."""
    if not len(examples[0].weights):
        return None
    rows = fold_data(examples)
    shape = len(examples), rows.inputs.shape[1]
    weights = torch.ones(shape) if rows.weights is None else rows.weights[rows.set_of_model]
    monitor = MixtureLogLoss(weights, together=True)
    return Validation(rows._replace(weights=None), monitor=monitor, every=every, patience=patience)
