"""Costs built from other costs: a weighted sum, and the cost of fixed anchors instead of the hypotheses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchmcl.checks import bad_value, check_callable, check_real, check_tensor
from torchmcl.costs.declared import CostDeclaration, declaration


@dataclass(frozen=True)
class SumOfCosts:
    """A weighted sum of costs of the same events, for example 20 focal + dice.

    Args:
        terms: pairs of a weight and a cost.

    Example:
        >>> import torch
        >>> from torchmcl import pairwise_dice
        >>> from torchmcl.costs import pairwise_mask_bce
        >>> cost_fn = SumOfCosts([(1.0, pairwise_mask_bce), (2.0, pairwise_dice)])
        >>> cost_fn(hypotheses=torch.zeros(3, 4, 4), targets=torch.ones(1, 4, 4)).shape
        torch.Size([1, 3])
    """

    terms: Sequence[tuple[float, Callable[..., Tensor]]]

    def __post_init__(self) -> None:
        """Check the field."""
        if not self.terms:
            raise ValueError(bad_value("SumOfCosts", "terms", "hold at least one pair of weight and cost", self.terms))
        for weight, cost_fn in self.terms:
            check_real("SumOfCosts", "terms", weight)
            check_callable("SumOfCosts", "terms", cost_fn, "(1.0, torchmcl.pairwise_dice)")
        object.__setattr__(self, "terms", tuple((weight, cost_fn) for weight, cost_fn in self.terms))

    @property
    def declaration(self) -> CostDeclaration:
        """The axes that the terms share, and all their arguments; a mask only if every term takes it."""
        inner = [declaration(cost_fn) for _, cost_fn in self.terms]
        names = {name for each in inner for name in each.needs}
        names -= {"mask"} if any("mask" not in each.needs for each in inner) else set()
        known = [each for each in inner if isinstance(each.event_dims, int)] or inner
        return CostDeclaration(known[0].event_dims, known[0].target_dims, needs=tuple(sorted(names)))

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, **extras: Any) -> Tensor:
        """Return the cost [..., targets, hypotheses]; further arguments go to the terms that take them."""
        total: Tensor | None = None
        for weight, cost_fn in self.terms:
            given = {name: value for name, value in extras.items() if name in declaration(cost_fn).needs}
            cost = weight * cost_fn(hypotheses=hypotheses, targets=targets, **given)
            total = cost if total is None else total + cost
        assert total is not None
        return total


@dataclass(frozen=True, eq=False)
class Anchored:
    """The cost of fixed anchors, one for each hypothesis: as the `cost_fn` of a step, it selects the winner.

    The hypotheses are then trained by `loss_fn`. A hypothesis with targets near its anchor cannot die, and none can
    move to a different mode: see `torchmcl.AnnealedWTA` for hypotheses that find their modes.

    Args:
        cost_fn: the cost between an anchor and a target, `pairwise_fde` for example.
        anchors: Points [hypotheses, ...], for example the cluster centers of the training targets (k-means).

    Example:
        >>> import torch, torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3)
        >>> nearest = Anchored(mcl.pairwise_euclidean, anchors=torch.tensor([[-1.0], [0.0], [1.0]]))
        >>> batch = mcl.Batch(torch.randn(2, 2), torch.tensor([[-0.9], [0.8]]))
        >>> step = mcl.mcl_step(model, batch, mcl.WTA(), cost_fn=nearest, loss_fn=mcl.pairwise_sq_euclidean)
        >>> step.matching.weights.argmax(-1).flatten()
        tensor([0, 2])
    """

    cost_fn: Callable[..., Tensor]
    anchors: Tensor

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("Anchored", "cost_fn", self.cost_fn, "torchmcl.pairwise_fde")
        check_tensor("Anchored", "anchors", self.anchors)
        if self.anchors.ndim < 2:
            raise ValueError(bad_value("Anchored", "anchors", "be [hypotheses, ...]", tuple(self.anchors.shape)))

    @property
    def declaration(self) -> CostDeclaration:
        """The axes of `cost_fn`, and its arguments."""
        inner = declaration(self.cost_fn)
        return CostDeclaration(inner.event_dims, inner.target_dims, needs=inner.needs)

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, **extras: Any) -> Tensor:
        """Return the cost [..., targets, anchors]; further arguments are those of `cost_fn`."""
        n_leading = hypotheses.ndim - self.anchors.ndim
        if n_leading < 0 or hypotheses.shape[n_leading:] != self.anchors.shape:
            rule = f"end in the axes of the anchors, {tuple(self.anchors.shape)}"
            raise ValueError(bad_value("Anchored", "hypotheses", rule, tuple(hypotheses.shape)))
        fixed = self.anchors.to(hypotheses).expand(hypotheses.shape)
        cost: Tensor = self.cost_fn(hypotheses=fixed, targets=targets, **extras)
        return cost
