"""The main path: batch -> predictions -> cost -> matching -> loss. It defines what the fast backends compute."""

from collections.abc import Callable

from torch import Tensor

from torchmcl._checks import bad_value, check_boolean, check_callable, check_mask, check_non_negative
from torchmcl.assignment import AssignmentRule
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.losses import match, mcl_loss
from torchmcl.scoring import score_loss, score_targets
from torchmcl.training.batches import as_batch, with_targets_axis
from torchmcl.types import Batch, Predictions, StepOutput

__all__ = ["mcl_step"]


def mcl_step(
    model: Callable[..., Predictions],
    batch: Batch,
    rule: AssignmentRule,
    *,
    cost_fn: Callable[..., Tensor] = pairwise_sq_euclidean,
    score_weight: float = 1.0,
    score_rule: AssignmentRule | None = None,
    stacked: bool = False,
    sample_weights: Tensor | None = None,
) -> StepOutput:
    """Return the loss of a batch and everything that was computed on the way.

    Args:
        model: takes `batch.inputs`, returns `Predictions`.
        batch: inputs, targets and mask, or what a loader yields, see `torchmcl.training.as_batch`; the contents of
            padded targets are ignored. Of one target per sample without a mask, the axis of the targets may be
            missing: [batch, dim], or class ids [batch].
        rule: an assignment rule; of an annealed one, `rule(step)`, or `scheduler.rule` of a `RuleScheduler`.
        cost_fn: any `pairwise_*` function or `pairwise(fn)`.
        score_weight: weight of the score loss; it is not computed at 0 or without score logits.
        score_rule: the hard rule behind the score labels; `WTA()` by default, `PIT()` for one-to-one.
        stacked: everything has a leading axis of independent models, and so have the losses, [models].
        sample_weights: [batch], how much each sample counts, with mean 1; None when all count equally.

    Returns:
        StepOutput; call `.loss.backward()`.

    Raises:
        TypeError: if the model does not return `Predictions`.

    Example:
        >>> import torch
        >>> from torchmcl import AnnealedWTA, Batch, MultiHypothesisMLP
        >>> model = MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3)
        >>> batch = Batch(inputs=torch.randn(8, 2), targets=torch.randn(8, 1, 1))
        >>> output = mcl_step(model, batch, AnnealedWTA(temperature=0.5))
        >>> output.loss.backward()
        >>> output.matching.weights.shape
        torch.Size([8, 1, 3])

    Reference:
        Eq. (6) plus Eq. (4).
    """
    check_callable("mcl_step", "model", model, "MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3)")
    check_non_negative("mcl_step", "score_weight", score_weight)
    batch = as_batch(batch)
    predictions = model(batch.inputs)
    if not isinstance(predictions, Predictions):
        advice = "End it with a MultiHypothesisHead, or return torchmcl.Predictions(hypotheses, score_logits)."
        raise TypeError(bad_value("mcl_step", "model", "return Predictions", type(predictions).__name__, advice))
    mask = batch.mask
    targets = with_targets_axis("mcl_step", batch, predictions.hypotheses, cost_fn)
    if mask is not None:
        # Whatever pads the targets (NaN, -100) must not reach the cost, whose gradient would carry it on.
        check_boolean("mcl_step", "mask", mask)
        check_mask("mcl_step", mask, targets.shape[: mask.ndim])
        targets = targets.masked_fill(~mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim)), 0)
    cost = cost_fn(hypotheses=predictions.hypotheses, targets=targets)
    if mask is not None and mask.shape != cost.shape[:-1]:
        shape = f"have shape {tuple(cost.shape[:-1])} ([batch, targets])"
        raise ValueError(bad_value("mcl_step", "mask", shape, tuple(mask.shape)))
    matching = match(cost, rule, mask)
    assignment_loss = mcl_loss(matching, model_axes=int(stacked), sample_weights=sample_weights)
    if predictions.score_logits is None or score_weight == 0:
        return StepOutput(assignment_loss, assignment_loss, None, matching, predictions)
    labels = score_targets(cost, mask, score_rule)
    logits = predictions.score_logits
    scores = score_loss(logits, labels, mask, model_axes=int(stacked), sample_weights=sample_weights)
    loss = assignment_loss + (scores if score_weight == 1 else score_weight * scores)
    return StepOutput(loss, assignment_loss, scores, matching, predictions)
