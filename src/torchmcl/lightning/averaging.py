"""An exponential moving average of the weights, used for validation and at the end."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import check_fraction
from torchmcl.lightning._backend import pl
from torchmcl.lightning.sharding import sharded_weights, shared_out

__all__ = ["ExponentialAverage"]


class ExponentialAverage(pl.Callback):  # type: ignore[name-defined]
    """Keep an average of the weights, `decay * average + (1 - decay) * weights` after every step.

    Validation runs with the average, and the model holds it when the training ends.

    Args:
        decay: closer to 1 averages over more steps; the first steps count less, so that the average
            soon forgets where it began.
    """

    def __init__(self, decay: float = 0.999) -> None:
        check_fraction("ExponentialAverage", "decay", decay)
        self.decay = decay
        self.n_steps = 0
        self._average: dict[str, Tensor] = {}
        self._swapped = False

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin with the weights as they are, unless an average was loaded."""
        here = sharded_weights(module.model)
        self._average = {
            name: shared_out(self._average.get(name, w.clone()), w).to(w.device) for name, w in here.items()
        }

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the average towards the weights, once for each step of the optimizer."""
        if trainer.global_step == self.n_steps:
            return
        self.n_steps = trainer.global_step
        decay = min(self.decay, (1 + self.n_steps) / (10 + self.n_steps))
        for name, weight in sharded_weights(module.model).items():
            self._average[name].lerp_(weight, 1 - decay)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Validate the average."""
        if self._average and not trainer.sanity_checking:
            self._swap(module)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Give the weights back."""
        if self._swapped:
            self._swap(module)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Leave the average in the model."""
        self.copy_to(module.model)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Leave the average in the model also where no epoch was left to train."""
        self.copy_to(module.model)

    @torch.no_grad()
    def copy_to(self, model: torch.nn.Module) -> None:
        """Write the average into a model."""
        for name, weight in sharded_weights(model).items():
            if name in self._average:
                weight.copy_(shared_out(self._average[name], weight))

    @torch.no_grad()
    def _swap(self, module: Any) -> None:
        for name, weight in sharded_weights(module.model).items():
            kept = weight.clone()
            weight.copy_(self._average[name])
            self._average[name].copy_(kept)
        self._swapped = not self._swapped

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on later."""
        return {"n_steps": self.n_steps, "average": {name: w.clone() for name, w in self._average.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.n_steps, self._average = state["n_steps"], dict(state["average"])
