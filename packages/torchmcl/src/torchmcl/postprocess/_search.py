"""The search for hypotheses to keep, or groups to merge: exhaustive for few candidates, otherwise greedy.

A problem consists of an objective, candidate centers with their losses, and the best centers of weighted groups.
"""

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import check_non_negative
from torchmcl.costs.declared import Norm, declaration
from torchmcl.costs.distances import wide_dtype
from torchmcl.postprocess._inputs import CostFn, pair_cost


@dataclass(frozen=True)
class ReductionObjective(ABC):
    """The loss as a function of the cost of the nearest hypothesis."""

    @abstractmethod
    def __call__(self, cost: Tensor) -> Tensor:
        """Return the loss at each cost; it is non-decreasing."""


@dataclass(frozen=True)
class ExpectedCost(ReductionObjective):
    """The cost itself: the expected distortion.

    Example:
        >>> import torch
        >>> ExpectedCost()(torch.tensor([0.5, 3.0]))
        tensor([0.5000, 3.0000])
    """

    def __call__(self, cost: Tensor) -> Tensor:
        """Return the cost."""
        return cost


@dataclass(frozen=True)
class MissRate(ReductionObjective):
    """1 for costs above a threshold: the expected miss rate.

    Args:
        threshold: >= 0, in the units of the cost; a cost equal to it is not a miss.

    Example:
        >>> import torch
        >>> MissRate(threshold=2.0)(torch.tensor([0.5, 3.0]))
        tensor([0., 1.])
    """

    threshold: float

    def __post_init__(self) -> None:
        """Check the field."""
        check_non_negative("MissRate", "threshold", self.threshold)

    def __call__(self, cost: Tensor) -> Tensor:
        """Return 1 for each miss."""
        return (cost > self.threshold).to(cost.dtype)


def squared_distance(cost_fn: CostFn) -> Norm | None:
    """Return the formula of a cost if it is a multiple of the squared Euclidean distance, otherwise None."""
    formula = declaration(cost_fn).formula
    return formula if isinstance(formula, Norm) and formula.is_squared_distance else None


class Geometry(NamedTuple):
    """A search for a few centers with the smallest expected loss.

    Attributes:
        hypotheses: [rows, hypotheses, *event]
        weights: [rows, hypotheses], summing to 1
        cost_fn: of pairs.
        objective: of costs.
    """

    hypotheses: Tensor
    weights: Tensor
    cost_fn: CostFn
    objective: ReductionObjective

    def rows(self, chosen: Tensor) -> "Geometry":
        """Return the problem restricted to the given rows."""
        return self._replace(hypotheses=self.hypotheses[chosen], weights=self.weights[chosen])

    def cost(self, centres: Tensor) -> Tensor:
        """Return the cost [rows, centers, hypotheses] of each center for each hypothesis."""
        squares = squared_distance(self.cost_fn)
        if squares is None or self.hypotheses.is_cuda:
            return pair_cost("reduce", self.cost_fn, centres, self.hypotheses).mT
        # The same differences without a loop over the coordinates, which is slow on CPUs for many pairs.
        cost = torch.cdist(centres.flatten(2), self.hypotheses.flatten(2), compute_mode="donot_use_mm_for_euclid_dist")
        cost = cost.square_()
        return cost.div_(self.hypotheses.shape[2]) if squares.mean_over_steps else cost

    def centres(self, shares: Tensor, before: Tensor) -> Tensor:
        """Return the best center of each group, [rows, groups, *event]; for an empty group the previous center.

        Args:
            shares: [rows, groups, hypotheses], the weight of each hypothesis in each group.
            before: [rows, groups, *event]
        """
        event = self.hypotheses.shape[2:]
        wide = shares.to(wide_dtype(shares))  # far from 0, sums in single precision lose the differences
        mass = wide.sum(dim=-1, keepdim=True)
        means = torch.bmm(wide, self.hypotheses.flatten(2).to(wide)) / mass.clamp_min(1e-30)
        means = torch.where(mass > 0, means, before.flatten(2)).to(self.hypotheses).unflatten(-1, event)
        centre = declaration(self.cost_fn).centre
        if centre is None or centre.from_means is None or not isinstance(self.objective, ExpectedCost):
            return means
        return centre.from_means(self.hypotheses, shares, means)

    @property
    def means_are_best(self) -> bool:
        """Whether the mean of a group is its best center, with the lowest expected loss."""
        centre = declaration(self.cost_fn).centre
        return centre is not None and centre.from_means is None and isinstance(self.objective, ExpectedCost)


# All subsets are tried up to this many of them, all groupings up to this many hypotheses.
FEW_SUBSETS = 512
FEW_HYPOTHESES = 8
LLOYD_ROUNDS = 30


def take(values: Tensor, index: Tensor) -> Tensor:
    """Return values [rows, n, ...] at index [rows, k]; copies of entire rows are faster than a gather of numbers."""
    rows, n = values.shape[:2]
    offsets = torch.arange(0, rows * n, n, device=index.device).unsqueeze(-1)
    flat = values.reshape(rows * n, *values.shape[2:])
    return flat.index_select(0, (index + offsets).flatten()).view(*index.shape, *values.shape[2:])


def best_subset(loss: Tensor, weights: Tensor, k: int) -> Tensor:
    """Return the k candidates with the lowest expected loss, [rows, k], by exhaustive search.

    Args:
        loss: [rows, candidates, hypotheses]
        weights: [rows, hypotheses]
        k: how many.
    """
    n = loss.shape[1]
    subsets = torch.tensor(list(itertools.combinations(range(n), k)), device=loss.device)
    nearest = loss[:, subsets[:, 0]]
    for column in range(1, k):
        nearest = torch.minimum(nearest, loss[:, subsets[:, column]])  # [rows, subsets, hypotheses]
    return subsets[torch.bmm(nearest, weights.unsqueeze(-1)).squeeze(-1).argmin(dim=-1)]


def chosen(loss: Tensor, weights: Tensor, k: int, *, exchanged: bool) -> Tensor:
    """Return k candidates [rows, k] with a low expected loss, by greedy selection and optional swaps.

    Args:
        loss: [rows, candidates, hypotheses], as many candidates as hypotheses.
        weights: [rows, hypotheses]
        k: how many.
        exchanged: whether to improve the selection by swaps.
    """
    picks = chosen_greedily(loss, weights, k)
    return swapped(loss, weights, picks) if exchanged else picks


def chosen_greedily(loss: Tensor, weights: Tensor, k: int) -> Tensor:
    """Return k candidates [rows, k], selected greedily by the largest reduction of the expected loss."""
    column = weights.unsqueeze(-1)
    best = torch.bmm(loss, column).squeeze(-1).argmin(dim=-1, keepdim=True)
    picks, nearest = [best], take(loss, best)  # [rows, 1, hypotheses]
    taken = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, best, True)
    for _ in range(k - 1):
        gains = torch.bmm((nearest - loss).clamp_(min=0), column).squeeze(-1)
        best = gains.masked_fill_(taken, -1.0).argmax(dim=-1, keepdim=True)  # below every gain: none is selected twice
        nearest = torch.minimum(nearest, take(loss, best))
        taken.scatter_(1, best, True)
        picks.append(best)
    return torch.cat(picks, dim=-1)


def swapped(loss: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Return candidates [rows, k] after swaps that lower the expected loss, until none does or a limit is reached.

    Reference:
        Schubert, Rousseeuw: Fast and eager k-medoids clustering, 2021; the change of each swap is computed from
        the nearest and the second nearest.
    """
    chosen = chosen.clone()
    active = torch.arange(len(chosen), device=chosen.device)
    for _ in range(2 * chosen.shape[1]):
        if not len(active):
            break
        change = _changes(loss[active], weights[active], chosen[active])  # [rows, candidates, k]
        lowest, place = change.flatten(1).min(dim=-1)
        present = (take(loss[active], chosen[active]).amin(dim=1) * weights[active]).sum(dim=-1)
        better = lowest < -16 * torch.finfo(loss.dtype).eps * present  # more than a rounding error
        active, place = active[better], place[better]
        k = chosen.shape[1]
        chosen[active, place % k] = place // k
    return chosen


def _changes(loss: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Return the change in the expected loss if a candidate replaces a chosen one, [rows, n, k]."""
    own = take(loss, chosen)  # [rows, k, hypotheses]
    if own.shape[1] > 1:
        near, places = own.topk(2, dim=1, largest=False)
        first, second = near[:, :1], near[:, 1:]
        owner = places[:, 0]
    else:
        first, second, owner = own, torch.full_like(own, math.inf), torch.zeros_like(own[:, 0], dtype=torch.long)
    closer = torch.minimum(loss, first)
    weight = weights.unsqueeze(1)
    gained = ((closer - first) * weight).sum(dim=-1, keepdim=True)
    lost = (torch.minimum(loss, second) - closer) * weight  # where the nearest candidate of a hypothesis is removed
    member = torch.nn.functional.one_hot(owner, own.shape[1]).to(loss.dtype)  # [rows, hypotheses, k]
    return gained + torch.bmm(lost, member)


def best_groups(geometry: Geometry, k: int) -> Tensor:
    """Return the centers [rows, k, *event] of the grouping with the lowest expected loss, by exhaustive search."""
    n = geometry.hypotheses.shape[1]
    members, groupings = (table.to(geometry.hypotheses.device) for table in _groupings(n, k))
    shares = members.to(geometry.weights) * geometry.weights.unsqueeze(1)  # [rows, subsets, hypotheses]
    before = geometry.hypotheses[:, members.to(torch.uint8).argmax(dim=-1)]
    centres = geometry.centres(shares, before)
    losses = (geometry.objective(geometry.cost(centres)) * shares).sum(dim=-1)
    if not geometry.means_are_best:  # a member of the group may be better than the computed center
        own = geometry.objective(geometry.cost(geometry.hypotheses))  # [rows, hypotheses, hypotheses]
        medoid, place = torch.bmm(shares, own.mT).min(dim=-1)
        better = (medoid < losses).view(*losses.shape, *[1] * (centres.ndim - 2))
        centres = torch.where(better, take(geometry.hypotheses, place), centres)
        losses = torch.minimum(losses, medoid)
    totals = losses[:, groupings].sum(dim=-1)  # [rows, groupings]
    return take(centres, groupings[totals.argmin(dim=-1)])


@cache
def _groupings(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the hypotheses of each subset, [subsets, n], and the subsets of every grouping, [groupings, k]."""
    members = torch.tensor([[bool(subset >> i & 1) for i in range(n)] for subset in range(1, 2**n)])
    groupings: list[list[int]] = []

    def extend(item: int, groups: list[int]) -> None:
        if len(groups) + n - item < k:
            return
        if item == n:
            groupings.append([group - 1 for group in groups])
            return
        for index in range(len(groups)):
            extend(item + 1, [*groups[:index], groups[index] | 1 << item, *groups[index + 1 :]])
        if len(groups) < k:
            extend(item + 1, [*groups, 1 << item])

    extend(0, [])
    return members, torch.tensor(groupings)


def lloyd(geometry: Geometry, centres: Tensor) -> Tensor:
    """Return centers [rows, k, *event] after Lloyd's algorithm, each row until convergence."""
    centres = centres.clone()
    active = torch.arange(len(centres), device=centres.device)
    last = torch.full_like(geometry.weights, -1, dtype=torch.long)
    for _ in range(LLOYD_ROUNDS):
        before = centres[active]
        cost = geometry.cost(before)
        owner = cost.min(dim=1).indices
        changed = (owner != last).any(dim=-1)
        if not changed.all():
            if not changed.any():
                break
            active, owner, cost, before = active[changed], owner[changed], cost[changed], before[changed]
            geometry = geometry.rows(changed)
        last = owner
        shares = torch.zeros_like(cost).scatter_(1, owner.unsqueeze(1), geometry.weights.unsqueeze(1))
        moved = geometry.centres(shares, before)
        if not geometry.means_are_best:
            objective = geometry.objective
            old, new = ((objective(c) * shares).sum(dim=-1) for c in (cost, geometry.cost(moved)))
            moved = torch.where((new < old).view(*new.shape, *[1] * (moved.ndim - 2)), moved, before)
        centres[active] = moved
    return centres
