"""Reduction of many hypotheses, of one or several networks, to a few with a low expected cost."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_positive_int
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.dispatch import full_precision
from torchmcl.postprocess import _search as search
from torchmcl.postprocess._inputs import (
    CostFn,
    Scores,
    WeightedHypotheses,
    as_tensor,
    finite_tensor,
    logits_of,
    pair_cost,
    scored,
)
from torchmcl.postprocess._search import ExpectedCost, Geometry, ReductionObjective
from torchmcl.scoring import SigmoidScores
from torchmcl.types import Distributions, Predictions, check_predictions

# Elements of a tensor [rows, hypotheses, hypotheses] processed at a time: they fit into the cache of a CPU, and keep a
# GPU busy without filling its memory.
_NUMBERS_AT_ONCE = {"cpu": 4_000_000, "cuda": 200_000_000}


@full_precision
def reduce(
    predictions: Predictions | Distributions,
    k: int,
    *,
    cost_fn: CostFn = pairwise_sq_euclidean,
    moved: bool = True,
    objective: ReductionObjective | None = None,
    scores: Scores | None = None,
) -> Predictions:
    """Return k hypotheses with a low expected loss if the truth is drawn from the given ones by their scores.

    A small search is exhaustive: up to 512 subsets to choose from, or all groupings of up to 8 hypotheses. The loss
    is then optimal for subsets, and for groups under `ExpectedCost` of a squared cost, whose best center is the mean.
    Otherwise hypotheses are selected greedily; without `moved` they are then swapped for others as long as the loss
    falls, with `moved` they go to the centers of their groups by Lloyd's algorithm. No random numbers are used, and
    rows are independent of each other.

    Args:
        predictions: hypotheses [rows, hypotheses, ...] and scores; equal weights without scores.
        k: the number of hypotheses to keep.
        cost_fn: any `pairwise_*` function that takes hypotheses for targets. For costs of vectors, the
            axes of a hypothesis are flattened.
        moved: whether hypotheses may move, as in k-means; otherwise k of those given are kept unchanged, as in
            k-medoids. They move to means for squared costs, to geometric medians for distances, and for other costs to
            means if that lowers the loss.
        objective: `ExpectedCost()` by default, or `MissRate(threshold)`.
        scores: how score logits are read, `SigmoidScores()` by default, or probabilities [rows, hypotheses].

    Returns:
        Predictions with hypotheses [rows, k, ...], the most likely first. The probability of each is the sum over the
        hypotheses nearest to it; score logits are of the same kind as the given ones: for a sigmoid by default, and
        log-probabilities for `SoftmaxScores()`.

    Raises:
        ValueError: if there are fewer than k hypotheses, for NaN, or probabilities that do not sum to 1.

    Example:
        >>> given = Predictions(torch.tensor([[[0.0], [1.0], [10.0]]]), torch.tensor([[0.0, 0.0, 0.0]]))
        >>> few = reduce(given, 2)
        >>> few.hypotheses.flatten(), few.score_logits.sigmoid().flatten()
        (tensor([ 0.5000, 10.0000]), tensor([0.6667, 0.3333]))
        >>> reduce(given, 2, moved=False).hypotheses.flatten()
        tensor([ 0., 10.])
    """
    check_positive_int("reduce", "k", k)
    if not isinstance(moved, bool):
        raise TypeError(bad_value("reduce", "moved", "be True or False", repr(moved)))
    objective = _objective("reduce", objective)
    every = scored("reduce", predictions, scores)
    scores = SigmoidScores() if scores is None else scores
    n = every.hypotheses.shape[1]
    if k > n:
        rule = f"be at most the number of hypotheses, {n}"
        raise ValueError(bad_value("reduce", "k", rule, k, "`concatenate` makes one set of several networks."))
    pair_cost("reduce", cost_fn, every.hypotheses[:1], every.hypotheses[:1])  # raises an error for an unsuitable cost
    return _sorted(*solved(every, k, cost_fn, objective, moved), scores)


def solved(
    every: WeightedHypotheses, k: int, cost_fn: CostFn, objective: ReductionObjective, moved: bool
) -> tuple[Tensor, Tensor]:
    """Return k hypotheses [rows, k, *event] with a low expected loss, and the probability of each [rows, k]."""
    n = every.hypotheses.shape[1]
    at_once = max(_NUMBERS_AT_ONCE.get(every.hypotheses.device.type, 2_000_000) // (n * n), 1)
    parts = []
    for hypotheses, weights in zip(*(part.split(at_once) for part in every[:2]), strict=True):
        geometry = Geometry(hypotheses, weights, cost_fn, objective)
        centres = _moved(geometry, k) if moved else _chosen(geometry, k)
        parts.append((centres, _masses(geometry, centres)))
    hypotheses, masses = (torch.cat(part) for part in zip(*parts, strict=True))
    return hypotheses, masses


def _chosen(geometry: Geometry, k: int) -> Tensor:
    """Return k of the hypotheses."""
    loss = geometry.objective(geometry.cost(geometry.hypotheses))
    if math.comb(loss.shape[1], k) <= search.FEW_SUBSETS:
        index = search.best_subset(loss, geometry.weights, k)
    else:
        index = search.chosen(loss, geometry.weights, k, exchanged=True)
    return search.take(geometry.hypotheses, index)


def _moved(geometry: Geometry, k: int) -> Tensor:
    """Return k centers of groups of the hypotheses."""
    if geometry.hypotheses.shape[1] <= search.FEW_HYPOTHESES:
        return search.best_groups(geometry, k)
    loss = geometry.objective(geometry.cost(geometry.hypotheses))
    chosen = search.chosen(loss, geometry.weights, k, exchanged=False)
    return search.lloyd(geometry, search.take(geometry.hypotheses, chosen))


def _masses(geometry: Geometry, centres: Tensor) -> Tensor:
    """Return the total probability of the hypotheses nearest to each center."""
    owner = geometry.cost(centres).min(dim=1).indices  # several times faster than argmin on CPUs
    return centres.new_zeros(centres.shape[:2]).scatter_add_(1, owner, geometry.weights)


def _sorted(centres: Tensor, masses: Tensor, scores: Scores) -> Predictions:
    """Return centers, the most likely first, with score logits of the same kind as the given ones."""
    order = masses.argsort(dim=-1, descending=True, stable=True)
    return Predictions(search.take(centres, order), logits_of(masses.gather(1, order), scores))


def expected_cost(
    few: Predictions,
    predictions: Predictions | Distributions,
    *,
    cost_fn: CostFn = pairwise_sq_euclidean,
    objective: ReductionObjective | None = None,
    scores: Scores | None = None,
) -> Tensor:
    """Return the expected loss of the nearest of a few hypotheses if the truth is drawn from many, [rows].

    Args:
        few: hypotheses [rows, k, ...]; their scores are ignored.
        predictions: hypotheses [rows, hypotheses, ...] and scores.
        cost_fn: any `pairwise_*` function that takes hypotheses for targets.
        objective: `ExpectedCost()` by default, or `MissRate(threshold)`.
        scores: how score logits are read, `SigmoidScores()` by default, or probabilities [rows, hypotheses].

    Example:
        >>> many = Predictions(torch.tensor([[[0.0], [1.0], [10.0]]]))
        >>> expected_cost(Predictions(torch.tensor([[[0.0], [10.0]]])), many)
        tensor([0.3333])
    """
    owner = "expected_cost"
    loss = _objective(owner, objective)
    every = scored(owner, predictions, scores)
    check_predictions(owner, "few", few)
    centres = finite_tensor(owner, "few.hypotheses", few.hypotheses).to(every.hypotheses)
    rows, _, *event = every.hypotheses.shape
    if centres.ndim != len(event) + 2 or centres.shape[1] < 1 or (len(centres), *centres.shape[2:]) != (rows, *event):
        rule = f"have shape [{rows}, k, ...] with k >= 1 and events {tuple(event)}, as `predictions`"
        raise ValueError(bad_value(owner, "few.hypotheses", rule, tuple(centres.shape)))
    cost = pair_cost(owner, cost_fn, centres, every.hypotheses).amin(dim=-1)
    return (loss(cost) * every.probabilities).sum(dim=-1)


def _objective(owner: str, objective: Any) -> ReductionObjective:
    if objective is None:
        return ExpectedCost()
    if not isinstance(objective, ReductionObjective):
        rule = "be a ReductionObjective"
        raise TypeError(bad_value(owner, "objective", rule, repr(objective), "MissRate(2.0) for example."))
    return objective


def concatenate(
    predictions: Sequence[Predictions | Distributions],
    *,
    weights: Sequence[float] | None = None,
    scores: Scores | None = None,
) -> Predictions:
    """Return the hypotheses of several networks as one set, with scores that sum to 1.

    Args:
        predictions: of each network, for the same rows; the numbers of hypotheses may differ.
        weights: of the networks, >= 0; equal by default.
        scores: how score logits are read, and how those returned are to be read; `SigmoidScores()` by default.

    Raises:
        ValueError: without predictions, for different rows or event shapes, or for invalid weights.

    Example:
        >>> one = Predictions(torch.zeros(1, 2, 1), torch.tensor([[5.0, 5.0]]))
        >>> two = Predictions(torch.ones(1, 1, 1), torch.tensor([[-3.0]]))
        >>> concatenate([one, two]).score_logits.sigmoid()
        tensor([[0.2500, 0.2500, 0.5000]])
    """
    owner = "concatenate"
    if isinstance(predictions, (Predictions, Distributions)):
        rule = "be a sequence of Predictions, one for each network"
        raise TypeError(bad_value(owner, "predictions", rule, type(predictions).__name__))
    sets = [scored(owner, one, scores) for one in predictions]
    scores = SigmoidScores() if scores is None else scores
    if not sets:
        raise ValueError(bad_value(owner, "predictions", "hold at least one network's", "none"))
    shares = torch.ones(len(sets), dtype=torch.float64)
    if weights is not None:
        shares = finite_tensor(owner, "weights", as_tensor(owner, "weights", weights).double())
    if shares.shape != (len(sets),) or (shares < 0).any() or not shares.sum() > 0:
        rule = f"be {len(sets)} numbers >= 0, not all 0"
        raise ValueError(bad_value(owner, "weights", rule, weights))
    first = sets[0].hypotheses
    for one in sets[1:]:
        if one.hypotheses.shape[0] != first.shape[0] or one.hypotheses.shape[2:] != first.shape[2:]:
            rule = f"have the same rows and shapes of events, {tuple(first.shape)} except for the second axis"
            raise ValueError(bad_value(owner, "predictions", rule, tuple(one.hypotheses.shape)))
    shares = shares / shares.sum()
    probabilities = [share * one.probabilities for share, one in zip(shares.tolist(), sets, strict=True)]
    return Predictions(
        torch.cat([one.hypotheses for one in sets], dim=1), logits_of(torch.cat(probabilities, dim=1), scores)
    )
