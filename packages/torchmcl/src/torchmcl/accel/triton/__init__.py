"""Kernels in Triton. The functions import their kernels when called, so importing torchmcl does not need Triton."""

from torch import Tensor

__all__ = [
    "one_target_losses",
    "softmin",
    "squared_distances",
    "summed_cross_entropy",
    "weighted_sum",
    "winner_weights",
]


def squared_distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return |h - t|^2 of every pair, [..., targets, hypotheses]."""
    from torchmcl.accel.triton import pairs

    return pairs.squared_distances(hypotheses, targets)


def softmin(cost: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the softmin of each row for a single finite temperature."""
    from torchmcl.accel.triton import rows

    return rows.softmin(cost, temperature)


def winner_weights(cost: Tensor, winner: float | Tensor = 1.0, other: float | Tensor = 0.0) -> Tensor:
    """Return `winner` at the cheapest hypothesis of each row and `other` elsewhere, for numbers."""
    from torchmcl.accel.triton import rows

    return rows.winner_weights(cost, winner, other)


def weighted_sum(weights: Tensor, cost: Tensor) -> Tensor:
    """Return the sum of weights * cost over the last axis."""
    from torchmcl.accel.triton import rows

    return rows.weighted_sum(weights, cost)


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of logits, summed over the last axis."""
    from torchmcl.accel.triton import rows

    return rows.summed_cross_entropy(logits, labels)


def one_target_losses(
    hypotheses: Tensor, targets: Tensor, logits: Tensor | None, temperature: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return cost, weights and both losses of a step with one target for each sample."""
    from torchmcl.accel.triton import one_target

    return one_target.one_target_losses(hypotheses, targets, logits, temperature, epsilon)
