"""The most common step in one kernel: one target per sample, the squared distance, and the default scores."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl._checks import debug_checks_enabled
from torchmcl.accel import Way, triton, usable
from torchmcl.accel.native import extension, one_target
from torchmcl.costs.declared import Norm, declaration
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA
from torchmcl.scoring import ScoreObjective, SigmoidScores
from torchmcl.types import Distributions, Matching, Predictions, StepOutput

_SQUARED_DISTANCE = Norm(order=2, power=2)


class StepProblem(NamedTuple):
    """A step after the call of the model: the checked arguments of `mcl_step`, with the axes that costs require.

    Attributes:
        targets: [..., targets, *event], 0 where padded.
        mask: [..., targets], or None.
        steps: [..., targets, steps], the real steps of each target, or None.
    """

    predictions: Predictions | Distributions
    targets: Tensor
    rule: AssignmentRule
    cost_fn: Callable[..., Tensor]
    scores: ScoreObjective
    score_weight: float
    loss_fn: Callable[..., Tensor] | None = None
    mask: Tensor | None = None
    steps: Tensor | None = None
    scene: Tensor | None = None
    stacked: bool = False
    sample_weights: Tensor | None = None

    @property
    def event_dims(self) -> int:
        """Axes of one hypothesis."""
        return self.predictions.hypotheses.ndim - 2 - self.stacked


def _tensors(problem: StepProblem) -> list[Tensor]:
    """Return hypotheses, targets and, if the scores are trained, their logits."""
    hypotheses, logits = problem.predictions.hypotheses, problem.predictions.score_logits
    if logits is None or (not isinstance(problem.score_weight, Tensor) and problem.score_weight == 0):
        return [hypotheses, problem.targets]
    return [hypotheses, problem.targets, logits]


def _fused(kernel: Callable[..., Any], problem: StepProblem) -> StepOutput:
    """Return the step computed by a kernel; NotImplemented for other steps."""
    numbers = _numbers_of(problem.rule)
    if numbers is None or not _is_common(problem):
        return NotImplemented
    hypotheses, targets, *scored = _tensors(problem)
    result = kernel(hypotheses, targets, scored[0] if scored else None, *numbers)
    if result is NotImplemented:
        return NotImplemented
    cost, weights, assignment_loss, score_loss = result
    matching = Matching(cost, weights, torch.ones(cost.shape[:-1], dtype=torch.bool, device=cost.device))
    loss = assignment_loss
    if score_loss is not None:
        loss = torch.add(assignment_loss, score_loss, alpha=problem.score_weight)
    return StepOutput(loss, assignment_loss, score_loss, matching, problem.predictions, targets)


def _is_common(problem: StepProblem) -> bool:
    """Return whether all targets are real, single and equally weighted, with the cost and scores of the kernels."""
    hypotheses, targets, *scored = _tensors(problem)
    special = (problem.mask, problem.scene, problem.sample_weights, problem.loss_fn)
    if problem.stacked or debug_checks_enabled() or any(part is not None for part in special):
        return False
    if hypotheses.ndim != 3 or targets.shape != (len(hypotheses), 1, hypotheses.shape[-1]):
        return False
    if isinstance(problem.score_weight, Tensor) or declaration(problem.cost_fn).formula != _SQUARED_DISTANCE:
        return False
    scores = problem.scores
    usual = type(scores) is SigmoidScores and type(scores.rule) is WTA
    return not scored or (usual and scored[0].shape == hypotheses.shape[:-1])


def _numbers_of(rule: AssignmentRule) -> tuple[float, float] | None:
    """Return temperature and epsilon of a rule with only these fields, as plain numbers."""
    if type(rule) is WTA:
        return 0.0, 0.0
    if type(rule) is RelaxedWTA and not isinstance(rule.epsilon, Tensor):
        return 0.0, float(rule.epsilon)
    if type(rule) is AnnealedWTA and not isinstance(rule.temperature, Tensor) and rule.temperature < math.inf:
        return float(rule.temperature), 0.0
    return None


IN_TRITON = Way(lambda problem: usable(*_tensors(problem)), functools.partial(_fused, triton.one_target_losses))
IN_C = Way(
    lambda problem: extension.serves(*_tensors(problem)), functools.partial(_fused, one_target.one_target_losses)
)
