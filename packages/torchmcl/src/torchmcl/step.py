"""The training step: batch -> predictions -> cost -> matching -> loss. It defines the results of all backends."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import check_boolean, check_finite, check_mask, check_non_negative, check_sample_weights
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.costs.declared import call_cost, with_targets_axis
from torchmcl.dispatch import debug_checks_enabled, faster
from torchmcl.errors import bad_value
from torchmcl.losses import matched, mean_loss, pair_losses
from torchmcl.rules.winners import AssignmentRule, SceneWinners, check_rule
from torchmcl.scoring import QualityScores, ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Batch, Distributions, Predictions, StepOutput, as_batch

__all__ = ["StepProblem", "mcl_step", "step_output"]

_SIGMOID_SCORES = SigmoidScores()
_EXAMPLES = {
    "model": "MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3)",
    "cost_fn": "torchmcl.pairwise_sq_euclidean",
    "loss_fn": "torchmcl.pairwise_laplace_nll",
}


class StepProblem(NamedTuple):
    """A step after the call of the model: the checked arguments of `mcl_step`, with the axes that costs require.

    Attributes:
        predictions: Output of the model.
        batch: Batch with an axis of targets, and with 0 in place of padded targets and steps.
        rule, cost_fn, scores, score_weight, loss_fn, stacked, sample_weights: Arguments of `mcl_step`.
        mask: Valid targets, [..., targets], or None.
        steps: Valid steps of each target, [..., targets, steps], or None.
        event_dims: Number of axes of one hypothesis.
    """

    predictions: Predictions | Distributions
    batch: Batch
    rule: AssignmentRule
    cost_fn: Callable[..., Tensor]
    scores: ScoreObjective
    score_weight: float
    loss_fn: Callable[..., Tensor] | None = None
    mask: Tensor | None = None
    steps: Tensor | None = None
    stacked: bool = False
    sample_weights: Tensor | None = None
    event_dims: int = 1


def mcl_step(
    model: Callable[..., Predictions | Distributions],
    batch: Batch,
    rule: AssignmentRule,
    *,
    cost_fn: Callable[..., Tensor] = pairwise_sq_euclidean,
    loss_fn: Callable[..., Tensor] | None = None,
    scores: ScoreObjective = _SIGMOID_SCORES,
    score_weight: float = 1.0,
    stacked: bool = False,
    sample_weights: Tensor | None = None,
) -> StepOutput:
    """Compute the loss of a batch and all intermediate results.

    Args:
        model: Function of `batch.inputs` that returns `Predictions` or `Distributions`.
        batch: Inputs, targets, mask and scene, or the output of a loader, see `torchmcl.types.as_batch`; the contents
            of padded targets and steps are ignored. With one target per sample the axis of the targets may be omitted:
            [batch, dim], [batch, steps, dim], or class ids [batch]. A mask with an axis of steps is passed to the
            costs. Missing targets need a mask: a NaN that is not masked gives a NaN loss, and an error inside
            `debug_checks`. Samples of the same `scene` share their winners, see `SceneWinners`.
        rule: Assignment rule; for an annealed one, `rule(step)`, or `scheduler.rule` of a `RuleScheduler`.
        cost_fn: Matched cost, the input of the rule: any `pairwise_*` function, `Pairwise(fn)`, or a function of
            `hypotheses` and `targets`, which always have an axis of targets here. The function also receives `mask`,
            `scale`, `score_logits` and `event_dims` (number of axes of one hypothesis) if it has parameters of these
            names.
        loss_fn: Trained cost, which the weights of the rule multiply; the matched cost by default. For example,
            `pairwise_laplace_nll` with the `cost_fn` `pairwise_ade`.
        scores: Score objective; `SoftmaxScores()` for a softmax over the hypotheses. Its rule defines the labels:
            `SigmoidScores(PIT())` for one-to-one assignments.
        score_weight: Weight of the score loss, which is not computed if it is 0 or if there are no score logits.
        stacked: Whether all tensors have a leading axis of independent models; the losses are then [models].
        sample_weights: Weights of the samples with mean 1, [batch]; None for equal weights.

    Returns:
        Losses, matching and predictions; call `.loss.backward()`. The matching contains the matched cost.

    Raises:
        TypeError: If the model does not return `Predictions`.

    Example:
        >>> import torch
        >>> from torchmcl import AnnealedWTA, Batch, MultiHypothesisMLP
        >>> model = MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3)
        >>> batch = Batch(inputs=torch.randn(8, 2), targets=torch.randn(8, 1, 1))
        >>> output = mcl_step(model, batch, AnnealedWTA(temperature=0.5))
        >>> output.loss.backward()
        >>> output.matching.weights.shape
        torch.Size([8, 1, 3])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equations (4) and (6).
    """
    if not (callable(model) and callable(cost_fn) and (loss_fn is None or callable(loss_fn))):
        _check_functions(model=model, cost_fn=cost_fn, loss_fn=loss_fn)
    check_rule("mcl_step", rule)
    check_score_objective("mcl_step", scores)
    if not (isinstance(score_weight, float | int) and 0 <= score_weight < math.inf):
        check_non_negative("mcl_step", "score_weight", score_weight)
    batch = batch if isinstance(batch, Batch) else as_batch(batch)
    predictions = model(batch.inputs)
    if not isinstance(predictions, Predictions | Distributions):
        advice = "End it with a MultiHypothesisHead, or return torchmcl.Predictions(hypotheses, score_logits)."
        raise TypeError(bad_value("mcl_step", "model", "return Predictions", type(predictions).__name__, advice))
    if batch.mask is not None and (not isinstance(batch.mask, Tensor) or batch.mask.dtype != torch.bool):
        check_boolean("mcl_step", "mask", batch.mask)
    event_dims = predictions.hypotheses.ndim - 2 - stacked
    targets, mask = with_targets_axis("mcl_step", batch, predictions.hypotheses, cost_fn, event_dims)
    targets, mask, steps = _real_parts(targets, mask, 2 + stacked)
    if sample_weights is not None:  # a column of weights would broadcast to all pairs of samples
        check_sample_weights("mcl_step", sample_weights, targets.shape[: 1 + stacked])
    if debug_checks_enabled():
        check_finite("mcl_step", "targets", targets, advice="Mark targets that are missing in the mask.")
    problem = StepProblem(
        predictions,
        Batch(batch.inputs, targets, mask if steps is None else steps, batch.scene),
        rule,
        cost_fn,
        scores,
        score_weight,
        loss_fn,
        mask,
        steps,
        stacked,
        sample_weights,
        event_dims,
    )
    output = faster("step", problem)
    return step_output(problem) if output is NotImplemented else output


def step_output(problem: StepProblem) -> StepOutput:
    """Compute matching, assignment loss and score loss in plain torch: the definition of every faster step."""
    predictions, batch, rule, cost_fn, scores, score_weight, loss_fn, mask, _, stacked, sample_weights, _ = problem
    if loss_fn is None:
        cost = _cost(problem, "cost_fn", cost_fn)
    else:
        with torch.no_grad():
            cost = _cost(problem, "cost_fn", cost_fn)
    _check_matched(cost, problem)
    if batch.scene is not None:
        rule = SceneWinners(rule, batch.scene)
        scores = scores if scores.rule is None else replace(scores, rule=SceneWinners(scores.rule, batch.scene))
    if debug_checks_enabled():
        check_finite("mcl_step", "cost", cost, None if mask is None else mask.unsqueeze(-1))
    matching = matched(cost, rule, mask)
    mask = matching.mask if cost.shape[-2] == 0 else mask  # there is no valid target, even without a mask
    trained = None if loss_fn is None else _cost(problem, "loss_fn", loss_fn)
    assignment_loss = mean_loss(pair_losses(matching, trained, sample_weights), mask, int(stacked))
    logits = predictions.score_logits
    if logits is None or score_weight == 0:
        return StepOutput(assignment_loss, assignment_loss, None, matching, predictions, batch)
    if isinstance(scores, QualityScores) and scores.cost_fn is not None:
        with torch.no_grad():
            cost = _cost(problem, "scores.cost_fn", scores.cost_fn)
    labels = scores.labels(cost, matching.weights, mask)
    score_loss = scores.loss(logits, labels, mask, model_axes=int(stacked), sample_weights=sample_weights)
    loss = assignment_loss + (score_loss if score_weight == 1 else score_weight * score_loss)
    return StepOutput(loss, assignment_loss, score_loss, matching, predictions, batch)


def _check_functions(**functions: object) -> None:
    for argument, value in functions.items():
        if not callable(value):
            advice = f"For example {_EXAMPLES[argument]}."
            raise TypeError(bad_value("mcl_step", argument, "be callable", repr(value), advice))


def _cost(problem: StepProblem, argument: str, function: Callable[..., Tensor]) -> Tensor:
    predictions, batch, steps = problem.predictions, problem.batch, problem.steps
    return call_cost("mcl_step", argument, function, predictions, batch.targets, steps, problem.event_dims)


def _check_matched(cost: Tensor, problem: StepProblem) -> None:
    """Check the shape of the matched cost against scores and mask."""
    mask, logits, score_weight = problem.mask, problem.predictions.score_logits, problem.score_weight
    if score_weight != 0 and logits is not None and cost.shape[-1] != logits.shape[-1]:
        advice = "The cost takes all hypotheses together and trains their scores itself."
        raise ValueError(bad_value("mcl_step", "score_weight", "be 0 with this `cost_fn`", repr(score_weight), advice))
    if mask is not None and mask.shape != cost.shape[:-1]:
        shape = f"have shape {tuple(cost.shape[:-1])} ([batch, targets])"
        raise ValueError(bad_value("mcl_step", "mask", shape, tuple(mask.shape)))


def _real_parts(targets: Tensor, mask: Tensor | None, target_axes: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the targets with 0 for padding, the mask of targets, and the mask of their steps if there is one.

    Padding of targets (NaN, -100) must not reach the cost, because it would enter the gradient.
    """
    if mask is None:
        return targets, None, None
    shape = targets.shape[: mask.ndim]
    if mask.shape != shape:
        check_mask("mcl_step", mask, shape)
        mask = mask.expand(shape)
    targets = targets.masked_fill(~mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim)), 0)
    if mask.ndim <= target_axes:
        return targets, mask, None
    return targets, mask.flatten(target_axes).any(dim=-1), mask
