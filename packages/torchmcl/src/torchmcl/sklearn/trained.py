"""Trained networks and the record of their training."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchmcl.annealing.course import rule_at
from torchmcl.fleet import FleetHistory

__all__ = ["Trained", "last_values"]

# A network with this many times the lowest distortion on held-out rows has failed: its hypotheses collapsed.
_FAILED = 2.0


@dataclass(frozen=True)
class Trained:
    """The networks of all restarts and the record of their training.

    Attributes:
        modules: one network for each restart.
        history: of their training.
        distortions: [restarts], on held-out rows; infinite without any.
        best_epochs: [restarts], the epoch that was kept, -1 where it is the last.
        moments: of the optimizer, to continue with.
    """

    modules: list[nn.Module]
    history: FleetHistory
    distortions: Tensor
    best_epochs: Tensor
    moments: dict[str, Tensor]

    def best(self) -> int:
        """Return the restart with the lowest validation distortion, or the lowest last loss without validation."""
        values = self.distortions
        if not torch.isfinite(values).any():
            values = self.history.losses[-1]
        return int(torch.where(values.isnan(), torch.inf, values).argmin())

    def not_failed(self) -> list[int]:
        """Return the restarts but for those that are far worse than the best one, and so have lost modes."""
        known = self.distortions[self.distortions.isfinite()]
        bound = _FAILED * known.min() if len(known) else torch.nan
        kept = [place for place, value in enumerate(self.distortions) if value <= bound]
        return kept or list(range(len(self.modules)))  # without held-out rows nothing is known

    def moments_of(self, kept: list[int]) -> dict[str, Tensor]:
        """Return the moments of some restarts."""
        return {name: value[kept] for name, value in self.moments.items()}

    def attributes(self, rule: Any) -> dict[str, Any]:
        """Return the fitted attributes of an estimator that describe the training of the best network."""
        history, best = self.history, self.best()
        stopped = int(history.stopped_epoch[best])
        if history.temperatures is not None:  # as `AutoAnnealing` decided on them
            temperatures = history.temperatures[:, best].tolist()
        else:
            rules = [rule_at(rule, epoch) for epoch in range(len(history.losses))]
            temperatures = [getattr(each, "temperature", None) for each in rules]
        return {
            "rule_": rule,
            "best_restart_": best,
            "loss_curve_": history.losses[:, best].double().numpy(),
            "validation_curve_": history.watched[:, best].double().numpy(),
            "learning_rate_curve_": history.learning_rates[:, best].double().numpy(),
            "temperature_curve_": None if None in temperatures else np.array(temperatures, dtype=np.float64),
            "seconds_": float(history.seconds),
            "validation_distortions_": self.distortions.double().numpy(),
            "best_epoch_": int(self.best_epochs[best]),
            "n_epochs_": stopped + 1 if stopped >= 0 else len(history.losses),
        }


def last_values(history: FleetHistory) -> Tensor:
    """Return the last value of each model on held-out rows, infinity where there is none."""
    values = torch.full_like(history.best_value, torch.inf)
    for evaluated in history.watched:
        values = torch.where(evaluated.isnan(), values, evaluated)
    return values
