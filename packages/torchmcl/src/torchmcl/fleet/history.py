"""The state of a training run, its history, and the first non-finite losses."""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.fleet.models import StackedModules

__all__ = ["ChunkState", "FirstFailures", "FleetHistory"]

# Losses of this many batches are checked together: often enough to hold few of them, too seldom to cost time.
_AT_ONCE = 256


@dataclass
class ChunkState:
    """All tensors that change during training; they are updated in place."""

    models: dict[str, Tensor]
    best: dict[str, Tensor]  # the models at their best evaluation; empty without validation
    optimizer: dict[str, Tensor]
    annealing: dict[str, Tensor]
    epoch: Tensor
    losses: Tensor  # [epochs, models], and so are the next three
    watched: Tensor
    temperatures: Tensor
    learning_rates: Tensor
    best_value: Tensor  # [models], and so are the next three
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_step: Tensor

    @classmethod
    def of(
        cls,
        models: StackedModules,
        n_epochs: int,
        *,
        optimizer: dict[str, Tensor],
        annealing: dict[str, Tensor],
        keep_best: bool,
    ) -> "ChunkState":
        """Return the state before the first epoch."""
        n_models, device = len(models), models.flat.device
        # Decisions and records have at least single precision, also for models in half precision.
        number: dict[str, Any] = {"dtype": torch.promote_types(models.flat.dtype, torch.float32), "device": device}
        return cls(
            models=models.state,
            best={name: value.clone() for name, value in models.state.items()} if keep_best else {},
            optimizer=optimizer,
            annealing=annealing,
            epoch=torch.zeros((), dtype=torch.long, device=device),
            losses=torch.zeros(n_epochs, n_models, **number),
            watched=torch.full((n_epochs, n_models), torch.nan, **number),
            temperatures=torch.full((n_epochs, n_models), torch.nan, **number),
            learning_rates=torch.full((n_epochs, n_models), torch.nan, **number),
            best_value=torch.full((n_models,), torch.inf, **number),
            best_epoch=torch.full((n_models,), -1, device=device),
            stopped_epoch=torch.full((n_models,), -1, device=device),
            failed_step=torch.full((n_models,), -1, device=device),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, for checkpoints and captured epochs."""
        named: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            named |= {name: value} if isinstance(value, Tensor) else {f"{name}.{key}": v for key, v in value.items()}
        return named


class FleetHistory(NamedTuple):
    """The history of a training run, on the CPU.

    Attributes:
        losses: [epochs, models], mean training loss of each epoch; NaN after early stopping ended a model.
        best_value: [models], best monitored value (infinite without validation).
        best_epoch: [models], the epoch it was reached at, counted from 0 (-1 without validation).
        stopped_epoch: [models], the epoch early stopping ended a model at (-1: it trained to the end).
        failed_epoch: [models], the first epoch with a loss that is not finite (-1: none).
        failed_batch: [models], the batch of `failed_epoch` with that loss, counted from 0 (-1: none).
        watched: [epochs, models], the monitored value of each epoch; NaN where it was not evaluated.
        temperatures: [epochs, models], decided by `AutoAnnealing`; NaN for models under another rule, and None if
            there is no such model.
        learning_rates: [epochs, models], as they were used; NaN after early stopping ended a model.
        seconds: wall time of the training itself.
    """

    losses: Tensor
    best_value: Tensor
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_epoch: Tensor
    failed_batch: Tensor
    watched: Tensor
    temperatures: Tensor | None
    learning_rates: Tensor
    seconds: float

    @classmethod
    def of(
        cls, state: ChunkState, failures: "FirstFailures", temperatures: Tensor | None, seconds: float
    ) -> "FleetHistory":
        """Return the history of a chunk."""
        losses, watched, stopped = state.losses.cpu(), state.watched.cpu(), state.stopped_epoch.cpu()
        # A model has no loss after its end, while others continue.
        epochs = torch.arange(len(losses)).unsqueeze(-1)
        after = (stopped >= 0) & (epochs > stopped)
        losses, watched = losses.masked_fill(after, torch.nan), watched.masked_fill(after, torch.nan)
        bad = ~losses.isfinite() & ~after
        failed = torch.where(bad.any(dim=0), bad.int().argmax(dim=0), -1)
        best_value, best_epoch = state.best_value.cpu(), state.best_epoch.cpu()
        batches = failures.batches(failed)
        rates = state.learning_rates.cpu().masked_fill(after, torch.nan)
        temperatures = None if temperatures is None else temperatures.masked_fill(after, torch.nan)
        return cls(losses, best_value, best_epoch, stopped, failed, batches, watched, temperatures, rates, seconds)

    def first_failure(self, model: int) -> str:
        """Return a description of the first non-finite loss of a failed model."""
        epoch = f"epoch {int(self.failed_epoch[model])}"
        return epoch if self.failed_batch[model] < 0 else f"batch {int(self.failed_batch[model])} of {epoch}"

    def warn_of_failures(self) -> None:
        """Warn the caller of `Fleet.fit` about models with a NaN or infinite loss."""
        failed = (self.failed_epoch >= 0).nonzero().flatten().tolist()
        if failed:
            where = f"model {failed[0]} was the first of them, from {self.first_failure(failed[0])} on"
            warnings.warn(
                f"Fleet: the loss of {len(failed)} of {len(self.failed_epoch)} models is not finite; {where}. The "
                "others are not affected. Their weights are the last finite ones: look at their rows, or fit them "
                "again with a lower `learning_rate`.",
                RuntimeWarning,
                stacklevel=3,
            )

    @classmethod
    def joined(cls, parts: "list[FleetHistory]") -> "FleetHistory":
        """Return the history of a fleet from those of its chunks."""
        decided = None
        if any(part.temperatures is not None for part in parts):
            filled = [
                torch.full_like(part.losses, torch.nan) if part.temperatures is None else part.temperatures
                for part in parts
            ]
            decided = torch.cat(filled, dim=-1)
        names = set(cls._fields) - {"temperatures", "seconds"}
        joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts], dim=-1) for name in names}
        return cls(**joined, temperatures=decided, seconds=sum(part.seconds for part in parts))


class FirstFailures:
    """Records the first non-finite loss of each model without synchronization.

    Args:
        step: [models], filled with -1; becomes the batch of the first bad loss, counted from the start of the training.
        n_batches: of an epoch.

    Example:
        >>> failures = FirstFailures(torch.tensor([-1, -1]), n_batches=3)
        >>> for loss in ([1.0, 1.0], [1.0, torch.nan], [1.0, 1.0]):
        ...     failures.see(torch.tensor(loss), epoch=torch.tensor([4]))
        >>> failures.step
        tensor([-1, 13])
        >>> failures.batches(torch.tensor([-1, 4]))
        tensor([-1,  1])
    """

    def __init__(self, step: Tensor, n_batches: int) -> None:
        self.step, self.n_batches = step, n_batches
        self._seen, self._waiting = 0, list[Tensor]()

    def see(self, losses: Tensor, *, epoch: Tensor) -> None:
        """Record the losses [models] of the next batch; after the last one the next epoch begins."""
        self._seen += 1
        if self.n_batches == 1:
            return  # the epoch is enough
        self._waiting.append(losses)
        if len(self._waiting) == _AT_ONCE or self._seen == self.n_batches:
            self._check(epoch)

    def forget(self) -> None:
        """Begin an epoch, also after an interrupted one."""
        self._seen = 0
        self._waiting.clear()

    def batches(self, epochs: Tensor) -> Tensor:
        """Return the batch of each model's first bad loss [models], counted from 0 (-1: none), given its epoch."""
        if self.n_batches == 1:
            return torch.where(epochs >= 0, 0, -1)
        step = self.step.cpu()
        known = (epochs >= 0) & (step >= 0) & (step // self.n_batches == epochs)
        return torch.where(known, step % self.n_batches, -1)

    def _check(self, epoch: Tensor) -> None:
        losses, first = torch.stack(self._waiting), self._seen - len(self._waiting)
        self._waiting.clear()
        bad = ~losses.isfinite()
        if losses.device.type == "cpu" and not bool(bad.any()):  # reading a value is free on the CPU
            return
        step = epoch * self.n_batches + first + bad.int().argmax(dim=0)
        self.step.copy_(torch.where(bad.any(dim=0) & (self.step < 0), step, self.step))
