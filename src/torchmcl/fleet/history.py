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
        watched: [epochs, models], the monitored value of each epoch; NaN where there was no look at it.
    """

    losses: Tensor
    best_value: Tensor
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_epoch: Tensor
    seconds: float
    watched: Tensor | None = None

    @classmethod
    def joined(cls, parts: "list[FleetHistory]") -> "FleetHistory":
        """Return the history of a fleet from those of its chunks."""
        *columns, seconds, watched = zip(*parts, strict=True)
        losses, value, epoch, stopped, failed = (torch.cat(column, dim=-1) for column in columns)
        looks = [look for look in watched if look is not None]
        return cls(losses, value, epoch, stopped, failed, sum(seconds), torch.cat(looks, dim=-1) if looks else None)
