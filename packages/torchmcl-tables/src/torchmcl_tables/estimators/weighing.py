"""Fitting of a blend's forest, and of its widths and weights on rows that are held out from all members."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from torchmcl.costs.likelihood import mean_distance
from torchmcl.density import best_points
from torchmcl_tables.estimators.blend import Blend, at_atoms, best_atoms
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.kernels import Kernels, forest_kernels, informed
from torchmcl_tables.estimators.rows import Rows

#: Weight of the CRPS, in standardized units, relative to the likelihood during training.
CRPS_WEIGHT = 3.0
# Candidate widths of the forest's kernels: factors of the spread of the rows of a leaf's parent, and minimum widths.
_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
_FLOORS = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
# Candidate factors of the widths of networks, and a prior towards 1, worth this many pseudo-observations.
_STRETCHES = (0.2, 0.3, 0.42, 0.6, 0.77, 0.88, 1.0, 1.14, 1.3, 1.66, 2.0, 2.5, 3.2, 4.2, 5.5)
_STRETCH_DOUBT = 5.0
# Candidate probabilities to exclude at each end, the default, and a prior towards the default: a factor of e costs as
# much as this many rows.
_TRIMS, _TRIM, _TRIM_DOUBT = (0.0, 0.003, 0.01, 0.03, 0.07, 0.12, 0.2), 0.01, 20.0
# Prior towards equal weights, worth this many rows.
_ROWS_OF_DOUBT = 4.0
# Smaller values of the CRPS or the squared distance, in standardized units, are rounding errors.
_LEAST_CRPS, _LEAST_DISTORTION = 1e-9, 1e-12


def fitted_widths(
    values: NDArray[np.float64],
    spreads: NDArray[np.float64],
    unseen: NDArray[np.bool_],
    targets: Tensor,
    weights: Tensor,
    atoms: Tensor | None = None,
) -> tuple[float, float, Kernels]:
    """Fit factor and floor of the forest's widths by the log score on held-out rows; also return the kernels.

    Args:
        values: Value of each tree, [rows, trees, outputs].
        spreads: Spread of each tree, [rows, trees].
        unseen: Mask of the trees that were not trained on a row, [rows, trees]; only these trees evaluate the row.
        targets: Standardized targets, [rows, outputs].
        weights: Weight of each row, [rows].
        atoms: Standardized values of discrete targets, whose masses are then evaluated.
    """
    judged = np.maximum(unseen, ~unseen.any(axis=1, keepdims=True))  # rows seen by all trees: all evaluate
    probabilities = torch.from_numpy(judged / judged.sum(axis=1, keepdims=True))

    def kernels(factor: float, floor: float) -> Kernels:
        return forest_kernels(values, spreads, factor, floor)._replace(probabilities=probabilities)

    def score(pair: tuple[float, float]) -> float:
        return float((weights * log_density(kernels(*pair), targets, atoms)).sum())

    best = max(((factor, floor) for factor in _FACTORS for floor in _FLOORS), key=score)
    return *best, kernels(*best)


def fitted_stretch(kernels: Kernels, targets: Tensor, weights: Tensor, atoms: Tensor | None = None) -> float:
    """Fit the common factor of all widths by the log score on held-out rows, shrunk towards 1."""
    counts = weights / weights.mean()

    def loss(stretch: float) -> float:
        score = (counts * log_density(kernels.stretched(stretch), targets, atoms)).sum()
        return _STRETCH_DOUBT * math.log(stretch) ** 2 - float(score)

    return min(_STRETCHES, key=loss)


def fitted_trim(
    kernels: Kernels, targets: Tensor, weights: Tensor, n_points: int, atoms: Tensor | None = None
) -> float:
    """Fit the probability to exclude at each end, which minimizes the distortion on held-out rows of one output.

    A kernel far from all others attracts a point even if its probability is small, and small probabilities are hard to
    estimate.

    Args:
        kernels: Kernels of the rows, without the background.
        targets: Standardized targets, [rows, 1].
        weights: Weight of each row, [rows].
        n_points: Number of hypotheses.
        atoms: Standardized values of discrete targets, at which the kernels must be.
    """

    def points_of(trimmed: Kernels) -> Tensor:
        if atoms is None:
            return best_points(trimmed.density(), n_points).points
        return atoms[best_atoms(atoms, trimmed.probabilities, n_points)[0]].unsqueeze(-1)

    def loss(trim: float) -> float:
        points = points_of(kernels.trimmed(trim))
        distortion = (weights * (points - targets.unsqueeze(1)).square().sum(dim=-1).amin(dim=1)).sum() / weights.sum()
        doubt = abs(math.log((trim + _TRIMS[1]) / (_TRIM + _TRIMS[1])))
        return len(targets) * math.log(max(float(distortion), _LEAST_DISTORTION)) + _TRIM_DOUBT * doubt

    return min(_TRIMS, key=loss)


def log_density(kernels: Kernels, targets: Tensor, atoms: Tensor | None = None) -> Tensor:
    """Compute the log density of targets, [rows, outputs]; for discrete targets, kernels are moved to the atoms."""
    kernels = kernels if atoms is None else at_atoms(kernels, atoms)
    z = (targets.unsqueeze(1) - kernels.values) / kernels.widths
    logs = -0.5 * z.square() - kernels.widths.log() - 0.5 * math.log(2 * math.pi)
    return (kernels.probabilities.log() + logs.sum(dim=-1)).logsumexp(dim=-1)


def blended(members: Sequence[Kernels], targets: Tensor, weights: Tensor) -> NDArray[np.float64]:
    """Fit the weights of the members, [members], by likelihood and CRPS on held-out rows.

    The mean log-likelihood and the logarithm of the mean CRPS have equal weights. The CRPS itself is proportional to
    the errors, so the likelihood would dominate for tables that are easy to predict.

    Args:
        members: Kernels of each member for the held-out rows.
        targets: Standardized targets, [rows, outputs].
        weights: Weight of each row, [rows].
    """
    counts = (weights / weights.sum()).numpy()
    logs = torch.stack([log_density(member, targets) for member in members]).numpy()
    near, apart = (part.numpy() for part in _distances(members, targets))
    n_members, doubt = len(members), _ROWS_OF_DOUBT / len(members) / len(targets)
    highest = logs.max(axis=0)
    likely = np.exp(logs - highest)  # relative to the most likely member of each row
    near, apart = near @ counts, apart @ counts

    def loss(logits: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        fitted = np.exp(logits - logits.max())
        fitted /= fitted.sum()
        mixed = fitted @ likely
        crps = max(fitted @ near - 0.5 * fitted @ apart @ fitted, _LEAST_CRPS)
        value = np.log(crps) - counts @ np.log(mixed) - doubt * np.log(fitted).sum()
        slope = (near - apart @ fitted) / crps - (likely / mixed) @ counts - doubt / fitted
        return float(value), fitted * (slope - fitted @ slope)

    logits = minimize(loss, np.zeros(n_members), jac=True, method="L-BFGS-B").x
    fitted = np.exp(logits - logits.max())
    return np.asarray(fitted / fitted.sum())


def _distances(members: Sequence[Kernels], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean distances of samples of each member from the targets, and from samples of every other member.

    Returns:
        Distances from the targets, [members, rows], and between members, [members, members, rows], both summed over
        outputs.
    """
    near = [
        (member.probabilities * mean_distance(targets.unsqueeze(1) - member.values, member.widths).sum(dim=-1)).sum(1)
        for member in members
    ]
    apart = torch.zeros(len(members), len(members), len(targets), dtype=torch.float64)
    for i, one in enumerate(members):
        for j, other in enumerate(members[: i + 1]):
            apart[i, j] = apart[j, i] = _between(one, other)
    return torch.stack(near), apart


def _between(one: Kernels, other: Kernels) -> Tensor:
    """Compute the mean distance between samples of two members, [rows], block by block to save memory."""
    parts = []
    for (a, p, s), (b, q, t) in zip(
        zip(*(x.split(256) for x in one), strict=True), zip(*(x.split(256) for x in other), strict=True), strict=True
    ):
        both = (s.square().unsqueeze(2) + t.square().unsqueeze(1)).sqrt()
        distance = mean_distance(a.unsqueeze(2) - b.unsqueeze(1), both).sum(dim=-1)
        parts.append(torch.einsum("ri,rj,rij->r", p, q, distance))
    return torch.cat(parts)


# Weight of the background if too few rows are held out to fit the weights.
_BACKGROUND_WEIGHT = 0.05
# Maximum number of held-out rows for fitting the weights; with fewer rows than the minimum, weights are equal.
_MAX_JUDGES, _MIN_JUDGES = 2_000, 5


def weighed(blend: Blend, train: Rows, selection: Rows, n_trees: int, seed: int) -> Blend:
    """Add a forest of `n_trees` trees, grown on all rows, to a blend, and fit the widths and weights."""
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
    """Return the weights of `n_informed` equal members and of the background, if there are too few held-out rows."""
    return np.append(np.full(n_informed, (1 - _BACKGROUND_WEIGHT) / n_informed), _BACKGROUND_WEIGHT)


def _targets_and_weights(blend: Blend, judges: Rows) -> tuple[Any, Any]:
    return blend.targets.standardized(judges.targets), torch.from_numpy(judges.weights)


def _stretched(blend: Blend, judges: Rows) -> Blend:
    """Fit a factor for the widths of each kind of network."""
    blend = replace(blend, stretches=None)
    kinds = blend.members(judges.inputs.astype(np.float64))[: len(blend.encoders)]
    known = _targets_and_weights(blend, judges)
    return replace(blend, stretches=np.array([fitted_stretch(kind, *known, blend.atoms) for kind in kinds]))


def _judged(blend: Blend, members: list[Kernels], judges: Rows) -> Blend:
    """Fit the weights and the trim of a blend to held-out rows, from the kernels of its members for these rows."""
    known = _targets_and_weights(blend, judges)
    members = [blend.at_atoms(member) for member in members]
    weights = blended(members, *known)
    blend = replace(blend, weights=weights)
    if blend.targets.n_outputs > 1:
        return blend
    whole = blend.at_atoms(informed(members, weights))
    return replace(blend, trim=fitted_trim(whole, *known, blend.n_points, blend.atoms))


def _with_forest(blend: Blend, train: Rows, judges: Rows, n_trees: int, seed: int) -> tuple[Blend, list[Kernels]]:
    """Add a forest grown on all rows to a blend; also return its kernels for the held-out rows.

    Held-out rows are evaluated only by trees that were not grown on them.
    """
    rows = train.joined(judges)
    inputs = blend.encoders[0].dense(rows.inputs)
    known, together = blend.targets.standardized(rows.targets).numpy(), rows.units if rows.in_groups else None
    forest, seen = Forest.grown(inputs, known, rows.weights, n_trees, seed, together)
    n_members = len(blend.weights) + 1
    blend = replace(blend, forest=forest, weights=np.full(n_members, 1 / n_members))
    if not len(judges):
        return blend, []
    unseen: NDArray[np.bool_] = ~seen[len(train) :]
    predictions = forest.answers(inputs[len(train) :])
    factor, floor, kernels = fitted_widths(*predictions, unseen, *_targets_and_weights(blend, judges), blend.atoms)
    return replace(blend, factor=factor, floor=floor), [kernels]
