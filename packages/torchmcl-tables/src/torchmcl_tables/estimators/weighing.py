"""Widths and weights of a blend, and its forest, from rows held out of all members."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.sklearn.rows import Rows
from torchmcl_tables.estimators.blend import Blend
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.judging import blended, fitted_stretch, fitted_trim, fitted_widths
from torchmcl_tables.estimators.kernels import Kernels
from torchmcl_tables.estimators.members import informed
from torchmcl_tables.estimators.places import dense_inputs

__all__ = ["BACKGROUND_WEIGHT", "reweighed", "weighed"]

#: Of the background where too few rows are held out to choose it.
BACKGROUND_WEIGHT = 0.05
# Held-out rows that settle the weights; with fewer than the second number nothing is known.
_MAX_JUDGES, _MIN_JUDGES = 2_000, 5


def weighed(blend: Blend, train: Rows, selection: Rows, n_trees: int, seed: int) -> Blend:
    """Return a blend with a forest of this many trees, grown on all rows, and with widths and weights."""
    judges = selection.head(_MAX_JUDGES)
    members: list[Kernels] = []
    if len(judges):
        blend = _stretched(blend, judges)
        members = blend.members(judges.inputs.astype(np.float64))
    if n_trees:
        blend, kernels = _with_forest(blend, train, judges, n_trees, seed)
        members[-1:-1] = kernels
    if len(judges) >= _MIN_JUDGES:
        return _judged(blend, members, judges)
    return replace(blend, weights=_equal_weights(len(blend.encoders) + bool(n_trees)))


def _equal_weights(n_informed: int) -> NDArray[np.float64]:
    """Return the weights of so many members and of the background where no rows choose them."""
    return np.append(np.full(n_informed, (1 - BACKGROUND_WEIGHT) / n_informed), BACKGROUND_WEIGHT)


def reweighed(blend: Blend, selection: Rows) -> Blend:
    """Return a blend with widths and weights from other rows; its forest stays."""
    judges = selection.head(_MAX_JUDGES)
    if len(judges) < _MIN_JUDGES:
        return blend
    blend = _stretched(blend, judges)
    return _judged(blend, blend.members(judges.inputs.astype(np.float64)), judges)


def _targets_and_weights(blend: Blend, judges: Rows) -> tuple[Any, Any]:
    return blend.targets.standardised(judges.targets), torch.from_numpy(judges.weights)


def _stretched(blend: Blend, judges: Rows) -> Blend:
    """Return a blend with factors for the widths of each kind of networks."""
    blend = replace(blend, stretches=None)
    kinds = blend.members(judges.inputs.astype(np.float64))[: len(blend.encoders)]
    known = _targets_and_weights(blend, judges)
    return replace(blend, stretches=np.array([fitted_stretch(kind, *known, blend.atoms) for kind in kinds]))


def _judged(blend: Blend, members: list[Kernels], judges: Rows) -> Blend:
    """Return a blend with weights from its members' kernels for the held-out rows, and with a trim."""
    known = _targets_and_weights(blend, judges)
    members = [blend.at_atoms(member) for member in members]
    weights = blended(members, *known)
    blend = replace(blend, weights=weights)
    if blend.targets.n_outputs > 1:
        return blend
    whole = blend.at_atoms(informed(members, weights))
    return replace(blend, trim=fitted_trim(whole, *known, blend.n_points, blend.atoms))


def _with_forest(blend: Blend, train: Rows, judges: Rows, n_trees: int, seed: int) -> tuple[Blend, list[Kernels]]:
    """Return a blend with a forest grown on all rows, and its kernels for the held-out rows.

    These are judged by the trees that have not seen them.
    """
    rows = train.joined(judges)
    inputs = dense_inputs(blend.encoders[0], rows.inputs)
    known, together = blend.targets.standardised(rows.targets).numpy(), rows.units if rows.in_groups else None
    forest, seen = Forest.grown(inputs, known, rows.weights, n_trees, seed, together)
    blend = replace(blend, forest=forest, weights=_equal_weights(len(blend.encoders) + 1))
    if not len(judges):
        return blend, []
    unseen: NDArray[np.bool_] = ~seen[len(train) :]
    answers = forest.answers(inputs[len(train) :])
    factor, floor, kernels = fitted_widths(*answers, unseen, *_targets_and_weights(blend, judges), blend.atoms)
    return replace(blend, factor=factor, floor=floor), [kernels]
