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
        temperatures: [epochs, models], what `AutoAnnealing` decided on; NaN for models under another rule, and None
            if there is no such model.
        failed_batch: [models], the batch of `failed_epoch` with that loss, counted from 0 (-1: none, or the training
            was saved by an earlier version after it).
        rates: [epochs, models], the factor on the learning rate that `AutoAnnealing` decided on; 1 for models under
            another rule, and None if there is no such model.
    """

    losses: Tensor
    best_value: Tensor
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_epoch: Tensor
    seconds: float
    watched: Tensor | None = None
    temperatures: Tensor | None = None
    failed_batch: Tensor | None = None
    rates: Tensor | None = None

    def first_failure(self, model: int) -> str:
        """Return in words where the loss of a model that failed was first not finite."""
        epoch = f"epoch {int(self.failed_epoch[model])}"
        if self.failed_batch is None or self.failed_batch[model] < 0:
            return epoch
        return f"batch {int(self.failed_batch[model])} of {epoch}"

    def failures(self) -> str | None:
        """Return in words which models failed, None if none did."""
        if (failed := (self.failed_epoch >= 0).nonzero().flatten().tolist()) == []:
            return None
        n_failed, n_models = len(failed), len(self.failed_epoch)
        where = f"model {failed[0]} was the first of them, from {self.first_failure(failed[0])} on"
        return (
            f"Fleet: the loss of {n_failed} of {n_models} models is not finite; {where}. The others are "
            "not affected. Their weights are the last finite ones: look at their rows, or fit them again with a lower "
            "`lr`."
        )

    @classmethod
    def joined(cls, parts: "list[FleetHistory]") -> "FleetHistory":
        """Return the history of a fleet from those of its chunks."""
        *columns, seconds, watched, temperatures, batches, rates = zip(*parts, strict=True)
        losses, value, epoch, stopped, failed = (torch.cat(column, dim=-1) for column in columns)
        looks = [look for look in watched if look is not None]
        failed_in = [batch for batch in batches if batch is not None]
        decided, factors = (
            [torch.full_like(part.losses, usual) if own is None else own for part, own in zip(parts, each, strict=True)]
            for each, usual in ((temperatures, torch.nan), (rates, 1.0))
        )
        return cls(
            losses,
            value,
            epoch,
            stopped,
            failed,
            sum(seconds),
            torch.cat(looks, dim=-1) if looks else None,
            torch.cat(decided, dim=-1) if any(own is not None for own in temperatures) else None,
            torch.cat(failed_in) if failed_in else None,
            torch.cat(factors, dim=-1) if any(own is not None for own in rates) else None,
        )
