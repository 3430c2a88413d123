"""Costs built from other functions: losses of a single pair, weighted sums, and anchors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.checks import check_callable, check_leading_axes, check_real, check_tensor
from torchmcl.costs.declared import CostDeclaration, aligned_mask, check_takes_mask, cost_declaration, needs
from torchmcl.dispatch import broadcast_shapes
from torchmcl.errors import bad_value

__all__ = ["AnchoredCost", "Pairwise", "SumOfCosts"]


@dataclass(frozen=True)
class Pairwise:
    """Pairwise cost from a loss of one hypothesis and one target.

    The loss is called under `torch.vmap`, so it must not branch on values. The cost is picklable if the loss is, and
    can replace any `pairwise_*` function.

    Args:
        loss: Function of one hypothesis and one target that returns a scalar tensor. A parameter `mask` receives the
            step mask of the target, or None if the batch has no step mask; masked steps of the target are 0.
        hypothesis_dims: Number of axes of one hypothesis.
        target_dims: Number of axes of one target (0 for a class id).

    Example:
        >>> cost_fn = Pairwise(lambda hypothesis, target: (hypothesis - target).abs().max())
        >>> cost_fn(hypotheses=torch.tensor([[0.0, 0.0], [3.0, 3.0]]), targets=torch.tensor([[1.0, 4.0]]))
        tensor([[4., 2.]])
        >>> def largest(hypothesis, target, mask):
        ...     return ((hypothesis - target).abs().amax(dim=-1) * mask).max()
        >>> paths = {"hypotheses": torch.tensor([[[1.0], [2.0]]]), "targets": torch.tensor([[[0.0], [9.0]]])}
        >>> Pairwise(largest, hypothesis_dims=2, target_dims=2)(**paths, mask=torch.tensor([[True, False]]))
        tensor([[1.]])
    """

    loss: Callable[..., Tensor]
    hypothesis_dims: int = 1
    target_dims: int = 1

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("Pairwise", "loss", self.loss, "torchmcl.Pairwise(lambda hypothesis, target: ...)")
        for field in ("hypothesis_dims", "target_dims"):
            if getattr(self, field) not in range(8):
                rule = "be a number of axes from 0 to 7"
                raise ValueError(bad_value("Pairwise", field, rule, repr(getattr(self, field))))

    @property
    def declaration(self) -> CostDeclaration:
        """Axes of a hypothesis and of a target."""
        return CostDeclaration(self.hypothesis_dims, self.target_dims)

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the cost [..., targets, hypotheses]; a mask of valid steps is [..., targets, steps]."""
        check_tensor("Pairwise", "hypotheses", hypotheses)
        check_tensor("Pairwise", "targets", targets, floating=False)
        for name, value, dims in (
            ("hypotheses", hypotheses, self.hypothesis_dims),
            ("targets", targets, self.target_dims),
        ):
            if value.ndim < dims + 1:
                rule = f"have shape [..., {name}] followed by {dims} axes"
                raise ValueError(bad_value("Pairwise", name, rule, tuple(value.shape)))
        split_h, split_t = hypotheses.ndim - self.hypothesis_dims - 1, targets.ndim - self.target_dims - 1
        check_leading_axes("Pairwise", hypotheses, targets, hypotheses.shape[:split_h], targets.shape[:split_t])
        leading = broadcast_shapes(hypotheses.shape[:split_h], targets.shape[:split_t])
        hypotheses = hypotheses.expand(*leading, *hypotheses.shape[split_h:])
        targets = targets.expand(*leading, *targets.shape[split_t:])
        if mask is not None:
            check_takes_mask("Pairwise", "loss", self.loss)
            mask = aligned_mask("Pairwise", mask, targets, self.target_dims)
            targets = targets.masked_fill(~mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim)), 0)
        # Both sides have all axes of the pairs: mse_loss and others fail under vmap where one side lacks an axis.
        n_targets, n_hypotheses = targets.shape[len(leading)], hypotheses.shape[len(leading)]
        pairs = (*leading, n_targets, n_hypotheses)
        hypotheses = hypotheses.unsqueeze(len(leading)).expand(*pairs, *hypotheses.shape[len(leading) + 1 :])
        targets = targets.unsqueeze(len(leading) + 1).expand(*pairs, *targets.shape[len(leading) + 1 :])
        shared = None if mask is None else 0  # None is not mapped over
        lifted = torch.vmap(self._scalar_loss, in_dims=(0, 0, None))
        for _ in pairs[:-1]:
            lifted = torch.vmap(lifted, in_dims=(0, 0, shared))
        return lifted(hypotheses, targets, mask)

    def _scalar_loss(self, hypothesis: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        extras = {"mask": mask} if "mask" in needs(self.loss) else {}
        value = self.loss(hypothesis, target, **extras)
        if not isinstance(value, Tensor) or value.ndim != 0:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            advice = "Sum or average over the axes of one hypothesis."
            raise ValueError(bad_value("Pairwise", "loss", "return a scalar tensor for one pair", shape, advice))
        return value


@dataclass(frozen=True)
class SumOfCosts:
    """Weighted sum of costs of the same events, for example 20 focal + dice.

    Args:
        terms: Pairs of a weight and a cost.

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
            raise ValueError(
                bad_value("SumOfCosts", "terms", "contain at least one pair of weight and cost", self.terms)
            )
        for weight, cost_fn in self.terms:
            check_real("SumOfCosts", "terms", weight)
            check_callable("SumOfCosts", "terms", cost_fn, "(1.0, torchmcl.pairwise_dice)")
        object.__setattr__(self, "terms", tuple((weight, cost_fn) for weight, cost_fn in self.terms))

    @property
    def declaration(self) -> CostDeclaration:
        """Axes of the terms, and all their arguments; a mask only if every term accepts it."""
        inner = [cost_declaration(cost_fn) for _, cost_fn in self.terms]
        names = {name for term in inner for name in term.needs}
        names -= {"mask"} if any("mask" not in term.needs for term in inner) else set()
        known = [term for term in inner if isinstance(term.event_dims, int)] or inner
        return CostDeclaration(known[0].event_dims, known[0].target_dims, needs=tuple(sorted(names)))

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, **extras: Any) -> Tensor:
        """Return the cost [..., targets, hypotheses]; further arguments are passed to the terms that accept them."""
        total: Tensor | None = None
        for weight, cost_fn in self.terms:
            if extras.get("mask") is not None:
                check_takes_mask("SumOfCosts", "terms", cost_fn)
            accepted = {name: value for name, value in extras.items() if name in cost_declaration(cost_fn).needs}
            cost = weight * cost_fn(hypotheses=hypotheses, targets=targets, **accepted)
            total = cost if total is None else total + cost
        assert total is not None
        return total


@dataclass(frozen=True, eq=False)
class AnchoredCost:
    """Cost of fixed anchors, one per hypothesis, which as the `cost_fn` of a step selects the winner.

    The hypotheses are then trained with `loss_fn`. A hypothesis with targets near its anchor always remains in use, but
    no hypothesis can move to a different mode; with `torchmcl.AnnealedWTA`, hypotheses find their modes.

    Args:
        cost_fn: Cost of an anchor and a target, `pairwise_fde` for example.
        anchors: Points, [hypotheses, ...], for example the cluster centers of the training targets (k-means).

    Example:
        >>> import torch, torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3)
        >>> nearest = AnchoredCost(mcl.pairwise_euclidean, anchors=torch.tensor([[-1.0], [0.0], [1.0]]))
        >>> batch = mcl.Batch(torch.randn(2, 2), torch.tensor([[-0.9], [0.8]]))
        >>> step = mcl.mcl_step(model, batch, mcl.WTA(), cost_fn=nearest, loss_fn=mcl.pairwise_sq_euclidean)
        >>> step.matching.weights.argmax(-1).flatten()
        tensor([0, 2])
    """

    cost_fn: Callable[..., Tensor]
    anchors: Tensor

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("AnchoredCost", "cost_fn", self.cost_fn, "torchmcl.pairwise_fde")
        check_tensor("AnchoredCost", "anchors", self.anchors)
        if self.anchors.ndim < 2:
            raise ValueError(bad_value("AnchoredCost", "anchors", "be [hypotheses, ...]", tuple(self.anchors.shape)))

    @property
    def declaration(self) -> CostDeclaration:
        """Axes and arguments of `cost_fn`."""
        inner = cost_declaration(self.cost_fn)
        return CostDeclaration(inner.event_dims, inner.target_dims, needs=inner.needs)

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, **extras: Any) -> Tensor:
        """Return the cost [..., targets, anchors]; further arguments are those of `cost_fn`."""
        n_leading = hypotheses.ndim - self.anchors.ndim
        if n_leading < 0 or hypotheses.shape[n_leading:] != self.anchors.shape:
            rule = f"end with the shape of the anchors, {tuple(self.anchors.shape)}"
            raise ValueError(bad_value("AnchoredCost", "hypotheses", rule, tuple(hypotheses.shape)))
        fixed = self.anchors.to(hypotheses).expand(hypotheses.shape)
        cost: Tensor = self.cost_fn(hypotheses=fixed, targets=targets, **extras)
        return cost
