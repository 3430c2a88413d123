"""Scores: how likely each hypothesis is to be the winner.

The labels are the weights of a second, hard rule on the same cost, so that the score of a
hypothesis learns the probability mass of its Voronoi cell.
"""

import math

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_boolean, check_cost, check_mask, check_sample_weights, check_tensor
from torchmcl.assignment import WTA, AssignmentRule
from torchmcl.kernels import accelerated
from torchmcl.kernels.cross_entropy import summed_cross_entropy

__all__ = ["normalized_scores", "score_loss", "score_targets"]


def score_targets(cost: Tensor, mask: Tensor | None = None, rule: AssignmentRule | None = None) -> Tensor:
    """Return the label of each hypothesis: the share of the sample's real targets that it wins.

    Args:
        cost: [..., targets, hypotheses], lower is better.
        mask: [..., targets], True where a target is real; None when all are.
        rule: the hard rule that decides who wins; `WTA()` by default (`PIT()` for one-to-one).

    Returns:
        Labels [..., hypotheses] in [0, 1], detached; all 0 for a sample without real targets.

    Example:
        >>> score_targets(torch.tensor([[0.3, 0.1, 0.9], [0.2, 0.6, 0.9]]))
        tensor([0.5000, 0.5000, 0.0000])

    Reference:
        The indicator of Eq. (4), averaged over the targets of the sample.
    """
    check_cost("score_targets", cost)
    weights = (rule or WTA())(cost, mask)
    if weights.shape[-2] == 1:
        return weights.squeeze(-2)
    if mask is None:
        return weights.sum(dim=-2) / max(weights.shape[-2], 1)
    n_real = mask.expand(cost.shape[:-1]).sum(dim=-1, keepdim=True)
    return weights.sum(dim=-2) / n_real.clamp_min(1)


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
    check_tensor("score_loss", "targets", targets)
    if score_logits.shape != targets.shape:
        rule = f"have the shape of `score_logits` {tuple(score_logits.shape)}"
        advice = "score_targets(cost, mask) gives it."
        raise ValueError(bad_value("score_loss", "targets", rule, tuple(targets.shape), advice))
    dtype = torch.promote_types(score_logits.dtype, torch.float32)
    n_hypotheses = score_logits.shape[-1]
    per_sample = _cross_entropy(score_logits.to(dtype), targets.to(dtype))
    if sample_weights is not None:
        check_sample_weights("score_loss", sample_weights, per_sample.shape)
        per_sample = per_sample * sample_weights
    axes = tuple(range(model_axes, per_sample.ndim))
    if not axes:
        per_sample = per_sample / n_hypotheses
        return per_sample if mask is None else per_sample.masked_fill(~mask.any(dim=-1), 0)
    # Divided first, then summed: the sum of large losses can overflow where their mean does not.
    if mask is None:
        n_samples = math.prod(per_sample.shape[model_axes:])
        return (per_sample / max(n_samples * n_hypotheses, 1)).sum(dim=axes)
    check_boolean("score_loss", "mask", mask)
    check_mask("score_loss", mask, torch.Size((*per_sample.shape, mask.shape[-1])))
    counts = mask.any(dim=-1).expand(per_sample.shape)
    n_entries = n_hypotheses * counts.sum(dim=axes, keepdim=True).clamp_min(1)
    return (per_sample.masked_fill(~counts, 0) / n_entries).sum(dim=axes)


def normalized_scores(score_logits: Tensor) -> Tensor:
    """Return scores that sum to 1 over the hypotheses, whatever the logits.

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


@accelerated(summed_cross_entropy, triton="rows.summed_cross_entropy")
def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -sum_k [y_k log s_k + (1 - y_k) log(1 - s_k)] of each sample, s being the sigmoid of the logits x.

    As log s(x) = x + log s(-x), that is -sum_k [log s(-x_k) + x_k y_k].
    """
    return -(torch.nn.functional.logsigmoid(-logits) + logits * labels).sum(dim=-1)
