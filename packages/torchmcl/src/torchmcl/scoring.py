"""Scores: the probability that each hypothesis wins.

The labels are the weights of a second, hard rule on the same cost, so that the score of a
hypothesis learns the probability mass of its Voronoi cell. `SigmoidScores` treats hypotheses independently,
`SoftmaxScores` all of them together.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchmcl.checks import (
    bad_value,
    check_boolean,
    check_cost,
    check_mask,
    check_positive,
    check_sample_weights,
    check_tensor,
)
from torchmcl.dispatch import in_forward_mode, is_plain_eager, may_work_in_place
from torchmcl.rules.winners import WTA, AssignmentRule


@dataclass(frozen=True)
class ScoreObjective(ABC):
    """The objective and the interpretation of scores: `SigmoidScores` or `SoftmaxScores`.

    Args:
        rule: the rule that defines the labels, on the matched cost; `WTA()` by default, `PIT()` for one-to-one. None
            uses the weights of the training rule itself, which are soft labels while it is annealed.
    """

    rule: AssignmentRule | None = field(default_factory=WTA)

    def __post_init__(self) -> None:
        """Check the field."""
        if self.rule is not None and not isinstance(self.rule, AssignmentRule):
            advice = "WTA() for hard labels, None for the weights of the training rule, annealed ones included."
            owner = type(self).__name__
            raise TypeError(bad_value(owner, "rule", "be an assignment rule or None", repr(self.rule), advice))

    def labels(self, cost: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the label of each hypothesis [..., hypotheses]: its share of the sample's real targets.

        Args:
            cost: [..., targets, hypotheses], the matched cost.
            weights: [..., targets, hypotheses], of the training rule.
            mask: [..., targets], True where a target is real; None when all are.
        """
        return _shares(weights if self.rule is None else self.rule(cost, mask), mask)

    @abstractmethod
    def loss(
        self,
        score_logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        *,
        model_axes: int = 0,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of score logits, see `score_loss`."""

    @abstractmethod
    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Return scores that sum to 1 over the hypotheses."""


@dataclass(frozen=True)
class SigmoidScores(ScoreObjective):
    """Sigmoid scores, trained by binary cross-entropy: the probability that a hypothesis wins.

    Args:
        rule: the rule of the labels; `WTA()` by default, None for the weights of the training rule.

    Example:
        >>> SigmoidScores().probabilities(torch.tensor([0.0, 0.0, -500.0]))
        tensor([0.5000, 0.5000, 0.0000])

    Reference:
        Eq. (4).
    """

    def loss(
        self,
        score_logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        *,
        model_axes: int = 0,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return `score_loss`."""
        return score_loss(score_logits, labels, mask, model_axes=model_axes, sample_weights=sample_weights)

    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Return `normalized_scores`."""
        return normalized_scores(score_logits)


@dataclass(frozen=True)
class PresenceScores(SigmoidScores):
    """Presence scores: the probability that a target is assigned to a hypothesis; assigned ones have label 1.

    For sets of unknown size, objects in a picture or voices in a recording: the scores of the hypotheses then add up to
    the number of targets. The labels of `SigmoidScores` are shares, which add up to 1.

    Example:
        >>> two_of_three = torch.tensor([[0.1, 3.0, 2.0], [4.0, 0.2, 5.0]])  # two targets
        >>> weights = WTA()(two_of_three)
        >>> PresenceScores().labels(two_of_three, weights), SigmoidScores().labels(two_of_three, weights)
        (tensor([1., 1., 0.]), tensor([0.5000, 0.5000, 0.0000]))
    """

    def labels(self, cost: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the label of each hypothesis [..., hypotheses]: its weight summed over real targets, at most 1."""
        taken = weights if self.rule is None else self.rule(cost, mask)
        return taken.sum(dim=-2).clamp_max(1.0)


@dataclass(frozen=True)
class SoftmaxScores(ScoreObjective):
    """Softmax scores, trained by cross-entropy: the distribution of the winner.

    Args:
        rule: the rule of the labels; `WTA()` by default, None for the weights of the training rule.

    Example:
        >>> SoftmaxScores().probabilities(torch.tensor([0.0, 0.0, -500.0]))
        tensor([0.5000, 0.5000, 0.0000])
        >>> SoftmaxScores().loss(torch.zeros(2, 3), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
        tensor(1.0986)
    """

    def loss(
        self,
        score_logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        *,
        model_axes: int = 0,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the cross-entropy between the softmax of the scores and labels, averaged over samples."""
        given = (score_logits, labels, mask, model_axes, sample_weights)
        return _mean_loss("SoftmaxScores", _softmax_cross_entropy, *given, terms=1)

    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Return the softmax of the logits."""
        check_tensor("SoftmaxScores", "score_logits", score_logits)
        return score_logits.to(torch.promote_types(score_logits.dtype, torch.float32)).softmax(dim=-1)


@dataclass(frozen=True)
class QualityScores(ScoreObjective):
    """Scores that predict the quality 1 - cost of their hypothesis, trained by squared error, as in SAM.

    A quality is not a probability: two good hypotheses both have a high quality. `probabilities` is a softmax, for
    ranking. The quality of a hypothesis is the mean over the real targets of its sample.

    Args:
        rule: not used, because every hypothesis is trained.
        cost_fn: the cost whose complement is predicted, `torchmcl.costs.pairwise_iou` for example; the matched cost of
            the step by default.
        temperature: > 0, of the softmax.

    Example:
        >>> quality = QualityScores()
        >>> quality.labels(torch.tensor([[0.1, 0.6]]), torch.tensor([[1.0, 0.0]]))
        tensor([0.9000, 0.4000])
        >>> quality.loss(torch.tensor([[0.9, 0.6]]), torch.tensor([[0.9, 0.4]]))
        tensor(0.0200)
    """

    cost_fn: Callable[..., Tensor] | None = None
    temperature: float = 0.1

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_positive("QualityScores", "temperature", self.temperature)

    def labels(self, cost: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the quality of each hypothesis [..., hypotheses]; 0 without real targets."""
        quality = 1 - cost.detach()
        if mask is not None:
            quality = quality.masked_fill(~mask.unsqueeze(-1), 0)
        return _shares(quality, mask)

    def loss(
        self,
        score_logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        *,
        model_axes: int = 0,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the mean squared error of the qualities, over hypotheses and samples with a real target."""
        check_tensor("QualityScores", "score_logits", score_logits)
        terms = max(score_logits.shape[-1], 1)
        return _mean_loss(
            "QualityScores", _squared_error, score_logits, labels, mask, model_axes, sample_weights, terms
        )

    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Return the softmax of the qualities divided by the temperature."""
        check_tensor("QualityScores", "score_logits", score_logits)
        wide = score_logits.to(torch.promote_types(score_logits.dtype, torch.float32))
        return (wide / self.temperature).softmax(dim=-1)


def check_score_objective(owner: str, scores: object) -> None:
    """Check that `scores` is an objective."""
    if not isinstance(scores, ScoreObjective):
        advice = "Give an object, SigmoidScores() or SoftmaxScores(); score_weight=0 trains no scores."
        raise TypeError(bad_value(owner, "scores", "be a ScoreObjective", repr(scores), advice))


def score_targets(cost: Tensor, mask: Tensor | None = None, rule: AssignmentRule | None = None) -> Tensor:
    """Return the label of each hypothesis: the share of the sample's real targets that it wins.

    Args:
        cost: [..., targets, hypotheses], lower is better.
        mask: [..., targets], True where a target is real; None when all are.
        rule: the hard rule that selects the winner; `WTA()` by default (`PIT()` for one-to-one).

    Returns:
        Labels [..., hypotheses] in [0, 1], detached; all 0 for a sample without real targets.

    Example:
        >>> score_targets(torch.tensor([[0.3, 0.1, 0.9], [0.2, 0.6, 0.9]]))
        tensor([0.5000, 0.5000, 0.0000])

    Reference:
        The indicator of Eq. (4), averaged over the targets of the sample.
    """
    check_cost("score_targets", cost)
    return _shares((rule or WTA())(cost, mask), mask)


def _shares(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean weight of each hypothesis over the real targets of a sample, [..., hypotheses]."""
    if weights.shape[-2] == 1:
        return weights.squeeze(-2)
    if mask is None:
        return weights.sum(dim=-2) / max(weights.shape[-2], 1)
    return weights.sum(dim=-2) / mask.expand(weights.shape[:-1]).sum(dim=-1, keepdim=True).clamp_min(1)


def score_loss(
    score_logits: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    *,
    model_axes: int = 0,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """Return the binary cross-entropy between scores and labels.

    It is averaged over hypotheses and samples (Eq. (4) sums over hypotheses; the mean keeps its
    weight independent of their number).

    Args:
        score_logits: [..., hypotheses], before the sigmoid.
        targets: labels [..., hypotheses] in [0, 1], from `score_targets`.
        mask: [..., targets] as elsewhere; samples without a real target are left out.
        model_axes: how many leading axes are independent models, whose losses are kept apart.
        sample_weights: [...], how much each sample counts, as in `mcl_loss`.

    Returns:
        A scalar, or [models] with a model axis, at least float32; 0 when no sample counts. It is finite for logits up
        to the largest number of that type divided by the number of hypotheses (3e38 / K in float32), and infinite
        where the sum over the hypotheses is too large for it.

    Example:
        >>> score_loss(torch.zeros(2, 3), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
        tensor(0.6931)

    Reference:
        Eq. (4).
    """
    check_tensor("score_loss", "score_logits", score_logits)
    n_hypotheses = max(score_logits.shape[-1], 1)
    return _mean_loss(
        "score_loss", _cross_entropy, score_logits, targets, mask, model_axes, sample_weights, n_hypotheses
    )


def _mean_loss(
    owner: str,
    loss: Callable[[Tensor, Tensor], Tensor],
    score_logits: Tensor,
    targets: Tensor,
    mask: Tensor | None,
    model_axes: int,
    sample_weights: Tensor | None,
    terms: int,
) -> Tensor:
    """Return the mean of a loss over the samples with a real target, divided by the number of terms per sample."""
    check_tensor(owner, "score_logits", score_logits)
    check_tensor(owner, "targets", targets)
    if score_logits.shape != targets.shape:
        rule = f"have the shape of `score_logits` {tuple(score_logits.shape)}"
        advice = "score_targets(cost, mask) gives it."
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape), advice))
    dtype = torch.promote_types(score_logits.dtype, torch.float32)
    per_sample = loss(score_logits.to(dtype), targets.to(dtype))
    if sample_weights is not None:
        check_sample_weights(owner, sample_weights, per_sample.shape)
        per_sample = per_sample * sample_weights
    axes = tuple(range(model_axes, per_sample.ndim))
    if not axes:
        per_sample = per_sample / terms
        return per_sample if mask is None else per_sample.masked_fill(~mask.any(dim=-1), 0)
    # Divided first, then summed: the sum of large losses can overflow where their mean does not.
    if mask is None:
        n_samples = math.prod(per_sample.shape[model_axes:])
        factor = 1 / max(n_samples * terms, 1)
        return (per_sample * factor).sum(dim=axes)
    check_boolean(owner, "mask", mask)
    check_mask(owner, mask, torch.Size((*per_sample.shape, mask.shape[-1])))
    counts = mask.any(dim=-1).expand(per_sample.shape)
    n_entries = terms * counts.sum(dim=axes, keepdim=True).clamp_min(1)
    return (per_sample.masked_fill(~counts, 0) / n_entries).sum(dim=axes)


def normalized_scores(score_logits: Tensor) -> Tensor:
    """Return scores that sum to 1 over the hypotheses, for any logits.

    Args:
        score_logits: [..., hypotheses], before the sigmoid.

    Returns:
        sigmoid(score_logits) divided by its sum, [..., hypotheses], at least float32, computed without underflow.

    Example:
        >>> normalized_scores(torch.tensor([0.0, 0.0, -500.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    check_tensor("normalized_scores", "score_logits", score_logits)
    score_logits = score_logits.to(torch.promote_types(score_logits.dtype, torch.float32))
    return torch.nn.functional.logsigmoid(score_logits).softmax(dim=-1)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -sum_k [y_k log s_k + (1 - y_k) log(1 - s_k)] of each sample, with s the sigmoid of the logits x.

    As log s(x) = x + log s(-x), that is -sum_k [log s(-x_k) + x_k y_k].
    """
    if not in_forward_mode():
        return summed_cross_entropy(logits, labels)
    return -(torch.nn.functional.logsigmoid(-logits) + logits * labels).sum(dim=-1)


def _softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -sum_k y_k log softmax(x)_k of each sample."""
    return -(labels * logits.log_softmax(dim=-1)).sum(dim=-1)


def _squared_error(scores: Tensor, labels: Tensor) -> Tensor:
    """Return sum_k (x_k - y_k)^2 of each sample."""
    return (scores - labels).square().sum(dim=-1)


_LOG2_E = math.log2(math.e)  # processors do exp2 faster than exp
# The sum of log(1 + e^-|x|) is taken as the logarithm of products of this many factors in (1, 2], far from overflow: a
# logarithm for each entry would dominate the time. Only the inputs are kept for the backward pass.
_FACTORS = 64
_CHUNK_ENTRIES = 1 << 21


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return sum_k [max(x, 0) - x y + log(1 + exp(-|x|))], [...]."""
    return _SummedCrossEntropy.apply(logits, labels)


def cross_entropy_gradient(logits: Tensor, labels: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the logits, given that of the sums [..., 1]; differentiable by autograd."""
    return (logits.sigmoid() - labels) * grad


class _SummedCrossEntropy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> Tensor:
        if logits.ndim == 1 or logits.device.type != "cpu" or not is_plain_eager():
            return _by_products(logits, labels)
        # In pieces that fit the cache: on CPUs fresh memory for the intermediates costs more than the arithmetic.
        n_rows = max(1, _CHUNK_ENTRIES * len(logits) // max(logits.numel(), 1))
        chunks = zip(logits.split(n_rows), labels.split(n_rows), strict=True)
        return torch.cat([_by_products(x, y) for x, y in chunks])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        logits, labels = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        to_logits = None
        if ctx.needs_input_grad[0]:
            if may_work_in_place(grad):
                scores = logits.mul(-_LOG2_E).exp2_().add_(1).reciprocal_()  # the sigmoid, a little faster
                to_logits = scores.sub_(labels).mul_(grad)
            else:
                to_logits = cross_entropy_gradient(logits, labels, grad)
        return to_logits, -logits * grad if ctx.needs_input_grad[1] else None


def _by_products(logits: Tensor, labels: Tensor) -> Tensor:
    factors = logits.abs().mul_(-_LOG2_E).exp2_().add_(1)
    n_entries = factors.shape[-1]
    if n_entries > _FACTORS:
        factors = torch.nn.functional.pad(factors, (0, -n_entries % _FACTORS), value=1.0)
        logs = factors.unflatten(-1, (-1, _FACTORS)).prod(dim=-1).log().sum(dim=-1)
    else:
        logs = factors.prod(dim=-1).log()
    return logs + torch.addcmul(logits.clamp_min(0), logits, labels, value=-1).sum(dim=-1)
