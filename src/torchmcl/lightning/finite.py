"""Only finite steps reach the weights, under Lightning."""

from typing import Any

from torch import Tensor

from torchmcl.lightning._backend import pl
from torchmcl.training.finite import FiniteSteps

__all__ = ["FiniteTraining"]


class FiniteTraining(pl.Callback):  # type: ignore[name-defined]
    """Stop at a loss or gradient that is not finite, and say at which batch; the last checkpoint stays good.

    Args:
        skip: how many batches in all may be left out, each with a warning, before the training is stopped.
    """

    def __init__(self, skip: int = 0) -> None:
        self._steps = FiniteSteps([], skip=skip)
        self._loss: Tensor | None = None

    def on_before_backward(self, trainer: Any, module: Any, loss: Tensor) -> None:
        """Keep the loss."""
        self._loss = loss.detach()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Look at it and at the gradients; without gradients an optimiser changes nothing.

        Raises:
            NonFiniteLoss: if they are not finite and no more batches may be left out.
        """
        self._steps.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if self._loss is not None:
            batch = trainer.fit_loop.batch_idx
            self._steps(self._loss, f"batch {batch} of epoch {trainer.current_epoch} (step {trainer.global_step})")
