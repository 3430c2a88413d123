"""Values of each sample or target for the metrics of densities, masks and poses."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_callable, check_mask, check_positive
from torchmcl.costs import pairwise_ade, pairwise_dice, pairwise_euclidean, pairwise_iou
from torchmcl.dispatch import full_precision
from torchmcl.metrics._parts import RealValues, aligned, compared
from torchmcl.rules.transport import PIT
from torchmcl.scoring import ScoreObjective
from torchmcl.types import Distributions, Predictions

# Makes two empty masks equal; areas are pixel counts, so this changes nothing else.
_EMPTY = 1e-6


class Events(NamedTuple):
    """Hypotheses [..., hypotheses, ...], targets [..., targets, ...], probabilities, and a mask of real targets."""

    hypotheses: Tensor
    targets: Tensor
    chances: Tensor
    real: Tensor
    steps: Tensor | None


def events(
    owner: str, predictions: Predictions, targets: Tensor, mask: Tensor | None, scores: ScoreObjective | None = None
) -> Events:
    """Check the input of a metric and return it with all axes, and 0 for padded targets."""
    hypotheses, targets, mask, chances, shape, n = aligned(owner, predictions, targets, mask, scores)
    targets, steps = targets.expand(shape), None
    real = torch.ones(shape[: n + 1], dtype=torch.bool, device=targets.device)
    if mask is not None:
        check_mask(owner, mask, shape[: mask.ndim])
        mask = mask.expand(shape[: mask.ndim])
        steps = mask if mask.ndim > n + 1 else None
        real = mask if steps is None else mask.flatten(n + 1).any(dim=-1)
        targets = targets.masked_fill(~mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim)), 0)
    hypotheses = hypotheses.expand(*shape[:n], *hypotheses.shape[n:])
    return Events(hypotheses, targets, chances.expand(*shape[:n], -1), real, steps)


@full_precision
def coordinate_crps(
    predictions: Predictions, targets: Tensor, mask: Tensor | None, scores: ScoreObjective | None = None
) -> RealValues:
    """Return E|X - y| - E|X - X'| / 2 of each target as a mean over its real coordinates."""
    hypotheses, values, weights, real = compared("crps", predictions, targets, mask, scores)
    n_real = compared("crps", predictions, torch.ones_like(targets), mask, scores).targets.sum(dim=-1)
    dtype = torch.promote_types(torch.promote_types(weights.dtype, values.dtype), hypotheses.dtype)
    hypotheses, values, weights = hypotheses.to(dtype), values.to(dtype), weights.to(dtype)
    near = (hypotheses.unsqueeze(-3) - values.unsqueeze(-2)).abs()  # [..., targets, hypotheses, coordinates]
    near = torch.einsum("...tkc,...k->...tc", near, weights)
    # Half the mean distance of two draws is the integral of F (1 - F), a sum over the gaps between sorted values.
    ordered, order = hypotheses.sort(dim=-2)
    below = weights.unsqueeze(-1).expand_as(ordered).gather(-2, order).cumsum(dim=-2)[..., :-1, :]
    spread = (below * (1 - below) * ordered.diff(dim=-2)).sum(dim=-2, keepdim=True)
    return RealValues(((near - spread).sum(dim=-1) / n_real.clamp_min(1)).reshape(real.shape), real)


@full_precision
def variogram_scores(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None,
    order: float = 0.5,
    scores: ScoreObjective | None = None,
) -> RealValues:
    """Return the mean over pairs of coordinates of (|y_i - y_j|^p - E|X_i - X_j|^p)^2 of each target."""
    check_positive("variogram_score", "order", order)
    hypotheses, values, weights, real = compared("variogram_score", predictions, targets, mask, scores)
    there = compared("variogram_score", predictions, torch.ones_like(targets), mask, scores).targets

    def differences(events: Tensor) -> Tensor:
        return (events.unsqueeze(-1) - events.unsqueeze(-2)).abs().to(weights.dtype) ** order

    expected = differences(hypotheses.select(-2, 0)) * weights[..., 0, None, None]
    for k in range(1, hypotheses.shape[-2]):  # one at a time: pairs of coordinates are many
        expected = expected + differences(hypotheses.select(-2, k)) * weights[..., k, None, None]
    pairs = there.unsqueeze(-1) * there.unsqueeze(-2) - torch.diag_embed(there.square())
    squares = (differences(values) - expected.unsqueeze(-3)).square() * pairs
    return RealValues((squares.sum(dim=(-2, -1)) / pairs.sum(dim=(-2, -1)).clamp_min(1)).reshape(real.shape), real)


def _iou_of_masks(*, hypotheses: Tensor, targets: Tensor, event_dims: int) -> Tensor:
    return pairwise_iou(hypotheses=hypotheses - 0.5, targets=targets, event_dims=event_dims, smooth=_EMPTY, hard=True)


def generalized_energy_distances(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None,
    cost_fn: Callable[..., Tensor] | None = None,
    scores: ScoreObjective | None = None,
) -> RealValues:
    """Return 2 E d(S, Y) - E d(S, S') - E d(Y, Y') of each sample."""
    owner = "generalized_energy_distance"
    hypotheses, targets, chances, real, steps = events(owner, predictions, targets, mask, scores)
    if steps is not None:
        advice = "Cut the images, or give a `cost_fn` that leaves out what does not count."
        raise ValueError(bad_value(owner, "mask", "have shape [..., targets]", tuple(steps.shape), advice))
    if cost_fn is None:
        hypotheses, targets = (hypotheses > 0).float(), (targets > 0.5).float()
        n_axes = hypotheses.ndim - real.ndim

        def distance(left: Tensor, right: Tensor) -> Tensor:
            return _iou_of_masks(hypotheses=left, targets=right, event_dims=n_axes)
    else:
        check_callable(owner, "cost_fn", cost_fn, "torchmcl.pairwise_euclidean")

        def distance(left: Tensor, right: Tensor) -> Tensor:
            return cost_fn(hypotheses=left, targets=right)

    shares = real / real.sum(dim=-1, keepdim=True).clamp_min(1)
    dtype, chances, shares = chances.dtype, chances.double(), shares.double()
    parts = [(hypotheses, targets, chances, shares), (hypotheses, hypotheses, chances, chances)]
    parts.append((targets, targets, shares, shares))
    means = [torch.einsum("...t,...tk,...k->...", q, distance(a, b).double(), p) for a, b, p, q in parts]
    return RealValues((2 * means[0] - means[1] - means[2]).to(dtype), real.any(dim=-1))


def matched_dices(predictions: Predictions, targets: Tensor, mask: Tensor | None) -> RealValues:
    """Return the dice coefficient of each target with its hypothesis in the best one-to-one assignment."""
    hypotheses, targets, _, real, steps = events("matched_dice", predictions, targets, mask)
    hard = (2 * (hypotheses > 0).float() - 1) * 1e4  # logits of 0 and 1
    n_axes = hypotheses.ndim - real.ndim
    cost = pairwise_dice(hypotheses=hard, targets=(targets > 0.5).float(), mask=steps, event_dims=n_axes, smooth=_EMPTY)
    return RealValues((PIT()(cost, real) * (1 - cost)).sum(dim=-1), real)


def joint_errors(predictions: Predictions, targets: Tensor, mask: Tensor | None) -> RealValues:
    """Return the mean distance over joints between each target and its best hypothesis."""
    hypotheses, targets, _, real, steps = events("mpjpe", predictions, targets, mask)
    cost = pairwise_ade(hypotheses=hypotheses, targets=targets, mask=steps)
    return RealValues(cost.amin(dim=-1), real)


def aligned_joint_errors(predictions: Predictions, targets: Tensor, mask: Tensor | None) -> RealValues:
    """Return the mean distance over joints to the best hypothesis after the best rigid motion and scaling."""
    hypotheses, targets, _, real, steps = events("pa_mpjpe", predictions, targets, mask)
    wide = torch.promote_types(torch.promote_types(hypotheses.dtype, targets.dtype), torch.float32)
    there = (torch.ones_like(targets[..., 0], dtype=torch.bool) if steps is None else steps).to(wide)
    there = there.unsqueeze(-2).unsqueeze(-1)  # [..., targets, 1, joints, 1]
    n_joints = there.sum(dim=-2, keepdim=True).clamp_min(1)
    left, right = hypotheses.unsqueeze(-4).to(wide), targets.unsqueeze(-3).to(wide)
    left, right = ((x - (x * there).sum(dim=-2, keepdim=True) / n_joints) * there for x in (left, right))
    u, s, vh = torch.linalg.svd(left.mT @ right)  # of all pairs [..., targets, hypotheses, dim, dim]
    signs = torch.ones_like(s)
    signs[..., -1] = torch.where(torch.linalg.det(u @ vh) < 0, -1.0, 1.0)
    size = (s * signs).sum(dim=-1) / left.square().sum(dim=(-2, -1)).clamp_min(torch.finfo(wide).tiny)
    turned = size[..., None, None] * (left @ (u * signs.unsqueeze(-2)) @ vh)
    distances = torch.linalg.vector_norm(turned - right, dim=-1).sum(dim=-1) / n_joints[..., 0, 0]
    return RealValues(distances.amin(dim=-1), real)


def pairwise_distances(predictions: Predictions) -> RealValues:
    """Return the mean distance between two different hypotheses of each sample."""
    owner = "average_pairwise_distance"
    if not isinstance(predictions, Predictions | Distributions):
        raise TypeError(bad_value(owner, "predictions", "be Predictions", type(predictions).__name__))
    hypotheses, logits = predictions.hypotheses, predictions.score_logits
    n = min(hypotheses.ndim - 2, 1) if logits is None else logits.ndim - 1
    flat = hypotheses.flatten(n + 1)
    n_pairs = max(flat.shape[-2] * (flat.shape[-2] - 1), 1)
    values = pairwise_euclidean(hypotheses=flat, targets=flat).sum(dim=(-2, -1)) / n_pairs
    return RealValues(values, torch.ones_like(values, dtype=torch.bool))


def covered_modes(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None,
    radius: float,
    cost_fn: Callable[..., Tensor] | None = None,
) -> RealValues:
    """Return 1 for each target with a hypothesis within the radius, 0 for others."""
    owner = "mode_coverage"
    check_positive(owner, "radius", radius)
    hypotheses, targets, _, real, steps = events(owner, predictions, targets, mask)
    if cost_fn is None:
        hypotheses, targets, _, real = compared(owner, predictions, targets, mask if steps is None else steps)
        nearest = pairwise_euclidean(hypotheses=hypotheses, targets=targets).amin(dim=-1)
        return RealValues((nearest <= radius).float().reshape(real.shape), real)
    check_callable(owner, "cost_fn", cost_fn, "torchmcl.pairwise_ade")
    given = {} if steps is None else {"mask": steps}
    nearest = cost_fn(hypotheses=hypotheses, targets=targets, **given).amin(dim=-1)
    return RealValues((nearest <= radius).float(), real)
