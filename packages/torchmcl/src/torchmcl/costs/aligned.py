"""Costs between shapes: distances after the best alignment, and the best order of interchangeable points."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_callable
from torchmcl.costs.declared import CostDeclaration, aligned_events, declaration, declares
from torchmcl.costs.distances import inner_products, wide_dtype
from torchmcl.dispatch import without_autocast

__all__ = ["Symmetric", "pairwise_rmsd"]


@declares(event_dims=2)
def pairwise_rmsd(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scaled: bool = False,
    reflected: bool = False,
) -> Tensor:
    """Return the root mean squared distance between the points of every pair after optimal rotation and translation.

    The Kabsch algorithm, in closed form from singular values: shapes are never actually rotated, and memory does not
    grow with pairs times points.

    Args:
        hypotheses: [..., hypotheses, points, dim]
        targets: [..., targets, points, dim]; the contents of masked points are ignored, even NaN.
        mask: [..., targets, points], True where a point is real; None when all are.
        scaled: whether the hypothesis may be scaled too: the Procrustes distance.
        reflected: whether it may be mirrored.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs; the gradient of a hit is 0.

    Example:
        >>> flag = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
        >>> turned = flag @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]) + 5
        >>> shapes = {"hypotheses": turned[None], "targets": flag[None]}
        >>> pairwise_rmsd(**shapes) < 1e-6, pairwise_rmsd(hypotheses=flag[None], targets=-flag[None].flip(-1))
        (tensor([[True]]), tensor([[0.7872]]))
    """
    owner = "pairwise_rmsd"
    hypotheses, targets, mask = aligned_events(owner, hypotheses, targets, mask, event_dims=2, whole_steps=True)
    dtype, wide = hypotheses.dtype, wide_dtype(hypotheses)
    n_real = hypotheses.new_tensor(max(hypotheses.shape[-2], 1)) if mask is None else mask.sum(dim=-1, keepdim=True)
    n_real = n_real.clamp_min(1).to(wide)  # [..., targets, 1], or one number
    with without_autocast(hypotheses):
        moments = _moments(hypotheses, targets) if mask is None else _masked_moments(hypotheses, targets, mask)
        own, energy, products = moments
        overlap = _largest_overlap(products, reflected)
    if scaled:
        flat = own <= 0
        square = energy - (overlap.square() / own.masked_fill(flat, 1)).masked_fill(flat, 0)
    else:
        square = energy + own - 2 * overlap
    # Rounding leaves a residual of this size at a perfect match; its root would have an enormous gradient.
    hit = square <= 16 * torch.finfo(wide).eps * (energy + own)
    root = (square.masked_fill(hit, 1) / n_real).sqrt()
    return root.masked_fill(hit, 0).to(dtype)


def _moments(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the energies about the mean and the products [..., targets, hypotheses, dim, dim] of all points."""
    n, dim = max(hypotheses.shape[-2], 1), hypotheses.shape[-1]
    # Nothing depends on the origin; one near the points keeps the digits, and needs no gradient.
    h, t = (points - points.detach().mean(dim=-2, keepdim=True) for points in (hypotheses, targets))
    cross, h_energy, t_energy = inner_products(h.mT.flatten(-3, -2), t.mT.flatten(-3, -2))
    h_sum, t_sum = (points.sum(dim=-2, dtype=wide_dtype(points)) for points in (h, t))
    own = h_energy.unflatten(-1, (-1, dim)).sum(dim=-1) - h_sum.square().sum(dim=-1) / n
    energy = t_energy.unflatten(-1, (-1, dim)).sum(dim=-1) - t_sum.square().sum(dim=-1) / n
    products = cross.unflatten(-1, (-1, dim)).unflatten(-3, (-1, dim)).transpose(-3, -2)
    products = products - t_sum[..., :, None, :, None] * h_sum[..., None, :, None, :] / n
    return own.unsqueeze(-2), energy.unsqueeze(-1), products


def _masked_moments(hypotheses: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `_moments` of the points that are real in each target."""
    wide = wide_dtype(hypotheses)
    hypotheses, targets, real = hypotheses.to(wide), targets.to(wide), mask.to(wide).unsqueeze(-1)
    n_real = real.sum(dim=-2).clamp_min(1)  # [..., targets, 1]
    targets = (targets - (targets * real).sum(dim=-2, keepdim=True) / n_real.unsqueeze(-1)) * real
    hypotheses = hypotheses - hypotheses.mean(dim=-2, keepdim=True)
    sums = torch.einsum("...tp,...kpd->...tkd", real.squeeze(-1), hypotheses)
    own = torch.einsum("...tp,...kp->...tk", real.squeeze(-1), hypotheses.square().sum(dim=-1))
    own = own - sums.square().sum(dim=-1) / n_real
    # The mean of a target is 0, so that of the hypothesis drops out of the products.
    products = torch.einsum("...tpd,...kpe->...tkde", targets, hypotheses)
    return own, targets.square().sum(dim=(-2, -1)).unsqueeze(-1), products


def _largest_overlap(products: Tensor, reflected: bool) -> Tensor:
    """Return the largest trace of products [..., dim, dim] times a rotation (or a reflection)."""
    values = torch.linalg.svdvals(products)
    if reflected:
        return values.sum(dim=-1)
    mirrored = torch.linalg.det(products.detach()) < 0
    return values.sum(dim=-1) - 2 * values[..., -1] * mirrored


@dataclass(frozen=True)
class Symmetric:
    """A cost for interchangeable points: the lowest over the given permutations of the points of a target.

    Args:
        cost_fn: any cost of [points, dim], `pairwise_rmsd` or `pairwise_sq_ade` for example.
        permutations: each contains the index of every point once; include the identity.

    Example:
        >>> from torchmcl import pairwise_ade
        >>> either_end = Symmetric(pairwise_ade, permutations=[(0, 1), (1, 0)])
        >>> stick = torch.tensor([[[0.0], [1.0]]])
        >>> either_end(hypotheses=stick, targets=stick.flip(-2))
        tensor([[0.]])
    """

    cost_fn: Callable[..., Tensor]
    permutations: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("Symmetric", "cost_fn", self.cost_fn, "torchmcl.costs.pairwise_rmsd")
        orders = tuple(tuple(int(i) for i in order) for order in self.permutations)
        if not orders or any(sorted(order) != list(range(len(orders[0]))) for order in orders):
            rule = "hold at least one order, each with every number from 0 once"
            raise ValueError(bad_value("Symmetric", "permutations", rule, orders))
        object.__setattr__(self, "permutations", orders)

    @property
    def declaration(self) -> CostDeclaration:
        """The axes of `cost_fn`, and its arguments."""
        inner = declaration(self.cost_fn)
        return CostDeclaration(inner.event_dims, inner.target_dims, needs=inner.needs)

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None, **extras: Any) -> Tensor:
        """Return the cost [..., targets, hypotheses]; further arguments are those of `cost_fn`."""
        inner = declaration(self.cost_fn)
        n_axes = inner.event_dims if isinstance(inner.event_dims, int) else extras.get("event_dims", 2)
        n_axes = n_axes if inner.target_dims is None else inner.target_dims
        axis, n_points = targets.ndim - n_axes, len(self.permutations[0])
        if targets.shape[axis] != n_points:
            rule = f"have {n_points} points, as many as a permutation"
            raise ValueError(bad_value("Symmetric", "targets", rule, tuple(targets.shape)))
        lowest: Tensor | None = None
        for order in self.permutations:
            place = torch.tensor(order, device=targets.device)
            given = extras if mask is None else extras | {"mask": mask.index_select(axis, place)}
            cost = self.cost_fn(hypotheses=hypotheses, targets=targets.index_select(axis, place), **given)
            lowest = cost if lowest is None else torch.minimum(lowest, cost)
        assert lowest is not None
        return lowest
