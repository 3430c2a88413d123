"""The models of a fleet that anneal by themselves: measured now and then, all on the device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing, AutoValues, CostScale, cost_scale
from torchmcl.assignment import WTA
from torchmcl.fleet.data import FleetData
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
        measured_on = data if validation is None else validation
        index = (places * measured_on.lengths.unsqueeze(-1)).long()
        self.inputs, self.targets = measured_on.rows(index)
        measured = self._measured()
        # Where no cost is finite nothing is known, and nothing is held for.
        self.state = self.policy.init(measured.scale.nan_to_num(0.0))
        self.policy.release(self.state, measured, 0.0)

    def is_due(self, epoch: int) -> bool:
        """Return whether the models are measured after this epoch."""
        return (epoch + 1) % self.every == 0

    def values(self, epoch: Tensor) -> AutoValues:
        """Return temperature, rate factor and weight decay of all models in an epoch, [models] each."""
        return self.policy.value(self.state, epoch, self.n_epochs, self.n_points, self.n_steps)

    def measure(self, epoch: Tensor) -> None:
        """Look at the models after an epoch."""
        measured = self._measured()
        self.policy.release(self.state, measured, epoch + 1)
        self.policy.update(self.state, measured.scale, epoch + 1, self.n_epochs)

    @torch.no_grad()
    def _measured(self) -> CostScale:
        with self.models.evaluating():
            hypotheses = self.models(self.inputs).hypotheses
        cost = self.cost_fn(hypotheses=hypotheses, targets=self.targets)
        return cost_scale(match(cost, WTA()), stacked=True)
