"""`AutoAnnealing` in a fleet: models are measured and modified periodically, on their device."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import AutoAnnealing, MultiHypothesisHead, annealing
from torchmcl_fleet.backends.step import AutogradStep
from torchmcl_fleet.modules.stacked import StackedModules, replace_where

__all__ = ["FleetAnnealing"]


class _Block(NamedTuple):
    """Values of the policies in the epochs from `first` up to but not including `stop`."""

    first: int
    stop: int
    values: annealing.AutoValues  # [epochs, models] each
    warm: list[bool | None]  # True if all models have a temperature above 0, False if none has, else None


class FleetAnnealing:
    """Annealing policies of the models of a chunk.

    Args:
        rules: Rules of the models; rules other than `AutoAnnealing` are ignored.
        step: Training step of the models on their rows.
        optimizer: Tensors of the optimizer state, [models, ...] each.
        seeds: Seeds of the models.
        n_epochs: Number of epochs of the training run.
    """

    def __init__(
        self, rules: Sequence[Any], step: AutogradStep, optimizer: dict[str, Tensor], seeds: Tensor, n_epochs: int
    ) -> None:
        models = step.models
        device = models.flat.device
        self.on_cpu = device.type == "cpu"  # where reading a value does not synchronize
        self.n_epochs, self._models, self._step = n_epochs, models, step
        self._measure, self._measure_trained = step.measurements()
        # Targets seen by a model in training: weight decay falls with their number.
        self._counts = {"n_rows": step.rows.n_points(n_epochs), "n_steps": n_epochs * step.rows.n_steps}
        self.chosen = torch.tensor([isinstance(rule, AutoAnnealing) for rule in rules], device=device)
        policies = [rule if isinstance(rule, AutoAnnealing) else AutoAnnealing() for rule in rules]
        self._driver = annealing.AnnealingDriver(
            AutoAnnealing.stacked(policies, device), models.template, n_models=len(policies), device=device
        )
        self._driver.n_hypotheses, *event = step.hypotheses_shape()
        self._driver.n_coordinates = math.prod(event)
        self.every = max(1, n_epochs // annealing.POLICY_CONSTANTS.n_checks)
        self._block: _Block | None = None
        #: State of the policies, initial weights and buffers; changed in place.
        initial = {f"initial.{name}": value.detach().clone() for name, value in models.state.items()}
        self.state = self._driver.state | initial
        self._weights = _StackedWeights(models, optimizer, self._driver.head, seeds.tolist(), initial)
        may_move = self._driver.may_move and self._driver.n_hypotheses > 1
        self._samples = self._sampled() if may_move else lambda: None

    def begin(self) -> None:
        """Measure the models before their first epoch."""
        mean, best, spread, has_zero = self._measure()
        mean, best, spread = (value.nan_to_num(0.0) for value in (mean, best, spread))  # then there is no hold
        measured = annealing.CostScale(mean, best, spread, has_zero)
        for name, value in self._driver.initial(measured, self.n_epochs, **self._counts).items():
            self.state[name].copy_(value)
        self._driver.warn_without_head()

    def is_due(self, epoch: int) -> bool:
        """Return whether the models may be measured after this epoch."""
        return (epoch + 1) % self.every == 0 and epoch + 1 < self._settled(
            annealing.POLICY_CONSTANTS.longest * self.n_epochs
        )

    def values(self, epoch: Tensor) -> annealing.AutoValues:
        """Return temperature, rate factor and weight decay of all models in an epoch, [models] each.

        For models without `AutoAnnealing` they are NaN, 1 and 0.
        """
        if not self.on_cpu:
            return self.values_of(epoch)
        block = self._block_around(int(epoch))
        return annealing.AutoValues(*(value[int(epoch) - block.first] for value in block.values))

    def all_warm(self, epoch: Tensor) -> bool | None:
        """Return whether all models have a temperature above 0 in an epoch (True) or none has (False).

        None if only some have, or if reading the values would require synchronization with the device.
        """
        if not self.on_cpu:
            return None
        block = self._block_around(int(epoch))
        return block.warm[int(epoch) - block.first]

    def measure(self, ended: int, active: Tensor) -> None:
        """Measure the models after `ended` epochs, and modify the active ones [models] as their policy requires.

        Values are read on the host, which synchronizes with the device after every fiftieth of a training run.
        """
        if not self._needs_measurement(ended):
            return
        trained = None if self._measure_trained is None else self._measure_trained()
        self._driver.end_epoch(
            self._measure(),
            ended,
            self.n_epochs,
            self._weights,
            self._samples,
            active=self.chosen & active,
            trained=trained,
        )
        self._block = None

    def values_of(self, epochs: Tensor) -> annealing.AutoValues:
        """Return the values of epochs [epochs, 1], each [epochs, models]."""
        values = self._driver.values(epochs, self.n_epochs)
        others = (torch.nan, 1.0, 0.0)
        return annealing.AutoValues(
            *(torch.where(self.chosen, value, other) for value, other in zip(values, others, strict=True))
        )

    def _needs_measurement(self, ended: int) -> bool:
        """Return whether a measurement after `ended` epochs can change anything."""
        begun = self.state["begun"][self.chosen]
        if bool((begun < 0).any()):
            return True
        return ended < self._settled(float(begun.max()))

    def _block_around(self, epoch: int) -> _Block:
        """Return the values of a block of epochs that contains this one.

        On a CPU, overhead dominates each of the thirty or so operations, so all epochs until the next measurement
        are computed at once, and all remaining epochs after the last measurement. In a resumed run the block begins
        at the same epoch, so that results are bit-identical.
        """
        if self._block is None or not self._block.first <= epoch < self._block.stop:
            begun = self.state["begun"][self.chosen]
            first, stop = epoch - epoch % self.every, epoch - epoch % self.every + self.every
            last = self._settled(float(begun.max()))
            if bool((begun >= 0).all()) and epoch >= last:
                first, stop = last, self.n_epochs
            values = self.values_of(torch.arange(first, stop).unsqueeze(-1))
            warm = values.temperature > 0  # not NaN
            both = zip(warm.all(dim=-1).tolist(), warm.any(dim=-1).tolist(), strict=True)
            self._block = _Block(first, stop, values, [every if every == any_ else None for every, any_ in both])
        return self._block

    def _settled(self, begun: float) -> int:
        """Return the epoch after which the policy no longer changes a model whose cooling began at epoch `begun`."""
        return 1 + math.ceil(begun + annealing.POLICY_CONSTANTS.settling * (self.n_epochs - begun))

    def _sampled(self) -> Callable[[], annealing.Samples | None]:
        """Return a function that returns the samples from which moves are planned.

        No row is drawn twice: it would agree with itself on where its residual lies.
        """
        data = self._step.rows.data
        n_rows, last = data.inputs.shape[1], data.lengths.unsqueeze(-1) - 1
        order = torch.rand(n_rows, generator=torch.Generator().manual_seed(0)).to(data.inputs.device)
        padding = torch.arange(n_rows, device=order.device) > last
        drawn = order.masked_fill(padding, 2.0).topk(min(n_rows, self._driver.n_samples), largest=False)
        index = drawn.indices.sort().values
        real, index = index <= last, torch.minimum(index, last)

        def samples() -> annealing.Samples | None:
            batch, _ = data.rows(index)
            with torch.no_grad(), self._models.evaluating():
                return annealing.Samples.of(self._models(batch.inputs), batch, real)

        return samples


class _StackedWeights:
    """Weights of stacked models, see `torchmcl.annealing.TrainedWeights`.

    Args:
        models: Models in training.
        optimizer: Tensors of the optimizer state, [models, ...] each.
        head: Name and module of the head; None unless the models have exactly one head.
        seeds: Seeds of the models.
        initial: Initial weights and buffers, "initial." and their name in the state of the models.
    """

    def __init__(
        self,
        models: StackedModules,
        optimizer: dict[str, Tensor],
        head: tuple[str, MultiHypothesisHead] | None,
        seeds: Sequence[int],
        initial: dict[str, Tensor],
    ) -> None:
        self._state, self._optimizer, self._initial = models.state, optimizer, initial
        if head is None:
            return
        layer = f"{head[0]}.linear" if head[0] else "linear"
        moments = [models.split(value) for value in optimizer.values() if value.shape == models.flat.shape]
        views = [models.split(models.flat), *moments]
        (weight, bias), *others = [(view[f"{layer}.weight"], view[f"{layer}.bias"]) for view in views]
        self._head = annealing.HeadTensors(head[1], weight, bias, [tensor for pair in others for tensor in pair])
        self._constants = self._head.random_constants(seeds)

    def rewind(self, models: Tensor) -> None:
        """Reset the selected models to their initial weights and buffers, with zero moments."""
        for name, value in self._state.items():
            replace_where(models, value, self._initial[f"initial.{name}"])
        for value in self._optimizer.values():
            replace_where(models, value, torch.zeros_like(value))

    def separate(self, factors: Tensor) -> None:
        """Set the hypotheses to their mean plus random constants, which are multiplied by the factor of each model."""
        self._head.separate(factors, self._constants)

    def move(self, moves: annealing.Moves) -> None:
        """Give each hypothesis the weights of its source, and shift its outputs."""
        self._head.move(moves)
