"""What a fleet's training recorded."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FleetHistory"]


class FleetHistory(NamedTuple):
    """The course of a training, on the CPU.

    Attributes:
        losses: [epochs, models], mean training loss of each epoch; NaN after early stopping ended a model.
        best_value: [models], best monitored value (infinite without validation).
        best_epoch: [models], the epoch it was reached at, counted from 0 (-1 without validation).
        stopped_epoch: [models], the epoch early stopping ended a model at (-1: it trained to the end).
        failed_epoch: [models], the first epoch with a loss that is not finite (-1: none).
        seconds: wall time of the training itself.
    """

    losses: Tensor
    best_value: Tensor
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_epoch: Tensor
    seconds: float

    @classmethod
    def joined(cls, parts: "list[FleetHistory]") -> "FleetHistory":
        """Return the history of a fleet from those of its chunks."""
        *columns, seconds = zip(*parts, strict=True)
        losses, value, epoch, stopped, failed = (torch.cat(column, dim=-1) for column in columns)
        return cls(losses, value, epoch, stopped, failed, sum(seconds))
