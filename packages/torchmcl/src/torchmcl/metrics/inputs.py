"""Checked inputs of metrics with named axes, and the decorator that turns sums into metrics."""

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from torchmcl.checks import check_leading_axes, check_mask, check_tensor
from torchmcl.dispatch import broadcast_shapes, full_precision
from torchmcl.errors import bad_value
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Distributions, Predictions, check_predictions

__all__ = ["Events", "MetricFunction", "Sums", "Vectors", "events", "masked_sums", "metric"]

P = ParamSpec("P")
P_co = TypeVar("P_co", covariant=True)


class Sums(NamedTuple):
    """Sum of the values of a batch and their number; both can be added up over batches and processes."""

    total: Tensor
    n: Tensor

    def mean(self) -> Tensor:
        """Return the mean, NaN without any value."""
        return self.total / self.n

    def root_mean(self) -> Tensor:
        """Return the root of the mean."""
        return self.mean().sqrt()


class MetricFunction(Protocol[P]):
    """Function that returns a metric; `torchmcl.metrics.Metric` adds up its sums over batches.

    Attributes:
        sums: Function of the same arguments that returns the sums of a batch.
        result: Function that computes the metric from the sums.
    """

    __name__: str
    sums: Callable[..., Sums]
    result: Callable[[Sums], Tensor]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        """Return the metric of one batch."""
        ...


def metric(result: Callable[[Sums], Tensor] = Sums.mean) -> Callable[[Callable[P, Sums]], MetricFunction[P]]:
    """Turn a function that returns sums into one that returns the metric, not rounded by autocast.

    Args:
        result: Function that computes the metric from the sums.

    Returns:
        Decorator. The sums and `result` remain attributes of the decorated function.
    """

    def decorate(function: Callable[P, Sums]) -> MetricFunction[P]:
        sums = full_precision(function)

        @functools.wraps(sums)
        def value(*args: P.args, **kwargs: P.kwargs) -> Tensor:
            return result(sums(*args, **kwargs))

        decorated = cast(MetricFunction[P], value)
        decorated.sums, decorated.result = sums, result
        value.__signature__ = inspect.signature(sums).replace(return_annotation=Tensor)  # type: ignore[attr-defined]
        return decorated

    return decorate


def masked_sums(values: Tensor, real: Tensor) -> Sums:
    """Return the sum and the number of the valid values."""
    return Sums(values.masked_fill(~real, 0).sum(), real.sum())


class Vectors(NamedTuple):
    """Events as vectors: all axes of an event are flattened.

    Attributes:
        hypotheses: Hypotheses, [..., hypotheses, numbers]; with a step mask, each target has its own hypotheses,
            [..., targets, hypotheses, numbers], which are 0 at masked steps.
        targets: Targets, [..., targets, numbers], or [..., targets, 1, numbers] with a step mask.
        probabilities: Probabilities of the hypotheses, [..., hypotheses] or [..., 1, hypotheses].
        present: Mask in the shape of the targets, False at masked steps.
    """

    hypotheses: Tensor
    targets: Tensor
    probabilities: Tensor
    present: Tensor


class Events(NamedTuple):
    """Checked inputs of a metric, with all axes and one floating dtype.

    Attributes:
        hypotheses: Hypotheses, [..., hypotheses, *event].
        targets: Targets, [..., targets, *event], 0 where masked.
        probabilities: Normalized scores, [..., hypotheses]; equal without scores.
        real: Valid targets, [..., targets].
        steps: Valid steps, [..., targets, *first axes of an event], or None.
    """

    hypotheses: Tensor
    targets: Tensor
    probabilities: Tensor
    real: Tensor
    steps: Tensor | None

    def vectors(self) -> Vectors:
        """Return hypotheses and targets with flattened events."""
        n = self.real.ndim
        hypotheses, targets = self.hypotheses, self.targets
        if self.steps is None:
            vectors = targets.flatten(n)
            return Vectors(hypotheses.flatten(n), vectors, self.probabilities, torch.ones_like(vectors).bool())
        present = self.steps.view(*self.steps.shape, *[1] * (targets.ndim - self.steps.ndim)).expand_as(targets)
        masked = hypotheses.unsqueeze(n - 1).where(present.unsqueeze(n), 0)  # [..., targets, hypotheses, *event]
        targets, present = targets.unsqueeze(n).flatten(n + 1), present.unsqueeze(n).flatten(n + 1)
        return Vectors(masked.flatten(n + 1), targets, self.probabilities.unsqueeze(-2), present)


def events(
    owner: str,
    predictions: Predictions | Distributions,
    targets: Tensor,
    mask: Tensor | None = None,
    scores: ScoreObjective | None = None,
) -> Events:
    """Check the inputs of a metric.

    Args:
        owner: Name of the metric, for messages.
        predictions: Hypotheses, [..., hypotheses, *event]. The score logits define the leading axes; without them the
            first axis is the batch.
        targets: Targets, [..., targets, *event]; the axis of targets may be omitted for a single target per sample.
        mask: Valid targets, [..., targets], or valid steps, [..., targets, steps], with the first axes of an event;
            None if all are valid.
        scores: Objective that turns score logits into probabilities; `SigmoidScores()` by default.
    """
    check_predictions(owner, "predictions", predictions)
    hypotheses, logits = predictions.hypotheses, predictions.score_logits
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets)
    n = min(hypotheses.ndim - 2, 1) if logits is None else logits.ndim - 1
    if n < 0 or hypotheses.ndim < n + 2:
        raise ValueError(bad_value(owner, "hypotheses", "have shape [..., hypotheses, dim]", tuple(hypotheses.shape)))
    event = hypotheses.shape[n + 1 :]
    if targets.shape == (*hypotheses.shape[:n], *event):
        targets = targets.unsqueeze(n)
        if mask is not None and mask.ndim >= n and mask.shape[n:] == event[: mask.ndim - n]:
            mask = mask.unsqueeze(n)
    if targets.ndim != hypotheses.ndim or targets.shape[n + 1 :] != event:
        rule = f"have shape [..., targets, {', '.join(map(str, event))}] for `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    check_leading_axes(owner, hypotheses, targets, hypotheses.shape[:n], targets.shape[:n])
    leading = broadcast_shapes(hypotheses.shape[:n], targets.shape[:n])
    probabilities = _probabilities(owner, hypotheses, logits, n, scores)
    dtype = torch.promote_types(torch.promote_types(hypotheses.dtype, targets.dtype), probabilities.dtype)
    hypotheses = hypotheses.expand(*leading, *hypotheses.shape[n:]).to(dtype)
    targets = targets.expand(*leading, *targets.shape[n:]).to(dtype)
    probabilities = probabilities.expand(*leading, -1).to(dtype)
    if mask is None:
        real = torch.ones(targets.shape[: n + 1], dtype=torch.bool, device=targets.device)
        return Events(hypotheses, targets, probabilities, real, None)
    shape = targets.shape[: max(mask.ndim, n + 1)] if isinstance(mask, Tensor) else targets.shape
    check_mask(owner, mask, shape)
    mask = mask.expand(shape)
    targets = targets.masked_fill(~mask.view(*shape, *[1] * (targets.ndim - mask.ndim)), 0)
    if mask.ndim == n + 1:
        return Events(hypotheses, targets, probabilities, mask, None)
    return Events(hypotheses, targets, probabilities, mask.flatten(n + 1).any(dim=-1), mask)


def _probabilities(
    owner: str, hypotheses: Tensor, logits: Tensor | None, n: int, scores: ScoreObjective | None
) -> Tensor:
    """Return normalized scores [..., hypotheses] in single precision at least, equal without score logits."""
    objective = SigmoidScores() if scores is None else scores
    check_score_objective(owner, objective)
    dtype = torch.promote_types(hypotheses.dtype, torch.float32)
    if logits is not None:
        return objective.probabilities(logits).to(dtype)
    return hypotheses.new_full(hypotheses.shape[: n + 1], 1 / max(hypotheses.shape[n], 1), dtype=dtype)
