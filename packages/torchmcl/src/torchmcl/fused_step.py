"""Which steps a single kernel computes: the commonest one, of a batch with one target for each sample."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import debug_checks_enabled
from torchmcl.accel import usable
from torchmcl.accel.native import one_target
from torchmcl.costs.declared import Norm, declaration
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA
from torchmcl.scoring import ScoreObjective, SigmoidScores
from torchmcl.types import Distributions, Matching, Predictions, StepOutput

__all__ = ["fused_step"]


def fused_step(
    predictions: Predictions | Distributions,
    targets: Tensor,
    rule: AssignmentRule,
    cost_fn: Callable[..., Tensor],
    scores: ScoreObjective,
    score_weight: float,
) -> StepOutput | None:
    """Return what `mcl_step` defines for targets that are all real and count equally; None where no kernel serves.

    It serves the squared Euclidean cost in float32, on a GPU with Triton or on the CPU in C, with `WTA`, `RelaxedWTA`
    and `AnnealedWTA` of plain numbers, and the default scores.
    """
    hypotheses, logits = predictions.hypotheses, predictions.score_logits if score_weight != 0 else None
    numbers = _numbers_of(rule)
    if declaration(cost_fn).formula != Norm(order=2, power=2) or numbers is None or debug_checks_enabled():
        return None
    if isinstance(score_weight, Tensor):
        return None
    if hypotheses.ndim != 3 or targets.shape != (len(hypotheses), 1, hypotheses.shape[-1]):
        return None
    if logits is not None and (
        type(scores) is not SigmoidScores or type(scores.rule) is not WTA or logits.shape != hypotheses.shape[:-1]
    ):
        return None
    kernel = _kernel_for(hypotheses, targets, *([] if logits is None else [logits]))
    result = NotImplemented if kernel is None else kernel(hypotheses, targets, logits, *numbers)
    if result is NotImplemented:
        return None
    cost, weights, assignment_loss, score_loss = result
    matching = Matching(cost, weights, torch.ones(cost.shape[:-1], dtype=torch.bool, device=cost.device))
    if score_loss is None:
        return StepOutput(assignment_loss, assignment_loss, None, matching, predictions, targets)
    loss = torch.add(assignment_loss, score_loss, alpha=score_weight)
    return StepOutput(loss, assignment_loss, score_loss, matching, predictions, targets)


def _kernel_for(*tensors: Tensor) -> Callable[..., Any] | None:
    """Return what computes the step on the device of these tensors in the present mode, if anything does."""
    if usable(*tensors):
        from torchmcl.accel.triton.one_target import one_target_losses

        return one_target_losses
    return one_target.one_target_losses if one_target.serves(*tensors) else None


def _numbers_of(rule: AssignmentRule) -> tuple[float, float] | None:
    """Return temperature and epsilon of a rule that has no more than these as plain numbers."""
    if type(rule) is WTA:
        return 0.0, 0.0
    if type(rule) is RelaxedWTA and not isinstance(rule.epsilon, Tensor):
        return 0.0, float(rule.epsilon)
    if type(rule) is AnnealedWTA and not isinstance(rule.temperature, Tensor) and rule.temperature < math.inf:
        return float(rule.temperature), 0.0
    return None
