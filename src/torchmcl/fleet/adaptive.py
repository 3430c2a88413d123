"""The models of a fleet that anneal by themselves: measured now and then, all on the device."""

from collections.abc import Callable, Sequence
from typing import Any

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
        self._ahead: tuple[int, AutoValues] | None = None  # of a block of epochs
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
        # On a CPU each of some thirty operations takes longer than what it computes: all epochs until the next look
        # at once, and from the same first one wherever a training goes on, for the sake of the last bits.
        block, place = divmod(int(epoch), self.every)
        if self._ahead is None or self._ahead[0] != block:
            epochs = torch.arange(self.every).unsqueeze(-1) + block * self.every
            self._ahead = (block, self._values(epochs))
        return AutoValues(*(value[place] for value in self._ahead[1]))

    def _values(self, epoch: Tensor) -> AutoValues:
        values = self.policy.value(self.state, epoch, self.n_epochs, self.n_points, self.n_steps)
        others = (torch.nan, 1.0, 0.0)
        return AutoValues(
            *(torch.where(self.chosen, value, other) for value, other in zip(values, others, strict=True))
        )

    def measure(self, epoch: Tensor) -> None:
        """Look at the models after an epoch."""
        if self.mean_cost is not None and not bool(((self.state["begun"] < 0) & self.chosen).any()):
            return  # on a CPU a value can be read, and nobody has anything to decide any more
        measured = self._measured()
        self.policy.release(self.state, measured, epoch + 1)
        self.policy.update(self.state, measured.scale, epoch + 1, self.n_epochs)

    @torch.no_grad()
    def _measured(self) -> CostScale:
        if self.mean_cost is not None:
            scale = self.mean_cost()
            return CostScale(scale, torch.ones_like(scale, dtype=torch.bool))  # squared distances have a zero
        with self.models.evaluating():
            hypotheses = self.models(self.inputs).hypotheses
        cost = self.cost_fn(hypotheses=hypotheses, targets=self.targets)
        return cost_scale(match(cost, WTA()), stacked=True)
