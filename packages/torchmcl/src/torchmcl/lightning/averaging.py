"""An exponential moving average of the weights, used for validation and at the end."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import check_fraction
from torchmcl.lightning._backend import pl
from torchmcl.lightning.sharding import sharded_like, sharded_weights

__all__ = ["ExponentialAverage"]


class ExponentialAverage(pl.Callback):  # type: ignore[name-defined]
    """Keep an average of the weights, `decay * average + (1 - decay) * weights` after every step.

    Validation runs with the average, and the model holds it when the training ends.

    Args:
        decay: a factor per step; closer to 1 averages over more steps. It is smaller in the first steps, so that the
            average soon forgets the initial weights.
    """

    def __init__(self, decay: float = 0.999) -> None:
        check_fraction("ExponentialAverage", "decay", decay)
        self.decay = decay
        self.n_steps = 0
        self._average: dict[str, Tensor] = {}
        self._swapped = False

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Start from the current weights, unless an average was loaded."""
        weights = sharded_weights(module.model)
        self._average = {
            name: sharded_like(self._average.get(name, w.clone()), w).to(w.device) for name, w in weights.items()
        }

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the average towards the weights, once per step of the optimizer."""
        if trainer.global_step == self.n_steps:
            return
        self.n_steps = trainer.global_step
        decay = min(self.decay, (1 + self.n_steps) / (10 + self.n_steps))
        weights = sharded_weights(module.model)
        # One launch for all: a network has hundreds of weights.
        torch._foreach_lerp_([self._average[name] for name in weights], list(weights.values()), 1 - decay)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Validate the average."""
        if self._average and not trainer.sanity_checking:
            self._swap(module)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Restore the weights."""
        if self._swapped:
            self._swap(module)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Leave the average in the model."""
        self.copy_to(module.model)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Leave the average in the model even if no epoch was left to train."""
        self.copy_to(module.model)

    @torch.no_grad()
    def copy_to(self, model: torch.nn.Module) -> None:
        """Write the average into a model."""
        for name, weight in sharded_weights(model).items():
            if name in self._average:
                weight.copy_(sharded_like(self._average[name], weight))

    @torch.no_grad()
    def _swap(self, module: Any) -> None:
        for name, weight in sharded_weights(module.model).items():
            swapped = weight.clone()
            weight.copy_(self._average[name])
            self._average[name].copy_(swapped)
        self._swapped = not self._swapped

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume."""
        return {"n_steps": self.n_steps, "average": {name: w.clone() for name, w in self._average.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""
        self.n_steps, self._average = state["n_steps"], dict(state["average"])
