"""Preparation of the metrics of predictions: the axes of hypotheses, targets and events, and the mask."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_boolean, check_leading_axes, check_mask, check_tensor
from torchmcl._eager import broadcast_shapes
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Distributions, Predictions

__all__ = ["Compared", "compared"]


class Compared(NamedTuple):
    """Hypotheses and targets as vectors: a path is one event, compared as a whole.

    Attributes:
        hypotheses: [..., hypotheses, numbers]
        targets: [..., targets, numbers]
        chances: [..., hypotheses], normalized scores, uniform without scores.
        real: [..., targets], True where a target counts.

    With a mask of steps each target has hypotheses of its own, 0 where it is padded: [..., targets, hypotheses,
    numbers], [..., targets, 1, numbers] and [..., 1, hypotheses]; `real` stays [..., targets].
    """

    hypotheses: Tensor
    targets: Tensor
    chances: Tensor
    real: Tensor


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
        targets: [..., targets, *event]; a single target for each sample may lack the axis of the targets.
        mask: [..., targets], or [..., targets, steps] with the first axes of an event; or None.
        scores: how score logits are read; `SigmoidScores()` by default.
        takes_steps: whether the mask may have axes of the event.
    """
    if not isinstance(predictions, Predictions | Distributions):
        raise TypeError(bad_value(owner, "predictions", "be Predictions", type(predictions).__name__))
    hypotheses, logits = predictions.hypotheses, predictions.score_logits
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets)
    if mask is not None:
        check_boolean(owner, "mask", mask)
    n = min(hypotheses.ndim - 2, 1) if logits is None else logits.ndim - 1  # leading axes
    targets, mask, shape = _with_all_axes(owner, hypotheses, targets, mask, n)
    chances = _chances(owner, hypotheses, logits, n, scores)
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
    """Return the real steps of both tensors, with 0 at masked steps."""
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
