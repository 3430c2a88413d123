"""Objectives of a reduction: a low expected cost, or few misses."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from torchmcl._checks import check_non_negative

__all__ = ["ExpectedCost", "MissRate", "ReductionObjective"]


@dataclass(frozen=True)
class ReductionObjective(ABC):
    """The loss as a function of the cost of the nearest hypothesis."""

    @abstractmethod
    def __call__(self, cost: Tensor) -> Tensor:
        """Return the loss at each cost; it is non-decreasing."""


@dataclass(frozen=True)
class ExpectedCost(ReductionObjective):
    """The cost itself: the expected distortion.

    Example:
        >>> import torch
        >>> ExpectedCost()(torch.tensor([0.5, 3.0]))
        tensor([0.5000, 3.0000])
    """

    def __call__(self, cost: Tensor) -> Tensor:
        """Return the cost."""
        return cost


@dataclass(frozen=True)
class MissRate(ReductionObjective):
    """1 for costs above a threshold: the expected miss rate.

    Args:
        threshold: >= 0, in the units of the cost; a cost equal to it is not a miss.

    Example:
        >>> import torch
        >>> MissRate(threshold=2.0)(torch.tensor([0.5, 3.0]))
        tensor([0., 1.])
    """

    threshold: float

    def __post_init__(self) -> None:
        """Check the field."""
        check_non_negative("MissRate", "threshold", self.threshold)

    def __call__(self, cost: Tensor) -> Tensor:
        """Return 1 for each miss."""
        return (cost > self.threshold).to(cost.dtype)
