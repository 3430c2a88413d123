"""Scores: probabilities that the hypotheses win.

The labels of the scores are the weights of a second, hard rule on the same cost, so that the score of a hypothesis
learns the probability mass of its Voronoi cell. `SigmoidScores` treats the hypotheses independently, `SoftmaxScores`
all of them together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from torchmcl.checks import Positive, Value, check_boolean, check_mask, check_sample_weights, check_tensor
from torchmcl.dispatch import in_forward_mode
from torchmcl.errors import bad_value
from torchmcl.rules.winners import WTA, AssignmentRule

__all__ = [
    "PresenceScores",
    "QualityScores",
    "ScoreObjective",
    "SigmoidScores",
    "SoftmaxScores",
    "check_score_objective",
    "normalized_scores",
]


def _winner_takes_all() -> AssignmentRule:
    """Return the default rule; as a function, because torch.compile cannot trace a class as a default factory."""
    return WTA()


@dataclass(frozen=True)
class ScoreObjective(Value, ABC):
    """Base class of score objectives: how scores are trained, and how their logits are read.

    Args:
        rule: Rule of the labels, applied to the matched cost: `WTA()` by default, `PIT()` for one-to-one assignments.
            None stands for the weights of the training rule, which are soft labels while it is annealed.
    """

    rule: AssignmentRule | None = field(default_factory=_winner_takes_all)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.rule is not None and not isinstance(self.rule, AssignmentRule):
            advice = "WTA() for hard labels, None for the weights of the training rule, annealed ones included."
            owner = type(self).__name__
            raise TypeError(bad_value(owner, "rule", "be an assignment rule or None", repr(self.rule), advice))

    def labels(self, cost: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the label of each hypothesis, [..., hypotheses]: the fraction of the valid targets that it wins.

        Args:
            cost: Matched cost, [..., targets, hypotheses].
            weights: Weights of the training rule, [..., targets, hypotheses].
            mask: Valid targets, [..., targets]; None if all are valid.

        References:
            The indicator of Equation (4), averaged over the targets of the sample.
        """
        return _mean_over_targets(weights if self.rule is None else self.rule.assign(cost, mask), mask)

    def loss(
        self,
        score_logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        *,
        model_axes: int = 0,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of score logits, averaged over the samples with a valid target.

        Args:
            score_logits: Score logits, [..., hypotheses].
            labels: Labels of the scores, [..., hypotheses], from `labels`.
            mask: Valid targets, [..., targets]; None if all are valid.
            model_axes: Number of leading axes that are independent models, whose losses are kept apart.
            sample_weights: Weights of the samples, [...], as in `mcl_loss`.

        Returns:
            Scalar, or [models] with an axis of models, in at least single precision; 0 without a valid target.
        """
        owner = type(self).__name__
        if not isinstance(score_logits, Tensor) or not score_logits.is_floating_point():
            check_tensor(owner, "score_logits", score_logits)
        if not isinstance(labels, Tensor) or score_logits.shape != labels.shape:
            rule = f"be a tensor of the shape of `score_logits` {tuple(score_logits.shape)}"
            shape = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
            raise ValueError(bad_value(owner, "labels", rule, shape, "The method `labels` returns it."))
        if score_logits.dtype not in (torch.float32, torch.float64):
            score_logits = score_logits.float()
        labels = labels.to(score_logits.dtype)
        if mask is None and sample_weights is None and model_axes == 0 and labels.numel():
            return self.mean_loss(score_logits, labels)
        losses = self.sample_losses(score_logits, labels)
        if sample_weights is not None:
            check_sample_weights(owner, sample_weights, losses.shape)
            losses = losses * sample_weights
        axes = tuple(range(model_axes, losses.ndim))
        if not axes:
            return losses
        if mask is None:
            return losses.mean(dim=axes) if losses.numel() else losses.sum(dim=axes)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            check_boolean(owner, "mask", mask)
        if mask.shape[:-1] != losses.shape:
            check_mask(owner, mask, torch.Size((*losses.shape, mask.shape[-1])))
        is_valid = mask.any(dim=-1).expand(losses.shape)
        return losses.masked_fill(~is_valid, 0).sum(dim=axes) / is_valid.sum(dim=axes).clamp_min(1)

    @abstractmethod
    def sample_losses(self, score_logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of each sample, [...], from logits and labels [..., hypotheses]."""

    def mean_loss(self, score_logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the mean of `sample_losses` over all samples; a subclass may do so in one operation."""
        return self.sample_losses(score_logits, labels).mean()

    @abstractmethod
    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Compute scores that sum to 1 over the hypotheses."""

    @abstractmethod
    def logits(self, probabilities: Tensor) -> Tensor:
        """Compute finite score logits that `probabilities` reads as these probabilities, which sum to 1."""


@dataclass(frozen=True)
class SigmoidScores(ScoreObjective):
    r"""Sigmoid scores, trained by binary cross-entropy: the probability that a hypothesis wins.

    .. math:: L = -\frac1n \sum_k y_k \log s_k + (1 - y_k) \log (1 - s_k)

    The paper sums over the n hypotheses. The mean keeps the weight of the loss independent of their number, as in the
    code of its authors.

    Args:
        rule: Rule of the labels; `WTA()` by default, None for the weights of the training rule.

    Example:
        >>> SigmoidScores().probabilities(torch.tensor([0.0, 0.0, -500.0]))
        tensor([0.5000, 0.5000, 0.0000])
        >>> SigmoidScores().loss(torch.zeros(2, 3), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
        tensor(0.6931)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (4).
    """

    def sample_losses(self, score_logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the binary cross-entropy of each sample, averaged over the hypotheses."""
        if in_forward_mode():  # where the function of torch has no second derivatives
            return ((1 - labels) * score_logits - logsigmoid(score_logits)).mean(dim=-1)
        return binary_cross_entropy_with_logits(score_logits, labels, reduction="none").mean(dim=-1)

    def mean_loss(self, score_logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the binary cross-entropy, averaged over hypotheses and samples."""
        if in_forward_mode():
            return super().mean_loss(score_logits, labels)
        return binary_cross_entropy_with_logits(score_logits, labels)

    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Compute `normalized_scores`."""
        return normalized_scores(score_logits)

    def logits(self, probabilities: Tensor) -> Tensor:
        """Compute the logits whose sigmoids are the probabilities."""
        complements = (1 - probabilities).clamp_min(torch.finfo(probabilities.dtype).eps)
        return _finite_logs(probabilities) - complements.log()


@dataclass(frozen=True)
class PresenceScores(SigmoidScores):
    """Presence scores: the probability that a target is assigned to a hypothesis; assigned ones have label 1.

    For sets of unknown size, objects in an image or voices in a recording: the scores of the hypotheses add up to the
    number of targets. The labels of `SigmoidScores` are fractions, which add up to 1.

    Example:
        >>> two_of_three = torch.tensor([[0.1, 3.0, 2.0], [4.0, 0.2, 5.0]])  # two targets
        >>> weights = WTA()(two_of_three)
        >>> PresenceScores().labels(two_of_three, weights), SigmoidScores().labels(two_of_three, weights)
        (tensor([1., 1., 0.]), tensor([0.5000, 0.5000, 0.0000]))
    """

    def labels(self, cost: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the label of each hypothesis, [..., hypotheses]: its summed weight over valid targets, at most 1."""
        wins = weights if self.rule is None else self.rule.assign(cost, mask)
        return wins.sum(dim=-2).clamp_max(1.0)


@dataclass(frozen=True)
class SoftmaxScores(ScoreObjective):
    """Softmax scores, trained by cross-entropy: the distribution of the winner.

    Args:
        rule: Rule of the labels; `WTA()` by default, None for the weights of the training rule.

    Example:
        >>> SoftmaxScores().probabilities(torch.tensor([0.0, 0.0, -500.0]))
        tensor([0.5000, 0.5000, 0.0000])
        >>> SoftmaxScores().loss(torch.zeros(2, 3), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
        tensor(1.0986)
    """

    def sample_losses(self, score_logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the cross-entropy of each sample."""
        return -(labels * score_logits.log_softmax(dim=-1)).sum(dim=-1)

    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Compute the softmax of the logits."""
        check_tensor("SoftmaxScores", "score_logits", score_logits)
        return score_logits.to(torch.promote_types(score_logits.dtype, torch.float32)).softmax(dim=-1)

    def logits(self, probabilities: Tensor) -> Tensor:
        """Compute the log-probabilities."""
        return _finite_logs(probabilities)


@dataclass(frozen=True)
class QualityScores(ScoreObjective):
    """Scores that predict the quality, 1 - cost, of their hypothesis, trained by squared error as in SAM.

    A quality is not a probability: two good hypotheses both have a high quality. `probabilities` is a softmax, for
    ranking. The quality of a hypothesis is the mean over the valid targets of its sample.

    Args:
        rule: Not used, because every hypothesis is trained.
        cost_fn: Cost whose complement is predicted, `torchmcl.costs.pairwise_iou` for example; the matched cost of the
            step by default.
        temperature: Temperature of the softmax.

    Example:
        >>> quality = QualityScores()
        >>> quality.labels(torch.tensor([[0.1, 0.6]]), torch.tensor([[1.0, 0.0]]))
        tensor([0.9000, 0.4000])
        >>> quality.loss(torch.tensor([[0.9, 0.6]]), torch.tensor([[0.9, 0.4]]))
        tensor(0.0200)
    """

    cost_fn: Callable[..., Tensor] | None = None
    temperature: Positive = 0.1

    def labels(self, cost: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the quality of each hypothesis, [..., hypotheses]; 0 without valid targets."""
        quality = 1 - cost.detach()
        return _mean_over_targets(quality if mask is None else quality.masked_fill(~mask.unsqueeze(-1), 0), mask)

    def sample_losses(self, score_logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the squared error of each sample, averaged over the hypotheses."""
        return (score_logits - labels).square().mean(dim=-1)

    def probabilities(self, score_logits: Tensor) -> Tensor:
        """Compute the softmax of the qualities divided by the temperature."""
        check_tensor("QualityScores", "score_logits", score_logits)
        wide = score_logits.to(torch.promote_types(score_logits.dtype, torch.float32))
        return (wide / self.temperature).softmax(dim=-1)

    def logits(self, probabilities: Tensor) -> Tensor:
        """Compute the log-probabilities times the temperature."""
        return self.temperature * _finite_logs(probabilities)


def check_score_objective(owner: str, scores: object) -> None:
    """Check that `scores` is a score objective."""
    if not isinstance(scores, ScoreObjective):
        advice = "Give an object, SigmoidScores() or SoftmaxScores(); score_weight=0 trains no scores."
        raise TypeError(bad_value(owner, "scores", "be a ScoreObjective", repr(scores), advice))


def normalized_scores(score_logits: Tensor) -> Tensor:
    """Compute scores that sum to 1 over the hypotheses, for any logits.

    Args:
        score_logits: Logits of sigmoid scores, [..., hypotheses].

    Returns:
        sigmoid(score_logits) divided by its sum, [..., hypotheses], in at least single precision, without underflow.

    Example:
        >>> normalized_scores(torch.tensor([0.0, 0.0, -500.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    check_tensor("normalized_scores", "score_logits", score_logits)
    score_logits = score_logits.to(torch.promote_types(score_logits.dtype, torch.float32))
    return logsigmoid(score_logits).softmax(dim=-1)


def _finite_logs(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def _mean_over_targets(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the mean weight of each hypothesis over the valid targets of a sample, [..., hypotheses]."""
    if weights.shape[-2] == 1:
        return weights.squeeze(-2)
    if mask is None:
        return weights.sum(dim=-2) / max(weights.shape[-2], 1)
    return weights.sum(dim=-2) / mask.sum(dim=-1, keepdim=True).clamp_min(1)
