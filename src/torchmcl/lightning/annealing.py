"""`AutoAnnealing` in a Lightning training: its state lives in the module, and so in every checkpoint."""

from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.annealing.auto import AutoAnnealing, AutoValues, cost_scale
from torchmcl.assignment import AnnealedWTA
from torchmcl.types import Matching

__all__ = ["SelfAnnealed"]


class SelfAnnealed(nn.Module):
    """The policy with its state as buffers; values stay on the device.

    Args:
        policy: what decides.
    """

    first: Tensor
    scale: Tensor
    begun: Tensor
    seen: Tensor

    def __init__(self, policy: AutoAnnealing) -> None:
        super().__init__()
        self.policy = policy
        for name, value in policy.init(torch.tensor(torch.nan)).items():
            self.register_buffer(name, value)
        self.register_buffer("seen", torch.zeros(2))  # the sum of the scales of this epoch, and their number

    def rule(self, epoch: float, n_epochs: int) -> AnnealedWTA:
        """Return the rule; infinitely warm before anything was seen."""
        temperature = self._values(epoch, n_epochs).temperature
        return AnnealedWTA(torch.where(temperature.isnan(), torch.finfo(torch.float32).max, temperature))

    def rate(self, epoch: float, n_epochs: int) -> float:
        """Return the factor on the learning rate."""
        return float(self._values(epoch, n_epochs).rate)

    def see(self, matching: Matching) -> None:
        """Take in the costs of a batch."""
        scale = cost_scale(matching)
        for place in (self.first, self.scale):
            place.copy_(torch.where(place.isnan(), scale, place))
        self.seen += torch.stack([scale, torch.ones_like(scale)])

    def end_epoch(self, epoch: int, n_epochs: int, strategy: Any) -> None:
        """Decide, by the mean over the batches of all processes, whether to begin cooling."""
        total, number = strategy.reduce(self.seen.clone(), reduce_op="sum").unbind()
        self.policy.update(self._state(), total / number.clamp_min(1), epoch + 1.0, n_epochs)
        self.seen.zero_()

    def _state(self) -> dict[str, Tensor]:
        return {"first": self.first, "scale": self.scale, "begun": self.begun}

    def _values(self, epoch: float, n_epochs: int) -> AutoValues:
        return self.policy.value(self._state(), epoch, n_epochs, n_rows=1)
