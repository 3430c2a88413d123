"""Input checks and shared parts of metrics: axes of hypotheses, targets and events, and sums over real targets."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_boolean, check_leading_axes, check_mask, check_tensor
from torchmcl.costs import pairwise_euclidean, pairwise_sq_euclidean
from torchmcl.dispatch import broadcast_shapes, full_precision
from torchmcl.rules.transport import transport_plan
from torchmcl.rules.winners import WTA
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Matching, Predictions, check_predictions


class Compared(NamedTuple):
    """Hypotheses and targets as vectors: a path is one event, compared as a whole.

    Attributes:
        hypotheses: [..., hypotheses, numbers]
        targets: [..., targets, numbers]
        chances: [..., hypotheses], normalized scores, uniform without scores.
        real: [..., targets], True for targets that count.

    With a mask of steps, each target has its own hypotheses, which are 0 at padded steps: [..., targets, hypotheses,
    numbers], [..., targets, 1, numbers] and [..., 1, hypotheses]; `real` stays [..., targets].
    """

    hypotheses: Tensor
    targets: Tensor
    chances: Tensor
    real: Tensor


class Aligned(NamedTuple):
    """The checked input of a metric, with an axis of targets.

    Attributes:
        hypotheses: [..., hypotheses, ...]
        targets: [..., targets, ...]
        mask: [..., targets] or with the first axes of an event, or None.
        chances: [..., hypotheses], normalized scores, uniform without scores.
        shape: the shape of the targets with all leading axes.
        n_leading: the number of leading axes.
    """

    hypotheses: Tensor
    targets: Tensor
    mask: Tensor | None
    chances: Tensor
    shape: torch.Size
    n_leading: int


def aligned(
    owner: str, predictions: Predictions, targets: Tensor, mask: Tensor | None, scores: ScoreObjective | None
) -> Aligned:
    """Check the input of a metric. Score logits define the leading axes; without them the first one is the batch."""
    check_predictions(owner, "predictions", predictions)
    hypotheses, logits = predictions.hypotheses, predictions.score_logits
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets)
    if mask is not None:
        check_boolean(owner, "mask", mask)
    n = min(hypotheses.ndim - 2, 1) if logits is None else logits.ndim - 1
    targets, mask, shape = _with_all_axes(owner, hypotheses, targets, mask, n)
    return Aligned(hypotheses, targets, mask, _chances(owner, hypotheses, logits, n, scores), shape, n)


def compared(
    owner: str,
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None,
    scores: ScoreObjective | None = None,
    *,
    takes_steps: bool = True,
) -> Compared:
    """Check the input of a metric and return it as vectors.

    Args:
        owner: named in messages.
        predictions: hypotheses [..., hypotheses, *event]. The score logits define the leading axes; without
            them the first one is the batch, as in `Predictions`.
        targets: [..., targets, *event]; the axis of targets may be omitted for a single target per sample.
        mask: [..., targets], or [..., targets, steps] with the first axes of an event; or None.
        scores: converts score logits to probabilities; `SigmoidScores()` by default.
        takes_steps: whether the mask may have axes of the event.
    """
    hypotheses, targets, mask, chances, shape, n = aligned(owner, predictions, targets, mask, scores)
    if mask is not None and mask.ndim > n + 1 and takes_steps:
        return _of_real_steps(owner, hypotheses, targets.expand(shape), chances, mask, n)
    real = torch.ones(shape[: n + 1], dtype=torch.bool, device=targets.device)
    if mask is not None:
        check_mask(owner, mask, shape[: n + 1])
        real = mask.expand(shape[: n + 1])
    return Compared(hypotheses.flatten(n + 1), targets.flatten(n + 1), chances, real)


def _with_all_axes(
    owner: str, hypotheses: Tensor, targets: Tensor, mask: Tensor | None, n: int
) -> tuple[Tensor, Tensor | None, torch.Size]:
    """Return targets and mask with the axis of the targets, and the shape of targets for all samples."""
    if n < 0 or hypotheses.ndim < n + 2:
        raise ValueError(bad_value(owner, "hypotheses", "have shape [..., hypotheses, dim]", tuple(hypotheses.shape)))
    event = hypotheses.shape[n + 1 :]
    if targets.shape == (*hypotheses.shape[:n], *event):
        targets, mask = targets.unsqueeze(n), _with_targets_axis(mask, n, event)
    if targets.ndim != hypotheses.ndim or targets.shape[n + 1 :] != event:
        rule = f"have shape [..., targets, {', '.join(map(str, event))}] for `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    check_leading_axes(owner, hypotheses, targets, hypotheses.shape[:n], targets.shape[:n])
    leading = broadcast_shapes(hypotheses.shape[:n], targets.shape[:n])
    return targets, mask, torch.Size((*leading, *targets.shape[n:]))


def _of_real_steps(owner: str, hypotheses: Tensor, targets: Tensor, chances: Tensor, mask: Tensor, n: int) -> Compared:
    """Return hypotheses and targets with 0 at masked steps."""
    check_mask(owner, mask, targets.shape[: mask.ndim])
    mask = mask.expand(targets.shape[: mask.ndim])
    padded = ~mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim))
    each = hypotheses.unsqueeze(n).masked_fill(padded.unsqueeze(n + 1), 0)  # [..., targets, hypotheses, *event]
    single = targets.masked_fill(padded, 0).unsqueeze(n + 1)
    return Compared(each.flatten(n + 2), single.flatten(n + 2), chances.unsqueeze(-2), mask.flatten(n + 1).any(dim=-1))


def _with_targets_axis(mask: Tensor | None, n: int, event: torch.Size) -> Tensor | None:
    """Return a mask with the axis of the targets, added if the mask fits targets without it."""
    if mask is None or mask.ndim < n or mask.shape[n:] != event[: mask.ndim - n]:
        return mask
    return mask.unsqueeze(n)


def _chances(owner: str, hypotheses: Tensor, logits: Tensor | None, n: int, scores: ScoreObjective | None) -> Tensor:
    """Return normalized scores, uniform without score logits, [..., hypotheses]."""
    reader = SigmoidScores() if scores is None else scores
    check_score_objective(owner, reader)
    if logits is not None:
        return reader.probabilities(logits)
    dtype = torch.promote_types(hypotheses.dtype, torch.float32)
    return hypotheses.new_full(hypotheses.shape[: n + 1], 1 / max(hypotheses.shape[n], 1), dtype=dtype)


class RealValues(NamedTuple):
    """One value for each target (or sample), and which of them count."""

    values: Tensor
    counts: Tensor

    def sums(self, model_axes: int = 0) -> tuple[Tensor, Tensor]:
        """Return the sum and the number of the values that count, over all axes but the leading model axes."""
        axes = tuple(range(model_axes, self.values.ndim))
        return self.values.masked_fill(~self.counts, 0).sum(dim=axes), self.counts.sum(dim=axes)

    def mean(self, model_axes: int = 0) -> Tensor:
        """Return the mean of the values that count, NaN if there are none."""
        total, n = self.sums(model_axes)
        return total / n


def hard_costs(matching: Matching) -> RealValues:
    """Return the cost of the cheapest hypothesis of each target."""
    return RealValues(matching.cost.amin(dim=-1), matching.mask)


def soft_costs(matching: Matching) -> RealValues:
    """Return the weighted cost of each target."""
    return RealValues((matching.weights * matching.cost).sum(dim=-1), matching.mask)


def sample_entropies(matching: Matching) -> RealValues:
    """Return the entropy of hypothesis usage within each sample, in nats."""
    n_real = matching.mask.sum(dim=-1, keepdim=True).clamp_min(1)
    usage = matching.weights.sum(dim=-2) / n_real
    return RealValues(torch.special.entr(usage).sum(dim=-1), matching.mask.any(dim=-1))


def usage_sums(matching: Matching) -> tuple[Tensor, Tensor]:
    """Return the weight of each hypothesis [hypotheses], and the number of real targets."""
    return matching.weights.flatten(0, -2).sum(dim=0), matching.mask.sum()


def win_counts(matching: Matching) -> Tensor:
    """Return the number of real targets for which each hypothesis is the cheapest, [hypotheses]."""
    return WTA()(matching.cost, matching.mask).flatten(0, -2).sum(dim=0)


def squared_errors_of_mean(
    predictions: Predictions, targets: Tensor, mask: Tensor | None, scores: ScoreObjective | None = None
) -> RealValues:
    """Return the squared distance of each target to the score-weighted mean of the hypotheses."""
    hypotheses, targets, chances, real = compared("rmse_of_mean", predictions, targets, mask, scores)
    hypotheses, targets = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (hypotheses, targets))
    mean = (chances.unsqueeze(-1) * hypotheses).sum(dim=-2, keepdim=True)
    return RealValues((targets - mean).square().sum(dim=-1).reshape(real.shape), real)


def squared_errors_of_best(predictions: Predictions, targets: Tensor, mask: Tensor | None) -> RealValues:
    """Return the squared distance of each target to its nearest hypothesis."""
    hypotheses, targets, _, real = compared("oracle_rmse", predictions, targets, mask)
    cost = pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
    return RealValues(cost.amin(dim=-1).reshape(real.shape), real)


@full_precision
def energy_scores(
    predictions: Predictions, targets: Tensor, mask: Tensor | None, scores: ScoreObjective | None = None
) -> RealValues:
    """Return E|X - y| - E|X - X'| / 2 of each target y, X drawn from the scored hypotheses."""
    hypotheses, targets, weights, real = compared("energy_score", predictions, targets, mask, scores)
    dtype = torch.promote_types(torch.promote_types(weights.dtype, targets.dtype), hypotheses.dtype)
    weights = weights.to(torch.promote_types(dtype, torch.float32))
    hypotheses = hypotheses.to(weights.dtype)
    to_target = pairwise_euclidean(hypotheses=hypotheses, targets=targets) @ weights.unsqueeze(-1)
    spread = pairwise_euclidean(hypotheses=hypotheses, targets=hypotheses) @ weights.unsqueeze(-1)
    spread = weights.unsqueeze(-2) @ spread  # [..., 1, 1]
    return RealValues((to_target - spread / 2).reshape(real.shape), real)


def wasserstein_distances(
    predictions: Predictions, samples: Tensor, mask: Tensor | None, order: int, scores: ScoreObjective | None = None
) -> RealValues:
    """Return the Wasserstein distance between scored hypotheses and real samples, for each input."""
    owner = "wasserstein_to_samples"
    hypotheses, samples, chances, mask = compared(owner, predictions, samples, mask, scores, takes_steps=False)
    distance = pairwise_euclidean(hypotheses=hypotheses, targets=samples).detach() ** order
    shape = distance.shape[:-2]
    costs = distance.reshape(-1, *distance.shape[-2:]).cpu().double().numpy()
    masses = chances.detach().expand(*shape, -1).reshape(-1, costs.shape[-1])
    real = mask.reshape(-1, costs.shape[-2]).cpu().numpy()
    values = np.full(len(costs), np.nan)
    for index, (cost, mass, rows) in enumerate(zip(costs, masses.cpu().double().numpy(), real, strict=True)):
        if rows.any() and np.isfinite(cost[rows]).all():
            plan = transport_plan(cost[rows], np.full(rows.sum(), 1 / rows.sum()), mass / mass.sum())
            values[index] = (plan * cost[rows]).sum() ** (1 / order)
    return RealValues(torch.from_numpy(values).to(distance).reshape(shape), mask.any(dim=-1))


def calibration_bins(owner: str, predictions: Predictions, matching: Matching, n_bins: int) -> Tensor:
    """Return for each score bin (number of scores, sum of scores, number of wins), [bins, 3]."""
    if predictions.score_logits is None:
        raise ValueError(bad_value(owner, "predictions", "have score logits", "none", "Use scores=True."))
    scores = predictions.score_logits.detach().sigmoid().unsqueeze(-2).expand_as(matching.weights)
    wins = WTA()(matching.cost, matching.mask)
    counts = matching.mask.unsqueeze(-1).expand_as(wins).to(wins.dtype)
    rows = torch.stack([counts, counts * scores, wins], dim=-1).reshape(-1, 3)
    index = (scores * n_bins).long().clamp(0, n_bins - 1).reshape(-1)
    return torch.zeros(n_bins, 3, dtype=rows.dtype, device=rows.device).index_add(0, index, rows)


def calibration_error(bins: Tensor) -> Tensor:
    """Return the mean |score - frequency of winning| over bins, weighted by their size."""
    n, score_sum, n_wins = bins.unbind(dim=-1)
    return (score_sum - n_wins).abs().sum() / n.sum()
