"""Hypotheses of some rows, their losses to candidate centres, and the centres of weighted groups of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.after._inputs import CostFn, Scored, pair_cost
from torchmcl.after.objectives import ExpectedCost, ReductionObjective
from torchmcl.costs import (
    pairwise_ade,
    pairwise_euclidean,
    pairwise_fde,
    pairwise_sq_ade,
    pairwise_sq_euclidean,
    pairwise_sq_fde,
)

__all__ = ["EUCLIDEAN", "Geometry", "geometry_of"]

# Steps of Weiszfeld's algorithm; each group has several rounds of Lloyd's around it.
_WEISZFELD_STEPS = 8
_OWNER = "reduce"
# The squared distance over all axes, or a share of it.
EUCLIDEAN = (pairwise_sq_euclidean, pairwise_sq_ade)


class Geometry(NamedTuple):
    """A problem: which few centres have the smallest expected loss.

    Attributes:
        hypotheses: [rows, hypotheses, *event]
        weights: [rows, hypotheses], summing to 1
        transposed: [rows, dim, hypotheses] and contiguous where squared distances come from one product, else None.
            A matrix product of many small matrices is several times as fast when both are contiguous.
        cost_fn: of pairs.
        objective: of costs.
    """

    hypotheses: Tensor
    weights: Tensor
    transposed: Tensor | None
    cost_fn: CostFn
    objective: ReductionObjective

    def rows(self, chosen: Tensor) -> "Geometry":
        """Return the problem of some rows."""
        transposed = None if self.transposed is None else self.transposed[chosen]
        return self._replace(hypotheses=self.hypotheses[chosen], weights=self.weights[chosen], transposed=transposed)

    def cost(self, centres: Tensor) -> Tensor:
        """Return the cost [rows, centres, hypotheses] of each centre for each hypothesis."""
        if self.transposed is None:
            return pair_cost(_OWNER, self.cost_fn, centres, self.hypotheses).mT
        flat = centres.flatten(2)
        squares = flat.square().sum(dim=-1, keepdim=True) + self.transposed.square().sum(dim=1, keepdim=True)
        cost = torch.baddbmm(squares, flat, self.transposed, alpha=-2).clamp_(min=0)
        return cost / self.hypotheses.shape[2] if self.cost_fn is pairwise_sq_ade else cost

    def centres(self, shares: Tensor, before: Tensor) -> Tensor:
        """Return the best centre of each group, [rows, groups, *event]; of an empty one the centre before.

        Args:
            shares: [rows, groups, hypotheses], the weight of each hypothesis in each group.
            before: [rows, groups, *event]
        """
        event = self.hypotheses.shape[2:]
        mass = shares.sum(dim=-1, keepdim=True)
        means = torch.bmm(shares, self.hypotheses.flatten(2)) / mass.clamp_min(1e-30)
        means = torch.where(mass > 0, means, before.flatten(2)).unflatten(-1, event)
        if self.means_are_best or not isinstance(self.objective, ExpectedCost):
            return means
        if self.cost_fn is pairwise_euclidean:
            return _medians(self.hypotheses.flatten(2).unsqueeze(2), shares, means.flatten(2).unsqueeze(2)).view_as(
                means
            )
        if self.cost_fn is pairwise_ade:
            return _medians(self.hypotheses, shares, means)
        if self.cost_fn is pairwise_fde:
            last = _medians(self.hypotheses[..., -1:, :], shares, means[..., -1:, :])
            return torch.cat([means[..., :-1, :], last], dim=-2)
        return means

    @property
    def means_are_best(self) -> bool:
        """Whether the mean of a group has the lowest loss of all centres."""
        squares = self.cost_fn in (*EUCLIDEAN, pairwise_sq_fde)
        return squares and isinstance(self.objective, ExpectedCost)


def geometry_of(scored: Scored, cost_fn: CostFn, objective: ReductionObjective) -> Geometry:
    """Return the problem of some rows, moved to their means: far from 0 the digits would go into the distance."""
    transposed = None
    if cost_fn in EUCLIDEAN:
        transposed = scored.hypotheses.flatten(2).mT.contiguous()
    return Geometry(*scored, transposed, cost_fn, objective)


def _medians(events: Tensor, shares: Tensor, centres: Tensor) -> Tensor:
    """Return the geometric median of each group at each step by Weiszfeld's algorithm.

    Args:
        events: [rows, hypotheses, steps, dim]
        shares: [rows, groups, hypotheses]
        centres: [rows, groups, steps, dim], where to start.
    """
    points = events.transpose(1, 2)  # [rows, steps, hypotheses, dim]
    shares, centres = shares.unsqueeze(1), centres.transpose(1, 2)
    tiny = torch.finfo(events.dtype).eps * events.abs().amax().clamp_min(1e-30)
    for _ in range(_WEISZFELD_STEPS):
        pulls = shares / torch.cdist(centres, points).clamp_min(tiny)  # [rows, steps, groups, hypotheses]
        total = pulls.sum(dim=-1, keepdim=True)
        centres = torch.where(total > 0, pulls @ points / total.clamp_min(1e-30), centres)
    return centres.transpose(1, 2)
