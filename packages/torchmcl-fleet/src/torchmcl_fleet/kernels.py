"""Functions for the slots of `torchmcl.dispatch`, in C for CPUs and in Triton for GPUs."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchmcl import WTA, AnnealedWTA, AssignmentRule, Matching, RelaxedWTA, SigmoidScores, StepOutput, costs, dispatch
from torchmcl.step import StepProblem
from torchmcl_fleet import gpu, native
from torchmcl_fleet.native import line, one_target

__all__ = ["SLOTS", "assignment", "description", "step", "univariate"]

_SQUARED_DISTANCE = costs.NormFormula(order=2, power=2)


def step_tensors(problem: StepProblem) -> list[Tensor]:
    """Return hypotheses, targets and, if the scores are trained, their logits."""
    hypotheses, logits = problem.predictions.hypotheses, problem.predictions.score_logits
    if logits is None or (not isinstance(problem.score_weight, Tensor) and problem.score_weight == 0):
        return [hypotheses, problem.batch.targets]
    return [hypotheses, problem.batch.targets, logits]


def fused_step(kernel: Callable[..., Any], problem: StepProblem) -> StepOutput:
    """Return the output of a step computed by a kernel; NotImplemented for steps that it does not support."""
    numbers = _numbers_of(problem.rule)
    if numbers is None or not _is_common(problem):
        return NotImplemented
    hypotheses, targets, *scored = step_tensors(problem)
    result = kernel(hypotheses, targets, scored[0] if scored else None, *numbers)
    if result is NotImplemented:
        return NotImplemented
    cost, weights, assignment_loss, score_loss = result
    matching = Matching(cost, weights, cost.new_ones(cost.shape[:-1], dtype=torch.bool))
    loss = assignment_loss
    if score_loss is not None:
        loss = torch.add(assignment_loss, score_loss, alpha=problem.score_weight)
    return StepOutput(loss, assignment_loss, score_loss, matching, problem.predictions, problem.batch)


def _is_common(problem: StepProblem) -> bool:
    """Return whether a step has one real target of equal weight per sample, and the cost and scores of the kernels."""
    hypotheses, targets, *scored = step_tensors(problem)
    if problem.batch.scene is not None or problem.sample_weights is not None or dispatch.debug_checks_enabled():
        return False
    if hypotheses.ndim != 3 or targets.shape != (len(hypotheses), 1, hypotheses.shape[-1]):
        return False
    if isinstance(problem.score_weight, Tensor) or costs.cost_declaration(problem.cost_fn).formula != _SQUARED_DISTANCE:
        return False
    scores = problem.scores
    usual = type(scores) is SigmoidScores and type(scores.rule) is WTA
    return not scored or (usual and scored[0].shape == hypotheses.shape[:-1])


def _numbers_of(rule: AssignmentRule) -> tuple[float, float] | None:
    """Return temperature and epsilon of a rule as Python numbers; None for rules with other fields or tensors."""
    if type(rule) is WTA:
        return 0.0, 0.0
    if type(rule) is RelaxedWTA and not isinstance(rule.epsilon, Tensor):
        return 0.0, float(rule.epsilon)
    if type(rule) is AnnealedWTA and not isinstance(rule.temperature, Tensor) and rule.temperature < math.inf:
        return float(rule.temperature), 0.0
    return None


def step(problem: StepProblem) -> StepOutput:
    """Compute the most common step in one kernel: one target per sample, the squared distance, the default scores.

    Returns:
        Output of the step; `NotImplemented` for other steps, dtypes and devices.
    """
    if problem.mask is not None or problem.loss_fn is not None or problem.stacked:
        return NotImplemented
    tensors = step_tensors(problem)
    if gpu.supports(*tensors):
        from torchmcl_fleet.gpu.one_target import one_target_losses

        return fused_step(one_target_losses, problem)
    if native.supports(*tensors):
        return fused_step(one_target.one_target_losses, problem)
    return NotImplemented


def assignment(cost: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the weights of the cheapest one-to-one assignments on a GPU, without waiting for the device.

    Args:
        cost: Cost, [..., targets, hypotheses], in float32 or float64.
        mask: Mask of real targets, [..., targets]; None if all are real.

    Returns:
        Weights, [..., targets, hypotheses]; `NotImplemented` on CPUs, without Triton and for more than 2048 targets or
        hypotheses.
    """
    if not cost.is_cuda or not dispatch.has_triton():
        return NotImplemented
    from torchmcl_fleet.gpu.augmenting import MAX_SIDE, one_to_one_rows

    if max(cost.shape[-2:]) > MAX_SIDE:
        return NotImplemented
    flat = cost.reshape(-1, *cost.shape[-2:])
    return one_to_one_rows(flat, None if mask is None else mask.reshape(flat.shape[:-1])).view(cost.shape)


def univariate(centers: Tensor, weights: Tensor, widths: Tensor) -> line.Mixtures:
    """Return mixtures of normals on a line, [rows, kernels] each, whose sets and points are computed in C.

    Returns:
        Mixtures; `NotImplemented` without the extension, and for tensors that require gradients, are not on a CPU, or
        are neither float32 nor float64.
    """
    return line.Mixtures(centers, weights, widths) if line.supports(centers, weights, widths) else NotImplemented


def description() -> str:
    """Return the instruction set of the extension in C."""
    return native.instruction_set() or "not available: built without a C compiler, or a processor without AVX2"


SLOTS = {"step": step, "assignment": assignment, "univariate": univariate}
