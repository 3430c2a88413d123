"""Hypotheses of some rows, their losses to candidate centers, and the centers of weighted groups."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.accel.eager.products import wide_dtype
from torchmcl.costs.declared import Norm, declaration
from torchmcl.postprocess._inputs import CostFn, pair_cost
from torchmcl.postprocess.objectives import ExpectedCost, ReductionObjective

__all__ = ["Geometry", "squared_distance"]


def squared_distance(cost_fn: CostFn) -> Norm | None:
    """Return the closed form of a cost if it is the squared Euclidean distance or a multiple of it."""
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
        """Return the problem of some rows."""
        return self._replace(hypotheses=self.hypotheses[chosen], weights=self.weights[chosen])

    def cost(self, centres: Tensor) -> Tensor:
        """Return the cost [rows, centers, hypotheses] of each center for each hypothesis."""
        squares = squared_distance(self.cost_fn)
        if squares is None or self.hypotheses.is_cuda:
            return pair_cost("reduce", self.cost_fn, centres, self.hypotheses).mT
        # The same differences without a walk over the coordinates, which is slow on CPUs for so many pairs.
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
        wide = shares.to(wide_dtype(shares))  # far from 0 a sum in single precision loses the differences
        mass = wide.sum(dim=-1, keepdim=True)
        means = torch.bmm(wide, self.hypotheses.flatten(2).to(wide)) / mass.clamp_min(1e-30)
        means = torch.where(mass > 0, means, before.flatten(2)).to(self.hypotheses).unflatten(-1, event)
        centre = declaration(self.cost_fn).centre
        if centre is None or centre.from_means is None or not isinstance(self.objective, ExpectedCost):
            return means
        return centre.from_means(self.hypotheses, shares, means)

    @property
    def means_are_best(self) -> bool:
        """Whether the mean of a group has the lowest loss of all centers."""
        centre = declaration(self.cost_fn).centre
        return centre is not None and centre.from_means is None and isinstance(self.objective, ExpectedCost)
