"""Incremental training: the state of `partial_fit` between two calls, and one more epoch."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl.annealing.auto import AutoAnnealing, cost_scale
from torchmcl.annealing.course import rule_at
from torchmcl.losses import assign
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule
from torchmcl.sklearn.examples import Examples
from torchmcl.sklearn.rows import Rows, Split
from torchmcl.sklearn.training import Trainer

__all__ = ["PARTIAL_EPOCHS", "Continuation"]

#: The horizon of schedules for partial_fit, where no number of epochs is given.
PARTIAL_EPOCHS = 200


@dataclass(frozen=True)
class Continuation:
    """The state of a training run that further rows continue.

    Attributes:
        seed: of splits and shuffles.
        n_epochs: epochs so far.
        borders: of the split.
        held_out: rows that select and that calibrate; none in a model that was saved without them.
        moments: of the optimizer; None to begin with fresh ones.
        annealing: the state of `AutoAnnealing`; None where `fit` has cooled the networks.
    """

    seed: int
    n_epochs: int
    borders: NDArray[np.uint64] | None = None
    held_out: tuple[Rows, ...] = ()
    moments: dict[str, Tensor] | None = None
    annealing: dict[str, Tensor] | None = None

    def holding_out(self, split: Split) -> "Continuation":
        """Return the state with the held-out rows of a split after those of earlier ones."""
        held_out = split.held_out
        if self.held_out:
            held_out = tuple(old.joined(new) for old, new in zip(self.held_out, held_out, strict=True))  # type: ignore[assignment]
        return replace(self, held_out=tuple(rows.latest() for rows in held_out))

    def one_epoch(
        self,
        trainer: Trainer,
        modules: Sequence[nn.Module],
        examples: Examples,
        costs_of: Callable[[nn.Module, Examples], Tensor] | None = None,
        n_coordinates: int = 1,
    ) -> "tuple[list[nn.Module], Continuation]":
        """Return networks after one more epoch, and the new state.

        Args:
            trainer: rule, rate and decay over its number of epochs, the horizon of schedules.
            modules: to continue with.
            examples: rows that are new to them.
            costs_of: the cost of each hypothesis of a network, [rows, 1, hypotheses], for `AutoAnnealing`.
            n_coordinates: numbers of a hypothesis.
        """
        rule, rate, annealing = trainer.rule, trainer.learning_rate, self.annealing
        modules = copy.deepcopy(list(modules))  # a failing epoch changes nothing
        if isinstance(rule, AutoAnnealing):
            assert costs_of is not None
            with torch.no_grad():
                costs = torch.stack([costs_of(module, examples) for module in modules])
            rule, annealing = self._annealed(rule, costs, n_coordinates, trainer.n_epochs)
        else:
            rule = rule_at(rule, self.n_epochs)
        one = replace(
            trainer,
            rule=rule,
            learning_rate=rate(self.n_epochs) if callable(rate) else rate,
            n_epochs=1,
            seeds=[self.seed + self.n_epochs + i for i in range(len(modules))],
            moments=self.moments,
        )
        trained = one(iter(modules).__next__, examples.for_all(len(modules)))
        state = replace(self, n_epochs=self.n_epochs + 1, moments=trained.moments, annealing=annealing)
        return trained.modules, state

    def _annealed(
        self, policy: AutoAnnealing, costs: Tensor, n_coordinates: int, horizon: int
    ) -> tuple[list[AssignmentRule], dict[str, Any] | None]:
        """Return the rule of each network for the next epoch, and the state of the policy."""
        if self.n_epochs and self.annealing is None:  # networks of `fit` are cold already
            return [WTA()] * len(costs), None
        measured, epoch = cost_scale(assign(costs, WTA()), stacked=True), float(self.n_epochs)
        if self.annealing is None:  # rows that come one by one are not held for: there is no way back
            state = policy.init(measured, horizon, n_coordinates=n_coordinates, may_hold=False)
        else:
            state = {name: value.clone() for name, value in self.annealing.items()}
            policy.update(state, measured, epoch, horizon, n_coordinates=n_coordinates)
        temperatures = policy.value(state, epoch, horizon).temperature.tolist()
        return [AnnealedWTA(t) if t > 0 else WTA() for t in temperatures], state
