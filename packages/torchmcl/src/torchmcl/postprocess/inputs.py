"""Checked inputs of `torchmcl.postprocess`: hypotheses with probabilities, targets, and costs of any events."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchmcl.checks import check_boolean, check_callable, check_sample_weights, check_shape, check_tensor
from torchmcl.costs.declared import check_takes_mask, cost_declaration, needs
from torchmcl.errors import bad_value
from torchmcl.scoring import ScoreObjective, SigmoidScores
from torchmcl.types import Distributions, check_predictions

__all__ = [
    "CostFn",
    "Scores",
    "WeightedHypotheses",
    "as_tensor",
    "finite_tensor",
    "pair_cost",
    "probabilities_of",
    "real_targets",
    "row_weights",
    "warn_unless_sigmoid",
    "weighted_hypotheses",
]

CostFn: TypeAlias = Callable[..., Tensor]
#: Objective of the score logits, or the probabilities themselves [rows, hypotheses].
Scores: TypeAlias = ScoreObjective | Tensor

# Rounding error of a sum of a few hundred probabilities in single precision.
_SUM_TOLERANCE = 1e-4
# Factor within which sums of sigmoids may differ from 1, because scores of new rows are not exactly calibrated.
_SIGMOID_SUM = 2.0


class WeightedHypotheses(NamedTuple):
    """Hypotheses with probabilities, the input of a `Nonconformity`.

    Attributes:
        hypotheses: Hypotheses, [rows, hypotheses, ...].
        probabilities: Probabilities, [rows, hypotheses], summing to 1.
        scale: Scales of hypotheses that are distributions; None otherwise.
    """

    hypotheses: Tensor
    probabilities: Tensor
    scale: Tensor | None = None


def as_tensor(owner: str, argument: str, value: Any) -> Tensor:
    """Convert an array or a list of numbers to a tensor."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(bad_value(owner, argument, "be a tensor or an array of numbers", repr(value)[:60])) from error


def finite_tensor(owner: str, argument: str, value: Any) -> Tensor:
    """Convert an array to a detached floating tensor, and check that it is finite."""
    value = as_tensor(owner, argument, value)
    check_tensor(owner, argument, value)
    value = value.detach()
    # One pass and no copy in the usual case: a finite sum implies finite terms.
    if not value.sum().isfinite() and not value.isfinite().all():
        index = tuple((~value.isfinite()).nonzero()[0].tolist())
        raise ValueError(
            bad_value(owner, argument, "be finite", f"{value[index].item()} at index {index}", "Leave the row out.")
        )
    return value


def weighted_hypotheses(owner: str, predictions: Any, scores: Scores | None) -> WeightedHypotheses:
    """Check predictions, and convert their scores to probabilities.

    Args:
        owner: Name of the caller, for messages.
        predictions: Predictions or distributions.
        scores: Objective of the score logits, or probabilities. None means `SigmoidScores()`, with a warning if the
            values look otherwise: predictions do not store how their scores were trained.

    Raises:
        TypeError: If `predictions` has another type.
        ValueError: For inconsistent shapes, NaN, or probabilities that do not sum to 1.
    """
    check_predictions(owner, "predictions", predictions)
    hypotheses = finite_tensor(owner, "predictions.hypotheses", predictions.hypotheses)
    if hypotheses.ndim < 3 or 0 in hypotheses.shape[1:]:
        rule = "have shape [rows, hypotheses, ...] with at least one hypothesis and one axis of an event"
        advice = "Scalars are events of length 1: hypotheses.unsqueeze(-1)."
        raise ValueError(bad_value(owner, "predictions.hypotheses", rule, tuple(hypotheses.shape), advice))
    hypotheses = hypotheses.to(torch.promote_types(hypotheses.dtype, torch.float32))
    objective = SigmoidScores() if scores is None else scores
    probabilities = probabilities_of(owner, predictions.score_logits, objective, hypotheses)
    if scores is None and predictions.score_logits is not None:
        warn_unless_sigmoid(owner, as_tensor(owner, "predictions.score_logits", predictions.score_logits))
    scale = predictions.scale.detach() if isinstance(predictions, Distributions) else None
    return WeightedHypotheses(hypotheses, probabilities.to(hypotheses), scale)


def warn_unless_sigmoid(owner: str, logits: Tensor, stacklevel: int = 4) -> None:
    """Warn if sigmoids of score logits [rows, hypotheses] do not sum to about 1.

    `SigmoidScores` trains each sigmoid to the probability of winning, and exactly one hypothesis wins. The logits of a
    softmax have an arbitrary offset.
    """
    total = float(logits.detach().double().sigmoid().sum(dim=-1).mean())
    if logits.shape[-1] > 1 and not 1 / _SIGMOID_SUM < total < _SIGMOID_SUM:  # a single one always has probability 1
        message = (
            f"{owner}: the sigmoids of the score logits sum to {total:.2g} on average, not to 1 as with "
            "SigmoidScores(). Pass the objective of the training, scores=SoftmaxScores() for example; "
            "scores=SigmoidScores() suppresses this warning."
        )
        warnings.warn(message, UserWarning, stacklevel=stacklevel)


def probabilities_of(owner: str, score_logits: Any, scores: Scores, hypotheses: Tensor) -> Tensor:
    """Convert score logits to probabilities [rows, hypotheses], or check probabilities; equal without scores."""
    shape = hypotheses.shape[:2]
    if isinstance(scores, (str, type)):
        rule = "be a ScoreObjective or probabilities"
        raise TypeError(bad_value(owner, "scores", rule, repr(scores), "mcl.SoftmaxScores() for example."))
    if not isinstance(scores, ScoreObjective):
        probabilities = finite_tensor(owner, "scores", scores)
        check_shape(owner, "scores", probabilities, shape, "[rows, hypotheses]")
        sums = probabilities.sum(dim=-1)
        if probabilities.numel() and ((probabilities < 0).any() or ((sums - 1).abs() > _SUM_TOLERANCE).any()):
            worst = int((sums - 1).abs().argmax())
            rule = "be probabilities, >= 0 and summing to 1 over the hypotheses"
            advice = "Pass score logits in the Predictions; `scores` is then their objective."
            lowest, total = probabilities.min().item(), sums[worst].item()
            got = f"a smallest value of {lowest:.4g} and a sum of {total:.4g} in row {worst}"
            raise ValueError(bad_value(owner, "scores", rule, got, advice))
        return probabilities / sums.unsqueeze(-1)
    if score_logits is None:
        return hypotheses.new_full(shape, 1 / shape[1])
    logits = as_tensor(owner, "predictions.score_logits", score_logits)
    check_tensor(owner, "predictions.score_logits", logits)
    check_shape(owner, "predictions.score_logits", logits, shape, "[rows, hypotheses]")
    if logits.isnan().any():
        index = tuple(logits.isnan().nonzero()[0].tolist())
        raise ValueError(bad_value(owner, "predictions.score_logits", "be numbers", f"nan at index {index}"))
    probabilities = scores.probabilities(logits.detach())
    bad = probabilities.isnan().any(dim=-1)
    if bad.any():
        row = int(bad.nonzero()[0])
        rule = "have a finite logit in every row, and no infinite one"
        raise ValueError(bad_value(owner, "predictions.score_logits", rule, f"{logits[row].tolist()[:4]} in row {row}"))
    return probabilities


def row_weights(owner: str, sample_weights: Any, n_rows: int) -> Tensor:
    """Check weights, [rows]: finite, >= 0 and not all 0; return them in double precision."""
    weights = as_tensor(owner, "sample_weights", sample_weights)
    check_sample_weights(owner, weights, torch.Size((n_rows,)))
    weights = finite_tensor(owner, "sample_weights", weights.double()).expand(n_rows)
    if n_rows and ((weights < 0).any() or not weights.sum() > 0):
        got = f"{weights.min().item()} to {weights.max().item()}"
        raise ValueError(bad_value(owner, "sample_weights", "be >= 0, and not all 0", got))
    return weights


def pair_cost(owner: str, cost_fn: CostFn, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the cost [rows, targets, hypotheses] of events of any shape.

    Args:
        owner: Name of the caller, for messages.
        cost_fn: Any `pairwise_*` function.
        hypotheses: Hypotheses, [rows, hypotheses, *event].
        targets: Targets, [rows, targets, *event].
        mask: Valid steps of each target, [rows, targets, steps]; the cost must accept a mask.
    """
    check_callable(owner, "cost_fn", cost_fn, "torchmcl.pairwise_sq_euclidean")
    expected = (len(hypotheses), targets.shape[1], hypotheses.shape[1])
    if cost_declaration(cost_fn).event_dims == 1:  # all axes of an event, flattened
        hypotheses, targets = hypotheses.flatten(2), targets.flatten(2)
    extras: dict[str, Any] = {"event_dims": hypotheses.ndim - 2} if "event_dims" in needs(cost_fn) else {}
    if mask is not None:
        check_takes_mask(owner, "cost_fn", cost_fn)
        extras["mask"] = mask
    cost = cost_fn(hypotheses=hypotheses, targets=targets, **extras)
    if cost.shape != expected:
        rule = f"return costs of shape {expected} for hypotheses {tuple(hypotheses.shape)}"
        advice = "Costs of sequences, pairwise_ade for example, take [rows, hypotheses, steps, dim]."
        raise ValueError(bad_value(owner, "cost_fn", rule, tuple(cost.shape), advice))
    return cost.detach()


def real_targets(owner: str, targets: Any, mask: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
    """Check targets of the given shape and their mask [rows, steps]; masked steps may contain anything, even NaN."""
    targets = as_tensor(owner, "targets", targets)
    check_shape(owner, "targets", targets, shape, "[rows, ...], one target for each row")
    if mask is None:
        return finite_tensor(owner, "targets", targets), None
    mask = as_tensor(owner, "mask", mask).to(targets.device)
    check_boolean(owner, "mask", mask)
    check_shape(owner, "mask", mask, shape[:2], "[rows, steps]")
    if not mask.any(dim=1).all():
        row = int((~mask.any(dim=1)).nonzero()[0])
        rule = "have at least one valid step in each row"
        raise ValueError(bad_value(owner, "mask", rule, f"none in row {row}", "Leave out such rows."))
    padded = ~mask.view(*mask.shape, *[1] * (targets.ndim - 2))
    return finite_tensor(owner, "targets", targets.masked_fill(padded, 0)), mask
