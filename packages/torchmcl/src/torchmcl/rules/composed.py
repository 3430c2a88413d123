"""Rules made of other rules: thresholds, radii, parts of the hypotheses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.checks import Fraction, NonNegative, bad_value, check_non_negative_int
from torchmcl.rules.winners import AssignmentRule, check_rule, winner_weights
from torchmcl.types import Batch, Distributions, Predictions

__all__ = ["OutsideRadius", "Thresholded", "by_part", "factorized"]


@dataclass(frozen=True, eq=False)
class Thresholded(AssignmentRule):
    """A rule whose small weights are dropped; the remaining weights of a row are rescaled to sum to 1.

    With `torchmcl.two_pass.TwoPass`, hypotheses without weight are not differentiated. If g is the largest norm of the
    gradient of one hypothesis' cost, the gradient of a target changes by at most `2 * (n_hypotheses - 1) * threshold *
    g`: half of the bound is for the dropped weights, half for rescaling the rest.

    Args:
        rule: any assignment rule.
        threshold: in [0, 1]; weights below it are dropped. The largest weight of a row is always kept.

    Example:
        >>> from torchmcl import AnnealedWTA
        >>> Thresholded(AnnealedWTA(0.1), threshold=0.1)(torch.tensor([[0.3, 0.1, 0.2]]))
        tensor([[0.0000, 0.7311, 0.2689]])
    """

    rule: AssignmentRule
    threshold: Fraction

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_rule("Thresholded", self.rule)

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of the rule without the small ones, rescaled."""
        weights = self.rule(cost, mask)
        largest = winner_weights(-weights)
        kept = torch.where((weights < self.threshold) & (largest == 0), 0, weights)
        return kept / kept.sum(dim=-1, keepdim=True).masked_fill(kept.sum(dim=-1, keepdim=True) == 0, 1)


@dataclass(frozen=True, eq=False)
class OutsideRadius(AssignmentRule):
    """A rule applied to the hypotheses that are not yet close to a target, as in rejection-sampling IMLE.

    A hypothesis whose cost is below the radius for any real target of its sample is left out: those targets are
    covered, and the rest is trained by hypotheses that are not. If all hypotheses of a sample are left out, the rule is
    applied to all of them. `EMD` does not support it.

    Args:
        rule: any assignment rule; `WTA()` gives IMLE's nearest sample.
        radius: >= 0, in the units of the cost; 0 leaves nothing out.

    Example:
        >>> from torchmcl import WTA
        >>> OutsideRadius(WTA(), radius=0.2)(torch.tensor([[0.3, 0.1, 0.2], [0.5, 0.9, 0.8]]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])

    Reference:
        Vashist, Peng and Li, Rejection Sampling IMLE, 2024.
    """

    rule: AssignmentRule
    radius: NonNegative

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_rule("OutsideRadius", self.rule)

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of the rule among the hypotheses outside of the radius."""
        close = cost < self.radius
        if mask is not None:
            close = close & mask.unsqueeze(-1)
        close = close.any(dim=-2, keepdim=True)
        close = close & ~close.all(dim=-1, keepdim=True)
        return self.rule(cost.masked_fill(close, torch.inf), mask)


def by_part(
    predictions: Predictions | Distributions, batch: Batch, axis: int
) -> tuple[Predictions | Distributions, Batch]:
    """Return the predictions and the batch with each part of an event as a sample with its own winner.

    Pass them to `mcl_step` as `lambda inputs: predictions` and batch: costs, rules, scores, masks and metrics work
    unchanged. The axis remains, with length 1.

    Args:
        predictions: hypotheses [batch, hypotheses, ...]; score logits [batch, hypotheses], shared by the parts, or
            [batch, parts, hypotheses]; a scale in the shape of the hypotheses.
        batch: targets [batch, targets, ...] or [batch, ...]; a mask of targets or of their steps. Its inputs
            become None, because the model has already been called.
        axis: which axis of an event: 0 for the steps of [steps, channels], 1 for its channels.

    Returns:
        Hypotheses [batch * parts, hypotheses, ...], with length 1 at the axis, and the batch for them.

    Raises:
        ValueError: for an axis that an event lacks, or targets of a different shape.

    Example:
        >>> from torchmcl import WTA, mcl_step, pairwise_sq_ade
        >>> paths = torch.tensor([[[[0.0], [0.0]], [[1.0], [1.0]]]])  # [batch, hypotheses, steps, channels]
        >>> predictions, batch = by_part(Predictions(paths), Batch(paths, torch.tensor([[[0.0], [1.0]]])), axis=0)
        >>> mcl_step(lambda _: predictions, batch, WTA(), cost_fn=pairwise_sq_ade).loss  # 0.5 with one winner
        tensor(0.)
    """
    owner = "by_part"
    check_non_negative_int(owner, "axis", axis)
    hypotheses, logits = predictions.hypotheses, predictions.score_logits
    event = hypotheses.shape[2:]
    if axis >= len(event):
        raise ValueError(bad_value(owner, "axis", f"be below the number of axes of an event, {len(event)}", axis))
    targets, mask = batch.targets, batch.mask
    if targets.shape == (len(hypotheses), *event):
        targets = targets.unsqueeze(1)
        mask = mask.unsqueeze(1) if mask is not None and mask.shape[1:] == event[: mask.ndim - 1] else mask
    if targets.shape[2:] != event or len(targets) != len(hypotheses):
        rule = f"have shape [batch, targets, ...] for `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    n_parts = event[axis]
    moved = [_parted(tensor, axis) for tensor in (hypotheses, targets)]
    if mask is not None:
        mask = _parted(mask, axis) if mask.ndim > 2 + axis else mask.repeat_interleave(n_parts, dim=0)
    if logits is not None:
        logits = logits.repeat_interleave(n_parts, dim=0) if logits.ndim == 2 else logits.flatten(0, 1)
    scene = None if batch.scene is None else _scenes_of_parts(batch.scene, n_parts)
    parts = Batch(None, moved[1], mask, scene)  # type: ignore[arg-type]
    if isinstance(predictions, Distributions):
        scale = predictions.scale.expand(*hypotheses.shape[:-1], *predictions.scale.shape[hypotheses.ndim - 1 :])
        return Distributions(moved[0], logits, _parted(scale, axis)), parts
    return Predictions(moved[0], logits), parts


def _parted(tensor: Tensor, axis: int) -> Tensor:
    """Return [batch, n, ...] as [batch * parts, n, ...] with length 1 at an axis of the event."""
    return tensor.movedim(2 + axis, 1).flatten(0, 1).unsqueeze(2 + axis)


def _scenes_of_parts(scene: Tensor, n_parts: int) -> Tensor:
    """Return a separate scene index for each part of each scene."""
    part = torch.arange(n_parts, device=scene.device)
    return (scene.unsqueeze(-1) * n_parts + part).flatten()


def factorized(first: Predictions, second: Predictions) -> Predictions:
    """Return all sums of a hypothesis from each of two sets: N trends and M seasons give N * M hypotheses.

    The winner of a target trains one trend and one season. Score logits are added, so that the scores of the parts are
    independent; replace them for scores of all pairs.

    Args:
        first: hypotheses [batch, N, ...], with or without score logits.
        second: hypotheses [batch, M, ...].

    Returns:
        Predictions with hypotheses [batch, N * M, ...]; hypothesis n * M + m is the sum of n and m.

    Example:
        >>> trends, seasons = Predictions(torch.tensor([[[0.0], [10.0]]])), Predictions(torch.tensor([[[1.0], [2.0]]]))
        >>> factorized(trends, seasons).hypotheses.flatten()
        tensor([ 1.,  2., 11., 12.])
    """
    a, b = first.hypotheses, second.hypotheses
    if a.ndim < 3 or a.shape[:1] != b.shape[:1] or a.shape[2:] != b.shape[2:]:
        rule = f"have the batch and the event of `first` {tuple(a.shape)}"
        raise ValueError(bad_value("factorized", "second", rule, tuple(b.shape)))
    if (first.score_logits is None) != (second.score_logits is None):
        raise ValueError(bad_value("factorized", "score_logits", "be given for both or for none", "one"))
    logits = None
    if first.score_logits is not None and second.score_logits is not None:
        both = first.score_logits.log_softmax(dim=-1).unsqueeze(2) + second.score_logits.log_softmax(dim=-1).unsqueeze(
            1
        )
        logits = both.flatten(1)
    return Predictions((a.unsqueeze(2) + b.unsqueeze(1)).flatten(1, 2), logits)
