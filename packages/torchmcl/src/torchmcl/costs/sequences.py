"""Costs of sequences: average and final displacement, cross-entropy of tokens."""

import functools

import torch
from torch import Tensor

from torchmcl.checks import check_choice, check_class_ids
from torchmcl.costs.chunked import weighted_distances
from torchmcl.costs.declared import (
    MEAN,
    MEDIAN_OF_LAST_STEP,
    MEDIAN_OF_STEPS,
    NormFormula,
    aligned_events,
    declare_cost,
    flattened,
    step_weights,
)

__all__ = [
    "pairwise_ade",
    "pairwise_fde",
    "pairwise_sq_ade",
    "pairwise_token_cross_entropy",
]


@declare_cost(event_dims=2, center=MEDIAN_OF_STEPS)
def pairwise_ade(*, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the average displacement of every (target, hypothesis) pair: the mean distance over valid steps.

    A target without any valid step costs 0 with zero gradient; where a step is hit exactly its gradient is 0.

    Args:
        hypotheses: Predicted sequences, [..., hypotheses, steps, dim].
        targets: Target sequences, [..., targets, steps, dim]; masked steps are ignored, even NaN.
        mask: Valid steps, [..., targets, steps]; None if all are valid.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> ahead, still = torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2)
        >>> pairwise_ade(hypotheses=torch.stack([ahead, still]), targets=ahead.unsqueeze(0))
        tensor([[0.0000, 1.5000]])
    """
    hypotheses, targets, mask = aligned_events(
        "pairwise_ade", hypotheses, targets, mask, event_dims=2, whole_steps=True
    )
    weights = step_weights(mask, targets.shape[:-1], targets)
    return flattened(weighted_distances, (hypotheses, 3), (targets, 3), (weights, 2))


@declare_cost(event_dims=2, center=MEAN, formula=NormFormula(order=2, power=2, mean_over_steps=True))
def pairwise_sq_ade(*, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean squared distance over valid steps of every (target, hypothesis) pair.

    Args:
        hypotheses: Predicted sequences, [..., hypotheses, steps, dim].
        targets: Target sequences, [..., targets, steps, dim]; masked steps are ignored, even NaN.
        mask: Valid steps, [..., targets, steps]; None if all are valid.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> ahead, still = torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2)
        >>> pairwise_sq_ade(hypotheses=torch.stack([ahead, still]), targets=ahead.unsqueeze(0))
        tensor([[0.0000, 2.5000]])
    """
    hypotheses, targets, mask = aligned_events(
        "pairwise_sq_ade", hypotheses, targets, mask, event_dims=2, whole_steps=True
    )
    weights = step_weights(mask, targets.shape[:-1], targets)
    squares = functools.partial(weighted_distances, squared=True)
    return flattened(squares, (hypotheses, 3), (targets, 3), (weights, 2))


@declare_cost(event_dims=2, center=MEDIAN_OF_LAST_STEP)
def pairwise_fde(*, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the final displacement of every (target, hypothesis) pair: the distance at the last valid step.

    A target without any valid step costs 0 with zero gradient.

    Args:
        hypotheses: Predicted sequences, [..., hypotheses, steps, dim].
        targets: Target sequences, [..., targets, steps, dim]; masked steps are ignored, even NaN.
        mask: Valid steps, [..., targets, steps]; None if all are valid.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> ahead, still = torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2)
        >>> pairwise_fde(hypotheses=torch.stack([ahead, still]), targets=ahead.unsqueeze(0))
        tensor([[0., 2.]])
        >>> first_only = torch.tensor([[True, False]])
        >>> pairwise_fde(hypotheses=torch.stack([ahead, still]), targets=ahead.unsqueeze(0), mask=first_only)
        tensor([[0., 1.]])
    """
    return _length(_final_differences("pairwise_fde", hypotheses, targets, mask))


@declare_cost(event_dims=2, target_dims=1)
def pairwise_token_cross_entropy(
    *, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the cross-entropy of every (token sequence, hypothesis) pair.

    Args:
        hypotheses: Logits, [..., hypotheses, steps, tokens].
        targets: Token ids, [..., targets, steps]; masked steps are ignored, -100 included.
        mask: Valid tokens, [..., targets, steps]; None if all are valid.
        reduction: Reduction over the valid tokens of a sequence, "mean" or "sum"; the sum is the negative
            log-likelihood.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in the logits; 0 without any valid token.

    Raises:
        TypeError: If the targets are not integers.

    Example:
        >>> logits = torch.zeros(2, 3, 4)  # two hypotheses of three tokens
        >>> pairwise_token_cross_entropy(hypotheses=logits, targets=torch.tensor([[0, 3, 1]]))
        tensor([[1.3863, 1.3863]])
    """
    owner = "pairwise_token_cross_entropy"
    check_choice(owner, "reduction", reduction, ("mean", "sum"))
    logits, ids, mask = aligned_events(owner, hypotheses, targets, mask, event_dims=2, ids=True)
    check_class_ids(owner, ids, logits.shape[-1])
    return cross_entropies(logits, ids, mask, reduction)


def cross_entropies(logits: Tensor, ids: Tensor, mask: Tensor | None, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy of every pair over the valid steps, [..., targets, hypotheses].

    Args:
        logits: Logits, [..., hypotheses, steps, classes].
        ids: Class ids, [..., targets, steps].
        mask: Valid steps, [..., targets, steps], or None.
        reduction: Reduction over the valid steps, "mean" or "sum".
    """
    # Steps first and classes before hypotheses: `gather` then needs no [..., targets, hypotheses, steps, classes].
    log_probs = logits.log_softmax(dim=-1).movedim(-2, -3).mT  # [..., steps, classes, hypotheses]
    picks = ids.long().mT.unsqueeze(-1).expand(*ids.mT.shape, logits.shape[-3])  # [..., steps, targets, hypotheses]
    picked = log_probs.gather(-2, picks).movedim(-3, -1)  # [..., targets, hypotheses, steps]
    weights = step_weights(mask, ids.shape, picked) if reduction == "mean" else picked.new_ones(ids.shape)
    if mask is not None:  # the log-probability of a masked step may be infinite
        picked = picked.masked_fill(~mask.unsqueeze(-2), 0)
    return -(picked * weights.unsqueeze(-2)).sum(dim=-1)


def _length(differences: Tensor) -> Tensor:
    """Return the Euclidean length over the last axis, with gradient 0 where it is 0."""
    squared = differences.square().sum(dim=-1)
    hit = squared == 0
    return squared.masked_fill(hit, 1).sqrt().masked_fill(hit, 0)


def _final_differences(owner: str, hypotheses: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """Return hypothesis - target at the last valid step of each target, [..., targets, hypotheses, dim], or 0."""
    hypotheses, targets, mask = aligned_events(owner, hypotheses, targets, mask, event_dims=2, whole_steps=True)
    if targets.shape[-2] == 0:  # no last step: 0, as if no step were real
        return (hypotheses.sum(dim=-2).unsqueeze(-3) - targets.sum(dim=-2).unsqueeze(-2)).mul(0)
    if mask is None:
        return hypotheses[..., None, :, -1, :] - targets[..., :, None, -1, :]
    n_steps = mask.shape[-1]
    last = n_steps - 1 - mask.flip(-1).to(torch.uint8).argmax(dim=-1)  # [..., targets]
    final = targets.gather(-2, last[..., None, None].expand(*last.shape, 1, targets.shape[-1]))
    # Last step of each hypothesis for each target, [..., hypotheses, targets, dim], then transposed.
    picks = last[..., None, :, None].expand(*last.shape[:-1], hypotheses.shape[-3], last.shape[-1], targets.shape[-1])
    ends = hypotheses.gather(-2, picks).movedim(-2, -3)
    return (ends - final).masked_fill(~mask.any(dim=-1)[..., None, None], 0)
