"""The models of a fleet under `AutoAnnealing`: measured and changed now and then, all on the device."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing.auto import POLICY_CONSTANTS, AutoAnnealing, AutoValues, CostScale
from torchmcl.annealing.moves import HeadTensors, Samples, head_of, planned_moves
from torchmcl.fleet.stacked import replace_where
from torchmcl.fleet.steps import AutogradStep

__all__ = ["SelfAnnealing"]

# A hundred measurements show when a hold goes flat; after it, a quarter as many do.
_N_MEASUREMENTS, _LESS_OFTEN = 100, 4
# The rows that moves are planned on: at least so many, and so many for each hypothesis.
_N_MOVE_ROWS, _N_ROWS_OF_HYPOTHESIS = 512, 32


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
        step: of the models on their rows.
        optimizer: the state of the optimizer, [models, ...] each.
        seeds: of the models.
        n_epochs: of the training.
    """

    def __init__(
        self, rules: Sequence[Any], step: AutogradStep, optimizer: dict[str, Tensor], seeds: Tensor, n_epochs: int
    ) -> None:
        models = step.models
        device = models.flat.device
        self.on_cpu = device.type == "cpu"  # where reading a value costs nothing
        self.n_epochs, self._models, self._optimizer, self._step = n_epochs, models, optimizer, step
        self._measure, self._measure_trained = step.measurements()
        # Targets that a model sees in the training: the more, the less weight decay.
        self.n_points, self.n_steps = step.rows.n_points(n_epochs), n_epochs * step.rows.n_steps
        self.chosen = torch.tensor([isinstance(rule, AutoAnnealing) for rule in rules], device=device)
        policies = [rule if isinstance(rule, AutoAnnealing) else AutoAnnealing() for rule in rules]
        self.policy = AutoAnnealing.stacked(policies, device)
        self.every = max(1, n_epochs // _N_MEASUREMENTS)
        self._known: _Known | None = None
        shape = step.hypotheses_shape()
        self._sizes = {"n_hypotheses": shape[0], "n_coordinates": math.prod(shape[1:])}
        self._head = self._head_tensors()
        self._differences = None if self._head is None else self._head.drawn(seeds.tolist())
        self._samples = self._sampled() if self._head is not None and shape[0] > 1 else None
        zeros = torch.zeros(len(policies), device=device)
        unmeasured = CostScale(zeros, zeros, zeros, torch.ones_like(zeros, dtype=torch.bool))
        self.state = self._init(unmeasured) | {"initial": models.flat.detach().clone()}

    def begin(self) -> None:
        """Measure the models before their first epoch."""
        for name, value in self._init(self._measure()).items():
            self.state[name].copy_(value)
        self.state["initial"].copy_(self._models.flat)

    def is_due(self, epoch: int) -> bool:
        """Return whether the models may be measured after this epoch."""
        return (epoch + 1) % self.every == 0 and epoch + 1 < _settled(POLICY_CONSTANTS.longest * self.n_epochs, self)

    def values(self, epoch: Tensor) -> AutoValues:
        """Return temperature, rate factor and weight decay of all models in an epoch, [models] each.

        For models that do not decide themselves they are NaN, 1 and 0.
        """
        if not self.on_cpu:
            return self.values_of(epoch)
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

    def measure(self, epoch: Tensor, active: Tensor) -> None:
        """Measure the models after an epoch, and change those that are active [models] if their policy asks for it."""
        ended = epoch + 1
        if self.on_cpu and not self._needs_measurement(int(ended)):
            return
        trained = None if self._measure_trained is None else self._measure_trained()
        n_coordinates = self._sizes["n_coordinates"]
        decision = self.policy.update(
            self.state, self._measure(), ended, self.n_epochs, n_coordinates=n_coordinates, trained=trained
        )
        self._known = None
        chosen = self.chosen & active
        rewinds = decision.rewinds & chosen
        replace_where(rewinds, self._models.flat, self.state["initial"])
        for value in self._optimizer.values():
            replace_where(rewinds, value, torch.zeros_like(value))
        if self._head is None or self._differences is None:
            return
        self._head.fan_out(torch.where(chosen, decision.fans_out, 0.0), self._differences)
        moves = decision.moves & chosen
        if self._samples is not None and not (self.on_cpu and not bool(moves.any())):
            samples = self._samples()
            if samples is not None:
                self._head.move(planned_moves(samples, moves))

    def values_of(self, epochs: Tensor) -> AutoValues:
        """Return the values of epochs [epochs, 1], [epochs, models] each."""
        values = self.policy.value(
            self.state, epochs, self.n_epochs, n_rows=self.n_points, n_steps=self.n_steps, **self._sizes
        )
        others = (torch.nan, 1.0, 0.0)
        return AutoValues(
            *(torch.where(self.chosen, value, other) for value, other in zip(values, others, strict=True))
        )

    def _init(self, measured: CostScale) -> dict[str, Tensor]:
        n_coordinates, may_hold = self._sizes["n_coordinates"], self._head is not None
        mean, best, spread = (value.nan_to_num(0.0) for value in measured[:3])  # nothing is held for, then
        measured = CostScale(mean, best, spread, measured.has_zero)
        return self.policy.init(measured, self.n_epochs, n_coordinates=n_coordinates, may_hold=may_hold)

    def _needs_measurement(self, ended: int) -> bool:
        """Return whether a measurement after `ended` epochs can change anything."""
        begun = self.state["begun"][self.chosen]
        if bool((begun < 0).any()):
            return True
        return ended % (_LESS_OFTEN * self.every) == 0 and ended < _settled(float(begun.max()), self)

    def _known_around(self, epoch: int) -> _Known:
        """Return the values of the epochs around this one that are known together.

        On a CPU each of some thirty operations takes longer than its arithmetic, so all epochs until the next
        measurement are computed at once, and all that are left after the last one. The block begins at the same epoch
        in a resumed training, for the sake of the last bits.
        """
        if self._known is None or not self._known.first <= epoch < self._known.stop:
            begun = self.state["begun"][self.chosen]
            first, stop = epoch - epoch % self.every, epoch - epoch % self.every + self.every
            last = _settled(float(begun.max()), self)
            if bool((begun >= 0).all()) and epoch >= last:
                first, stop = last, self.n_epochs
            values = self.values_of(torch.arange(first, stop).unsqueeze(-1))
            warm = values.temperature > 0  # not NaN
            both = zip(warm.all(dim=-1).tolist(), warm.any(dim=-1).tolist(), strict=True)
            self._known = _Known(first, stop, values, [every if every == any_ else None for every, any_ in both])
        return self._known

    def _head_tensors(self) -> HeadTensors | None:
        """Return the weights of the heads, None where the models have not exactly one."""
        if (named := head_of(self._models.template)) is None:
            return None
        name, head = named
        layer = f"{name}.linear" if name else "linear"
        moments = [self._models.split(v) for v in self._optimizer.values() if v.shape == self._models.flat.shape]
        views = [self._models.split(self._models.flat), *moments]
        (weight, bias), *others = [(view[f"{layer}.weight"], view[f"{layer}.bias"]) for view in views]
        return HeadTensors(head, weight, bias, [tensor for pair in others for tensor in pair])

    def _sampled(self) -> Callable[[], Samples | None]:
        """Return a function that gives the samples that moves are planned on."""
        data = self._step.rows.data
        n_rows = max(_N_MOVE_ROWS, _N_ROWS_OF_HYPOTHESIS * self._sizes["n_hypotheses"])
        if data.inputs.shape[1] <= n_rows:
            index = torch.arange(data.inputs.shape[1], device=data.inputs.device).expand(len(self._models), -1)
        else:
            places = torch.rand(n_rows, generator=torch.Generator().manual_seed(0)).to(data.inputs.device)
            index = (places * data.lengths.unsqueeze(-1)).long()
        real = index < data.lengths.unsqueeze(-1)
        index = torch.minimum(index, data.lengths.unsqueeze(-1) - 1)

        def samples() -> Samples | None:
            batch, _ = data.rows(index)
            with torch.no_grad(), self._models.evaluating():
                return Samples.of(self._models(batch.inputs), batch, real)

        return samples


def _settled(begun: float, annealing: SelfAnnealing) -> int:
    """Return the epoch from which on nothing changes in a model that began to cool at an epoch."""
    n_epochs = annealing.n_epochs
    return math.ceil(begun + POLICY_CONSTANTS.last_move * (n_epochs - begun))
