"""The batch in which a model's loss was first not finite, found without a wait for the device."""

import torch
from torch import Tensor

__all__ = ["FirstFailures"]

# Losses of so many batches are looked at together: often enough to hold few of them, too seldom to cost time.
_AT_ONCE = 256


class FirstFailures:
    """Watches the losses of a chunk go by.

    Args:
        n_models: of the chunk.
        n_batches: of an epoch.
        device: of the losses.

    Attributes:
        step: [models], the batch of the first bad loss, counted from the start of the training (-1: none yet).

    Example:
        >>> failures = FirstFailures(2, n_batches=3, device=torch.device("cpu"))
        >>> for loss in ([1.0, 1.0], [1.0, torch.nan], [1.0, 1.0]):
        ...     failures.see(torch.tensor(loss), epoch=torch.tensor([4]))
        >>> failures.step
        tensor([-1, 13])
        >>> failures.batches(torch.tensor([-1, 4]))
        tensor([-1,  1])
    """

    def __init__(self, n_models: int, n_batches: int, device: torch.device) -> None:
        self.n_batches = n_batches
        self.step = torch.full((n_models,), -1, device=device)
        self._seen, self._waiting = 0, list[Tensor]()

    def see(self, losses: Tensor, *, epoch: Tensor) -> None:
        """Take the losses [models] of the next batch; after the last one the epoch begins anew."""
        self._seen += 1
        if self.n_batches == 1:
            return  # the epoch says it all
        self._waiting.append(losses)
        if len(self._waiting) == _AT_ONCE or self._seen == self.n_batches:
            self._look(epoch)

    def forget(self) -> None:
        """Begin an epoch, also after one that was broken off."""
        self._seen = 0
        self._waiting.clear()

    def batches(self, epochs: Tensor) -> Tensor:
        """Return the batch of each model's first bad loss, given its epoch.

        Args:
            epochs: [models], -1 for none.

        Returns:
            [models], counted from 0; -1 where there is none, or where an earlier version saved the training after it.
        """
        if self.n_batches == 1:
            return torch.where(epochs >= 0, 0, -1)
        step = self.step.cpu()
        known = (epochs >= 0) & (step >= 0) & (step // self.n_batches == epochs)
        return torch.where(known, step % self.n_batches, -1)

    def _look(self, epoch: Tensor) -> None:
        losses, first = torch.stack(self._waiting), self._seen - len(self._waiting)
        self._waiting.clear()
        bad = ~losses.isfinite()
        if losses.device.type == "cpu" and not bool(bad.any()):  # a look costs nothing on the CPU, and a wait elsewhere
            return
        step = epoch * self.n_batches + first + bad.int().argmax(dim=0)
        self.step.copy_(torch.where(bad.any(dim=0) & (self.step < 0), step, self.step))
