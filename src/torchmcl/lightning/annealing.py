"""`AutoAnnealing` in a Lightning training: its state lives in the module, and so in every checkpoint."""

from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.annealing.auto import AutoAnnealing, AutoValues, CostScale, cost_scale
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
    lowest: Tensor
    begun: Tensor
    seen: Tensor

    def __init__(self, policy: AutoAnnealing) -> None:
        super().__init__()
        self.policy = policy
        for name, value in policy.init(torch.tensor(torch.nan)).items():
            self.register_buffer(name, value)
        # Of this epoch and all processes: the sums of mean and spread of batches, their number, and how many had costs
        # below 0. Each process holds the same, as DDP writes the buffers of the first one over those of the others.
        self.register_buffer("seen", torch.zeros(4))

    def rule(self, epoch: float, n_epochs: float) -> AnnealedWTA:
        """Return the rule; infinitely warm before anything was seen."""
        temperature = self._values(epoch, n_epochs).temperature
        return AnnealedWTA(torch.where(temperature.isnan(), torch.finfo(torch.float32).max, temperature))

    def rate(self, epoch: float, n_epochs: float) -> float:
        """Return the factor on the learning rate."""
        return float(self._values(epoch, n_epochs).rate)

    def see(self, matching: Matching, epoch: float, strategy: Any) -> None:
        """Take in the costs of a batch; the first one may already show that there is nothing to hold for."""
        mean, spread, has_zero = cost_scale(matching)
        known = ~mean.isnan()  # a batch may have no real target, or no finite cost
        numbers = torch.where(known, mean, 0.0), torch.where(known, spread, 0.0), known.to(mean), (~has_zero).to(mean)
        self.seen += strategy.reduce(torch.stack(numbers), reduce_op="sum")
        if epoch == 0:
            self.policy.release(self._state(), self._measured(), 0.0)

    def end_epoch(self, epoch: int, n_epochs: float) -> None:
        """Decide, by the mean over the batches of all processes, whether to begin cooling."""
        measured = self._measured()
        self.policy.release(self._state(), measured, epoch + 1.0)
        self.policy.update(self._state(), measured.scale, epoch + 1.0, n_epochs)
        self.seen.zero_()

    def _measured(self) -> CostScale:
        """Return the mean of what all processes have seen in this epoch."""
        mean, spread, number, signed = self.seen.unbind()
        # NaN where nothing was known, and nothing follows from it.
        measured = CostScale(mean / number, spread / number, signed == 0)
        for place in (self.first, self.scale, self.lowest):
            place.copy_(torch.where(place.isnan(), measured.scale, place))
        return measured

    def _state(self) -> dict[str, Tensor]:
        return {"first": self.first, "scale": self.scale, "lowest": self.lowest, "begun": self.begun}

    def _values(self, epoch: float, n_epochs: float) -> AutoValues:
        return self.policy.value(self._state(), epoch, n_epochs, n_rows=1)
