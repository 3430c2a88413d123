"""The models of a fleet under `AutoAnnealing`: measured now and then, all on the device."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing, AutoValues
from torchmcl.fleet.steps import AutogradStep

__all__ = ["SelfAnnealing"]

# A hundred measurements show when a training goes flat.
_N_MEASUREMENTS = 100


class _Known(NamedTuple):
    """The values of the epochs from `first` up to but not including `stop`."""

    first: int
    stop: int
    values: AutoValues  # [epochs, models] each
    warm: list[bool | None]  # whether all models have a temperature above 0 (True) or none has; None for some


class SelfAnnealing:
    """The policies of a chunk.

    Args:
        rules: of the models; those that are not `AutoAnnealing` are left alone.
        step: measures the costs of the models, and knows how many rows they have.
        n_epochs: of the training.
    """

    def __init__(self, rules: Sequence[Any], step: AutogradStep, n_epochs: int) -> None:
        device = step.models.flat.device
        self.on_cpu = device.type == "cpu"  # where reading a value costs nothing
        self.n_epochs, self._measure = n_epochs, step.measurement()
        # Targets that a model sees in the training: the more, the less weight decay.
        self.n_points, self.n_steps = step.rows.n_points(n_epochs), n_epochs * step.rows.n_steps
        self.chosen = torch.tensor([isinstance(rule, AutoAnnealing) for rule in rules], device=device)
        policies = [rule if isinstance(rule, AutoAnnealing) else AutoAnnealing() for rule in rules]
        self.policy = AutoAnnealing.stacked(policies, device)
        self.every = max(1, n_epochs // _N_MEASUREMENTS)
        self._known: _Known | None = None
        self.state = self.policy.init(torch.zeros(len(policies), device=device))

    def begin(self) -> None:
        """Measure the models before their first epoch."""
        measured = self._measure()
        # Where no cost is finite nothing is known, and nothing is held for.
        for name, value in self.policy.init(measured.scale.nan_to_num(0.0)).items():
            self.state[name].copy_(value)
        self.policy.release(self.state, measured, 0.0)

    def is_due(self, epoch: int) -> bool:
        """Return whether the models are measured after this epoch."""
        return (epoch + 1) % self.every == 0

    def values(self, epoch: Tensor) -> AutoValues:
        """Return temperature, rate factor and weight decay of all models in an epoch, [models] each.

        For models that do not decide themselves they are NaN, 1 and 0.
        """
        if not self.on_cpu:
            return self._values(epoch)
        known = self._known_around(int(epoch))
        return AutoValues(*(value[int(epoch) - known.first] for value in known.values))

    def all_warm(self, epoch: Tensor) -> bool | None:
        """Return whether all models have a temperature above 0 in an epoch (True) or none has (False).

        None: some have, or the values are on a device that should not be waited for.
        """
        if not self.on_cpu:
            return None
        known = self._known_around(int(epoch))
        return known.warm[int(epoch) - known.first]

    def measure(self, epoch: Tensor) -> None:
        """Measure the models after an epoch."""
        if self.on_cpu and not bool(((self.state["begun"] < 0) & self.chosen).any()):
            return  # nobody has anything left to decide
        measured = self._measure()
        self.policy.release(self.state, measured, epoch + 1)
        self.policy.update(self.state, measured.scale, epoch + 1, self.n_epochs)

    def _known_around(self, epoch: int) -> _Known:
        """Return the values of the epochs around this one that are known together.

        On a CPU each of some thirty operations takes longer than what it computes, so all epochs until the next
        measurement are computed at once, and all that are left once nobody holds any more. The block begins at the
        same epoch in a resumed training, for the sake of the last bits.
        """
        if self._known is None or not self._known.first <= epoch < self._known.stop:
            begun = self.state["begun"][self.chosen]
            first, stop = epoch - epoch % self.every, epoch - epoch % self.every + self.every
            if bool((begun >= 0).all()):
                first, stop = int(begun.max()), self.n_epochs
            values = self._values(torch.arange(first, stop).unsqueeze(-1))
            warm = values.temperature > 0  # not NaN
            both = zip(warm.all(dim=-1).tolist(), warm.any(dim=-1).tolist(), strict=True)
            self._known = _Known(first, stop, values, [every if every == any_ else None for every, any_ in both])
        return self._known

    def _values(self, epoch: Tensor) -> AutoValues:
        values = self.policy.value(self.state, epoch, self.n_epochs, self.n_points, self.n_steps)
        others = (torch.nan, 1.0, 0.0)
        return AutoValues(
            *(torch.where(self.chosen, value, other) for value, other in zip(values, others, strict=True))
        )
