"""Hypotheses of some rows, their losses to candidate centres, and the centres of weighted groups of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.accel.eager.products import wide_dtype
from torchmcl.costs import (
    pairwise_ade,
    pairwise_euclidean,
    pairwise_fde,
    pairwise_sq_ade,
    pairwise_sq_euclidean,
    pairwise_sq_fde,
)
from torchmcl.postprocess._inputs import CostFn, pair_cost
from torchmcl.postprocess.objectives import ExpectedCost, ReductionObjective

__all__ = ["EUCLIDEAN", "Geometry"]

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
        cost_fn: of pairs.
        objective: of costs.
    """

    hypotheses: Tensor
    weights: Tensor
    cost_fn: CostFn
    objective: ReductionObjective

    def rows(self, chosen: Tensor) -> "Geometry":
        """Return the problem of some rows."""
        return self._replace(hypotheses=self.hypotheses[chosen], weights=self.weights[chosen])

    def cost(self, centres: Tensor) -> Tensor:
        """Return the cost [rows, centres, hypotheses] of each centre for each hypothesis."""
        if self.cost_fn not in EUCLIDEAN or self.hypotheses.is_cuda:
            return pair_cost(_OWNER, self.cost_fn, centres, self.hypotheses).mT
        # The same differences without a walk over the coordinates, which is slow on CPUs for so many pairs.
        cost = torch.cdist(centres.flatten(2), self.hypotheses.flatten(2), compute_mode="donot_use_mm_for_euclid_dist")
        cost = cost.square_()
        return cost.div_(self.hypotheses.shape[2]) if self.cost_fn is pairwise_sq_ade else cost

    def centres(self, shares: Tensor, before: Tensor) -> Tensor:
        """Return the best centre of each group, [rows, groups, *event]; of an empty one the centre before.

        Args:
            shares: [rows, groups, hypotheses], the weight of each hypothesis in each group.
            before: [rows, groups, *event]
        """
        event = self.hypotheses.shape[2:]
        wide = shares.to(wide_dtype(shares))  # far from 0 a sum in single precision loses the differences
        mass = wide.sum(dim=-1, keepdim=True)
        means = torch.bmm(wide, self.hypotheses.flatten(2).to(wide)) / mass.clamp_min(1e-30)
        means = torch.where(mass > 0, means, before.flatten(2)).to(self.hypotheses).unflatten(-1, event)
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


def _medians(events: Tensor, shares: Tensor, centres: Tensor) -> Tensor:
    """Return the geometric median of each group at each step by Weiszfeld's algorithm.

    Args:
        events: [rows, hypotheses, steps, dim]
        shares: [rows, groups, hypotheses]
        centres: [rows, groups, steps, dim], where to start.
    """
    wide = wide_dtype(events)
    points = events.transpose(1, 2).to(wide)  # [rows, steps, hypotheses, dim]
    shares, centres = shares.unsqueeze(1).to(wide), centres.transpose(1, 2).to(wide)
    # Of each row by itself: its result must not depend on the size of other rows.
    tiny = torch.finfo(wide).eps * points.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    for _ in range(_WEISZFELD_STEPS):
        distances = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist")
        pulls = shares / distances.maximum(tiny)  # [rows, steps, groups, hypotheses]
        total = pulls.sum(dim=-1, keepdim=True)
        centres = torch.where(total > 0, pulls @ points / total.clamp_min(1e-30), centres)
    return centres.transpose(1, 2).to(events)
