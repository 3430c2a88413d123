"""Costs of shapes: distances after the best alignment."""

import torch
from torch import Tensor

from torchmcl.costs.declared import aligned_events, declare_cost
from torchmcl.costs.distances import inner_products, wide_dtype
from torchmcl.dispatch import without_autocast

__all__ = ["pairwise_rmsd"]


@declare_cost(event_dims=2)
def pairwise_rmsd(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scaled: bool = False,
    reflected: bool = False,
) -> Tensor:
    """Return the root mean squared distance between the points of every pair after optimal rotation and translation.

    The distance follows in closed form from singular values (Kabsch algorithm): no shape is rotated, and the memory
    does not grow with the number of pairs times points.

    Args:
        hypotheses: Predicted shapes, [..., hypotheses, points, dim].
        targets: Target shapes, [..., targets, points, dim]; masked points are ignored, even NaN.
        mask: Valid points, [..., targets, points]; None if all are valid.
        scaled: Whether hypotheses may be scaled too, as in the Procrustes distance.
        reflected: Whether hypotheses may be mirrored.

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
    size = energy if scaled else energy + own
    if scaled:
        flat = own <= 0
        square = energy - (overlap.square() / own.masked_fill(flat, 1)).masked_fill(flat, 0)
    else:
        square = energy + own - 2 * overlap
    # Rounding leaves a residual of this size at a perfect match; its root would have an enormous gradient.
    hit = square <= 16 * torch.finfo(wide).eps * size
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
    """Return `_moments` of the valid points of each target."""
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
