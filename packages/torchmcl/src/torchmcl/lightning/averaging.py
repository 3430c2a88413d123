"""An exponential moving average of the weights, used for validation and at the end."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_fraction
from torchmcl.lightning._backend import pl

__all__ = ["ExponentialAverage"]


class ExponentialAverage(pl.callbacks.WeightAveraging):  # type: ignore[name-defined]
    """Lightning's average of the weights, `decay * average + (1 - decay) * weights` after every step.

    Validation runs with the average, and the model holds it when the training ends. Not with sharded weights.

    Args:
        decay: a factor per step; closer to 1 averages over more steps. It is smaller in the first steps, so that the
            average soon forgets the initial weights.
    """

    def __init__(self, decay: float = 0.999) -> None:
        check_fraction("ExponentialAverage", "decay", decay)
        super().__init__(use_buffers=False, multi_avg_fn=partial(_move_average, decay))

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Copy the model.

        Raises:
            ValueError: if the weights are sharded, which Lightning does not average.
        """
        if isinstance(trainer.strategy, pl.strategies.ModelParallelStrategy | pl.strategies.FSDPStrategy):
            demand = "hold whole weights in every process"
            raise ValueError(bad_value("ExponentialAverage", "strategy", demand, type(trainer.strategy).__name__))
        super().setup(trainer, module, stage)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Move the average to the device of the model, which Lightning changes after the copy."""
        self._average_model.to(module.device)

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """Keep the average in the model, because callbacks that save the best model run later."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Restore the weights."""
        super().on_validation_epoch_end(trainer, module)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Leave the average in the model even if no epoch was left to train."""
        self._copy_average_to_current(module)


def _move_average(decay: float, average: list[Tensor], weights: list[Tensor], n_averaged: Tensor) -> None:
    n_steps = int(n_averaged) + 1
    torch._foreach_lerp_(average, weights, 1 - min(decay, (1 + n_steps) / (10 + n_steps)))
