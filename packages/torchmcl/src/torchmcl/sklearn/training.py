"""Training of the networks of an estimator: a fleet of restarts in, networks and their record out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.course import rule_at
from torchmcl.fleet import Checkpointing, Fleet, FleetData, Validation, even_batch_size
from torchmcl.rules.winners import WTA
from torchmcl.schedules import Cosine, Schedule
from torchmcl.sklearn.examples import Examples, seeds_of
from torchmcl.sklearn.trained import Trained, last_values

__all__ = ["Trainer"]

# A save takes about 15 ms, a training at least a second.
_N_SAVES = 5
# Evaluations on held-out rows that only draw a curve.
_N_EVALUATIONS = 100
# The final training on all rows: this share of the epochs, from this share of the learning rate down to 0.
_FINAL_EPOCHS, _FINAL_RATE = 0.3, 0.25


@dataclass(frozen=True)
class Trainer:
    """The settings of a training: everything of a fleet but its data.

    Attributes:
        rule: an assignment rule, a function epoch -> rule or `AutoAnnealing`.
        learning_rate: a number or a schedule by epoch.
        weight_decay: one for all networks, or one for each.
        n_epochs: passes over the rows.
        batch_size: at most this many rows in a step.
        seeds: one for each network.
        cost_fn: of hypotheses and targets.
        device: where to train.
        score_weight: of the loss of the scores.
        keep_best: keep each network's best epoch on the validation rows instead of the last.
        checkpoint: folder for checkpoints, or None.
        moments: of the optimizer, where a training is continued.
        models_at_once: networks that must be trained together; None for any.
        progress: title of a progress bar; False for none.
    """

    rule: Any
    learning_rate: float | Schedule
    weight_decay: float | Sequence[float]
    n_epochs: int
    batch_size: int
    seeds: Sequence[int]
    cost_fn: Callable[..., Tensor]
    device: str | torch.device
    score_weight: float = 1.0
    keep_best: bool = True
    checkpoint: str | Path | None = None
    moments: dict[str, Tensor] | None = None
    models_at_once: int | None = None
    progress: str | bool = False

    def __call__(
        self, factory: Callable[[], nn.Module], data: FleetData, validation: Validation | None = None
    ) -> Trained:
        """Train networks on data."""
        fleet = Fleet(
            factory,
            len(self.seeds),
            rule=self.rule,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            seeds=self.seeds,
            cost_fn=self.cost_fn,
            score_weight=self.score_weight,
            device=self.device,
        )
        fleet.optimizer_state = self.moments
        saves = max(1, self.n_epochs // _N_SAVES)
        history = fleet.fit(
            data,
            self.n_epochs,
            batch_size=even_batch_size(data.inputs.shape[1], self.batch_size),
            validation=validation,
            checkpoint=None if self.checkpoint is None else Checkpointing(self.checkpoint, every=saves),
            models_at_once=self.models_at_once,
            continued=True,
            progress=self.progress,
        )
        keeps = validation is not None and self.keep_best
        modules = fleet.best_models if keeps else fleet.models
        assert fleet.optimizer_state is not None  # a continued training leaves it
        values = history.best_value if keeps else last_values(history)
        best_epochs = history.best_epoch if keeps else torch.full_like(history.best_epoch, -1)
        return Trained([module.eval() for module in modules], history, values, best_epochs, fleet.optimizer_state)

    def watching(self, held_out: Examples, patience: int | None) -> Validation | None:
        """Return the validation by held-out rows: in every epoch if the best is kept; None without rows."""
        every = 1 if self.keep_best else max(1, self.n_epochs // _N_EVALUATIONS)
        return held_out.watched(len(self.seeds), every=every, patience=patience)

    def further(
        self, modules: Sequence[nn.Module], data: Examples, *, epochs: float, rate: float, name: str
    ) -> Trained:
        """Return the networks after a short training at a small rate.

        Args:
            modules: to continue with, as many as there are seeds.
            data: rows for all of them.
            epochs: as a share of the epochs.
            rate: as a share of the highest rate; it falls to 0.
            name: for the progress bar, and of the folder inside the checkpoint.
        """
        given, n_epochs = self.learning_rate, max(1, round(epochs * self.n_epochs))
        highest = max(map(given, range(self.n_epochs))) if callable(given) else given
        short = replace(
            self,
            learning_rate=Cosine(rate * highest, 0.0, n_epochs),
            n_epochs=n_epochs,
            progress=self.progress and f"{self.progress}, {name}",
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint) / name.replace(" ", "-"),
        )
        return short(iter(modules).__next__, data.for_all(len(modules)))

    def on_all_rows(self, modules: Sequence[nn.Module], data: Examples, moments: dict[str, Tensor]) -> Trained:
        """Return the kept networks after a final training that includes the rows that have served to select."""
        rule = WTA() if isinstance(self.rule, AutoAnnealing) else rule_at(self.rule, self.n_epochs - 1)
        # Keep Adam's moments: restarting from zero would undo progress.
        seeds, at_once = seeds_of(self.seeds[0], len(modules)), self.models_at_once and len(modules)
        last = replace(self, rule=rule, seeds=seeds, moments=moments, models_at_once=at_once)
        return last.further(modules, data, epochs=_FINAL_EPOCHS, rate=_FINAL_RATE, name="all rows")
