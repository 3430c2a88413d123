"""The models of a fleet that anneal by themselves: measured now and then, all on the device."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing, AutoValues, CostScale, cost_scale
from torchmcl.assignment import WTA
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.shortcuts import MeanCost
from torchmcl.fleet.stacked import StackedModules
from torchmcl.losses import match

__all__ = ["SelfAnnealing"]

# A hundred looks at some hundred rows: enough to see when a training goes flat, for a percent or two of its time.
_N_LOOKS, _N_ROWS = 100, 256


class _Ahead(NamedTuple):
    """What is known of the epochs from `first` up to but not including `stop`."""

    first: int
    stop: int
    values: AutoValues  # [epochs, models] each
    warm: list[bool | None]  # whether all models have a temperature above 0, or none; None for some


class SelfAnnealing:
    """The policies of a chunk, and the rows they are measured on.

    Args:
        rules: of the models; those that are no `AutoAnnealing` are left alone.
        models: the models, untrained.
        data: their training rows.
        validation: rows that they are not trained on, to measure them on instead: a network of few rows learns them by
            heart, and then they tell nothing of the noise.
        cost_fn: what is measured.
        n_epochs: of the training.
        batch_size: rows of an optimiser step.
        fresh: whether every epoch has new rows, which cannot be learnt by heart.
    """

    def __init__(
        self,
        rules: Sequence[Any],
        models: StackedModules,
        data: FleetData,
        validation: FleetData | None,
        cost_fn: Callable[..., Tensor],
        n_epochs: int,
        batch_size: int,
        *,
        fresh: bool = False,
    ) -> None:
        device = models.flat.device
        self.models, self.cost_fn, self.n_epochs = models, cost_fn, n_epochs
        self.chosen = torch.tensor([isinstance(rule, AutoAnnealing) for rule in rules], device=device)
        policies = [rule if isinstance(rule, AutoAnnealing) else AutoAnnealing() for rule in rules]
        self.policy = AutoAnnealing.stacked(policies, device)
        self.lengths = data.lengths
        self.n_points = self.lengths * data.targets.shape[2] * (n_epochs if fresh else 1)
        self.n_steps = n_epochs * torch.ceil(self.lengths / batch_size)
        self.every = max(1, n_epochs // _N_LOOKS)
        # The same places for all, spread over the rows that each has; drawn, as rows may be sorted.
        places = torch.rand(_N_ROWS, generator=torch.Generator().manual_seed(0)).to(device)
        self.rows = data if validation is None else validation
        self.index = (places * self.rows.lengths.unsqueeze(-1)).long()
        self.inputs, self.targets = self.rows.rows(self.index)
        self.mean_cost: MeanCost | None = None
        self._ahead: _Ahead | None = None
        measured = self._measured()
        # Where no cost is finite nothing is known, and nothing is held for.
        self.state = self.policy.init(measured.scale.nan_to_num(0.0))
        self.policy.release(self.state, measured, 0.0)

    def compile(self) -> None:
        """Measure by compiled code from now on, where it serves."""
        self.mean_cost = MeanCost.of(self.models, self.rows, self.index[0], self.cost_fn)

    def is_due(self, epoch: int) -> bool:
        """Return whether the models are measured after this epoch."""
        return (epoch + 1) % self.every == 0

    def values(self, epoch: Tensor) -> AutoValues:
        """Return temperature, rate factor and weight decay of all models in an epoch, [models] each.

        Of models that do not decide by themselves they are NaN, 1 and 0.
        """
        if self.mean_cost is None:
            return self._values(epoch)
        ahead = self._known_ahead(int(epoch))
        return AutoValues(*(value[int(epoch) - ahead.first] for value in ahead.values))

    def all_warm(self, epoch: Tensor) -> bool | None:
        """Return whether all models have a temperature above 0 in an epoch (True) or none has (False).

        None: some have, or the values are on a device that nobody wants to wait for.
        """
        if self.mean_cost is None:
            return None
        ahead = self._known_ahead(int(epoch))
        return ahead.warm[int(epoch) - ahead.first]

    def _known_ahead(self, epoch: int) -> "_Ahead":
        """Return the values of the epochs around this one that are known together.

        On a CPU each of some thirty operations takes longer than what it computes: all epochs until the next look at
        once, and all that are left when nobody holds any more. They begin with the same epoch wherever a training goes
        on, for the sake of the last bits.
        """
        if self._ahead is None or not self._ahead.first <= epoch < self._ahead.stop:
            begun = self.state["begun"][self.chosen]
            first, stop = epoch - epoch % self.every, epoch - epoch % self.every + self.every
            if bool((begun >= 0).all()):
                first, stop = int(begun.max()), self.n_epochs
            values = self._values(torch.arange(first, stop).unsqueeze(-1))
            warm = values.temperature > 0  # not NaN
            both = zip(warm.all(dim=-1).tolist(), warm.any(dim=-1).tolist(), strict=True)
            self._ahead = _Ahead(first, stop, values, [whole if whole == some else None for whole, some in both])
        return self._ahead

    def _values(self, epoch: Tensor) -> AutoValues:
        values = self.policy.value(self.state, epoch, self.n_epochs, self.n_points, self.n_steps)
        others = (torch.nan, 1.0, 0.0)
        return AutoValues(
            *(torch.where(self.chosen, value, other) for value, other in zip(values, others, strict=True))
        )

    def rates(self) -> Tensor:
        """Return the factor on the learning rate of each epoch, [epochs, models], as far as it is decided."""
        return self._values(torch.arange(self.n_epochs, device=self.chosen.device).unsqueeze(-1)).rate

    def measure(self, epoch: Tensor) -> None:
        """Look at the models after an epoch."""
        if self.mean_cost is not None and not bool(((self.state["begun"] < 0) & self.chosen).any()):
            return  # on a CPU a value can be read, and nobody has anything to decide any more
        measured = self._measured()
        if self.mean_cost is None:  # which is of squares, and they have a zero
            self.policy.release(self.state, measured, epoch + 1)
        self.policy.update(self.state, measured.scale, epoch + 1, self.n_epochs)

    @torch.no_grad()
    def _measured(self) -> CostScale:
        if self.mean_cost is not None:
            mean = self.mean_cost()
            return CostScale(mean, mean, torch.ones_like(mean, dtype=torch.bool))  # squared distances have a zero
        with self.models.evaluating():
            hypotheses = self.models(self.inputs).hypotheses
        cost = self.cost_fn(hypotheses=hypotheses, targets=self.targets)
        return cost_scale(match(cost, WTA()), stacked=True)
