"""Reduction to a few hypotheses with a low expected cost: k-medoids by swaps, or k-means by Lloyd's algorithm."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import check_positive_int
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.costs.declared import NormFormula, cost_declaration
from torchmcl.costs.distances import wide_dtype
from torchmcl.dispatch import full_precision
from torchmcl.errors import bad_value
from torchmcl.postprocess.inputs import CostFn, Scores, finite_tensor, pair_cost, weighted_hypotheses
from torchmcl.scoring import ScoreObjective, SigmoidScores
from torchmcl.types import Distributions, Predictions, check_predictions

__all__ = ["expected_cost", "greedy_medoids", "reduce"]

# Entries of a tensor [rows, hypotheses, hypotheses] per chunk: they fit into the cache of a CPU, and keep a GPU busy
# without filling its memory.
_CHUNK = {"cpu": 4_000_000, "cuda": 200_000_000}
_LLOYD_ROUNDS = 30


@full_precision
def reduce(
    predictions: Predictions | Distributions,
    k: int,
    *,
    cost_fn: CostFn = pairwise_sq_euclidean,
    moved: bool = True,
    scores: Scores | None = None,
) -> Predictions:
    """Reduce the hypotheses to k with a low expected cost, for targets sampled from the hypotheses by their scores.

    Hypotheses are selected greedily. With `moved`, they then move to the centers of their groups by Lloyd's algorithm;
    otherwise they are swapped for others while this lowers the expected cost. The reduction is deterministic, and rows
    are independent.

    Args:
        predictions: Hypotheses [rows, hypotheses, ...] and scores; without scores all have the same weight.
        k: Number of hypotheses to keep.
        cost_fn: Any `pairwise_*` function that takes hypotheses for targets. For costs of vectors, the axes of a
            hypothesis are flattened; costs with a parameter `event_dims` receive their number, as in `mcl_step`.
        moved: Whether hypotheses may move, as in k-means; otherwise k of them remain unchanged, as in k-medoids. They
            move to means for squared costs, to geometric medians for distances, and for other costs to means if that
            lowers the cost.
        scores: Objective that the scores were trained with, `SigmoidScores()` by default, or probabilities
            [rows, hypotheses].

    Returns:
        Predictions with hypotheses [rows, k, ...], the most likely first. The probability of each is the sum over the
        hypotheses nearest to it. Their score logits belong to the objective `scores`: log-probabilities for
        `SoftmaxScores()`; for a sigmoid by default and if `scores` are probabilities.

    Raises:
        ValueError: If there are fewer than k hypotheses, or for NaN or probabilities that do not sum to 1.

    Example:
        >>> predictions = Predictions(torch.tensor([[[0.0], [1.0], [10.0]]]), torch.tensor([[0.0, 0.0, 0.0]]))
        >>> few = reduce(predictions, 2)
        >>> few.hypotheses.flatten(), few.score_logits.sigmoid().flatten()
        (tensor([ 0.5000, 10.0000]), tensor([0.6667, 0.3333]))
        >>> reduce(predictions, 2, moved=False).hypotheses.flatten()
        tensor([ 1., 10.])

    References:
        E. Schubert, P. Rousseeuw, *Fast and eager k-medoids clustering*, Information Systems 2021, arXiv:2008.05171.
    """
    check_positive_int("reduce", "k", k)
    hypotheses, weights, _ = weighted_hypotheses("reduce", predictions, scores)
    n = hypotheses.shape[1]
    if k > n:
        raise ValueError(bad_value("reduce", "k", f"be at most the number of hypotheses, {n}", k))
    pair_cost("reduce", cost_fn, hypotheses[:1], hypotheses[:1])  # raises an error for an unsuitable cost
    n_rows = max(_CHUNK.get(hypotheses.device.type, 2_000_000) // (n * n), 1)
    centers, masses = [], []
    for rows in zip(hypotheses.split(n_rows), weights.split(n_rows), strict=True):
        candidates = _Candidates(*rows, cost_fn)
        loss = candidates.cost(candidates.hypotheses)
        medoids = greedy_medoids(loss, candidates.weights, k)
        if not moved:
            medoids = _swapped(loss, candidates.weights, medoids)
        centers.append(_take(candidates.hypotheses, medoids))
        if moved:
            centers[-1] = _lloyd(candidates, centers[-1])
        masses.append(candidates.groups(candidates.cost(centers[-1])).sum(dim=-1))
    probabilities, order = torch.cat(masses).sort(dim=-1, descending=True, stable=True)
    objective = scores if isinstance(scores, ScoreObjective) else SigmoidScores()
    return Predictions(_take(torch.cat(centers), order), objective.logits(probabilities))


def expected_cost(
    few: Predictions,
    predictions: Predictions | Distributions,
    *,
    cost_fn: CostFn = pairwise_sq_euclidean,
    scores: Scores | None = None,
) -> Tensor:
    """Compute the expected cost of the nearest of a few hypotheses, for targets sampled from many hypotheses.

    Args:
        few: Hypotheses, [rows, k, ...]; their scores are ignored.
        predictions: Hypotheses [rows, hypotheses, ...] and scores.
        cost_fn: Any `pairwise_*` function that takes hypotheses for targets.
        scores: Objective that the scores were trained with, `SigmoidScores()` by default, or probabilities
            [rows, hypotheses].

    Returns:
        Expected cost of each row, [rows].

    Example:
        >>> many = Predictions(torch.tensor([[[0.0], [1.0], [10.0]]]))
        >>> expected_cost(Predictions(torch.tensor([[[0.0], [10.0]]])), many)
        tensor([0.3333])
    """
    owner = "expected_cost"
    hypotheses, probabilities, _ = weighted_hypotheses(owner, predictions, scores)
    check_predictions(owner, "few", few)
    centers = finite_tensor(owner, "few.hypotheses", few.hypotheses).to(hypotheses)
    rows, _, *event = hypotheses.shape
    if centers.ndim != len(event) + 2 or centers.shape[1] < 1 or (len(centers), *centers.shape[2:]) != (rows, *event):
        rule = f"have shape [{rows}, k, ...] with k >= 1 and events {tuple(event)}, as `predictions`"
        raise ValueError(bad_value(owner, "few.hypotheses", rule, tuple(centers.shape)))
    return (pair_cost(owner, cost_fn, centers, hypotheses).amin(dim=-1) * probabilities).sum(dim=-1)


def greedy_medoids(loss: Tensor, weights: Tensor, k: int) -> Tensor:
    """Select candidates greedily, each time the candidate that lowers the expected loss most.

    Args:
        loss: Loss [rows, candidates, hypotheses] of each candidate for each hypothesis, as many candidates as
            hypotheses.
        weights: Probabilities of the hypotheses, [rows, hypotheses].
        k: Number of candidates to select.

    Returns:
        Indices of the candidates in the order of selection, [rows, k].

    Example:
        >>> values = torch.tensor([0.0, 1.0, 9.0])
        >>> greedy_medoids((values[:, None] - values).square()[None], torch.tensor([[0.3, 0.5, 0.2]]), 2)
        tensor([[1, 2]])
    """
    column = weights.unsqueeze(-1)
    best = torch.bmm(loss, column).squeeze(-1).argmin(dim=-1, keepdim=True)
    selected, nearest = [best], _take(loss, best)  # [rows, 1, hypotheses]
    taken = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, best, True)
    for _ in range(k - 1):
        gains = torch.bmm((nearest - loss).clamp_(min=0), column).squeeze(-1)
        best = gains.masked_fill_(taken, -1.0).argmax(dim=-1, keepdim=True)  # below every gain: none is selected twice
        nearest = torch.minimum(nearest, _take(loss, best))
        taken.scatter_(1, best, True)
        selected.append(best)
    return torch.cat(selected, dim=-1)


class _Candidates(NamedTuple):
    """Weighted hypotheses, which are candidates for the centers.

    Attributes:
        hypotheses: Hypotheses, [rows, hypotheses, *event].
        weights: Probabilities, [rows, hypotheses], summing to 1.
        cost_fn: Cost of pairs.
    """

    hypotheses: Tensor
    weights: Tensor
    cost_fn: CostFn

    def cost(self, centers: Tensor) -> Tensor:
        """Return the cost of each center for each hypothesis, [rows, centers, hypotheses]."""
        formula = cost_declaration(self.cost_fn).formula
        if self.hypotheses.is_cuda or not isinstance(formula, NormFormula) or not formula.is_squared_distance:
            return pair_cost("reduce", self.cost_fn, centers, self.hypotheses).mT
        # The same differences without a loop over the coordinates, which is slow on CPUs for many pairs.
        cost = torch.cdist(centers.flatten(2), self.hypotheses.flatten(2), compute_mode="donot_use_mm_for_euclid_dist")
        cost = cost.square_()
        return cost.div_(self.hypotheses.shape[2]) if formula.mean_over_steps else cost

    def groups(self, cost: Tensor) -> Tensor:
        """Return the weight of each hypothesis in the group of its nearest center, [rows, centers, hypotheses]."""
        nearest = cost.min(dim=1, keepdim=True).indices  # several times faster than argmin on CPUs
        return torch.zeros_like(cost).scatter_(1, nearest, self.weights.unsqueeze(1))

    def centers(self, groups: Tensor, before: Tensor) -> Tensor:
        """Return the best center of each group, [rows, centers, *event]; an empty group keeps its center."""
        wide = groups.to(wide_dtype(groups))  # far from 0, sums in single precision lose the differences
        mass = wide.sum(dim=-1, keepdim=True)
        means = torch.bmm(wide, self.hypotheses.flatten(2).to(wide)) / mass.clamp_min(1e-30)
        means = torch.where(mass > 0, means, before.flatten(2)).to(self.hypotheses)
        means = means.unflatten(-1, self.hypotheses.shape[2:])
        center = cost_declaration(self.cost_fn).center
        centers = means
        if center is not None:
            if center.from_means is None:
                return means
            centers = center.from_means(self.hypotheses, groups, means)
        old, new = ((self.cost(points) * groups).sum(dim=-1) for points in (before, centers))
        return torch.where((new < old).view(*new.shape, *[1] * (centers.ndim - 2)), centers, before)


def _lloyd(candidates: _Candidates, centers: Tensor) -> Tensor:
    """Return the centers after Lloyd's algorithm, [rows, k, *event]."""
    groups = None
    for _ in range(_LLOYD_ROUNDS):
        before, groups = groups, candidates.groups(candidates.cost(centers))
        if before is not None and torch.equal(before, groups):
            break
        centers = candidates.centers(groups, centers)
    return centers


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Return values [rows, n, ...] at index [rows, k]; copying entire rows is faster than `gather`."""
    rows, n = values.shape[:2]
    offsets = torch.arange(0, rows * n, n, device=index.device).unsqueeze(-1)
    flat = values.reshape(rows * n, *values.shape[2:])
    return flat.index_select(0, (index + offsets).flatten()).view(*index.shape, *values.shape[2:])


def _swapped(loss: Tensor, weights: Tensor, medoids: Tensor) -> Tensor:
    """Return medoids, [rows, k], after swaps that lower the expected loss, up to a maximum number of swaps."""
    medoids = medoids.clone()
    k = medoids.shape[1]
    active = torch.arange(len(medoids), device=medoids.device)
    for _ in range(2 * k):
        if not len(active):
            break
        change = _swap_changes(loss[active], weights[active], medoids[active])  # [rows, candidates, k]
        lowest, place = change.flatten(1).min(dim=-1)
        present = (_take(loss[active], medoids[active]).amin(dim=1) * weights[active]).sum(dim=-1)
        better = lowest < -16 * torch.finfo(loss.dtype).eps * present  # more than a rounding error
        active, place = active[better], place[better]
        medoids[active, place % k] = place // k
    return medoids


def _swap_changes(loss: Tensor, weights: Tensor, medoids: Tensor) -> Tensor:
    """Return the change in the expected loss if a candidate replaces a medoid, [rows, candidates, k]."""
    selected = _take(loss, medoids)  # [rows, k, hypotheses]
    if selected.shape[1] > 1:
        near, places = selected.topk(2, dim=1, largest=False)
        first, second, owner = near[:, :1], near[:, 1:], places[:, 0]
    else:
        first, second, owner = selected, torch.full_like(selected, math.inf), torch.zeros_like(weights).long()
    closer = torch.minimum(loss, first)
    gained = ((closer - first) * weights.unsqueeze(1)).sum(dim=-1, keepdim=True)
    lost = (torch.minimum(loss, second) - closer) * weights.unsqueeze(1)  # where the nearest medoid is removed
    member = torch.nn.functional.one_hot(owner, selected.shape[1]).to(loss.dtype)  # [rows, hypotheses, k]
    return gained + torch.bmm(lost, member)
