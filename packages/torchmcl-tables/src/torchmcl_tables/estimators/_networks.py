"""The engine of the estimators: a fleet of restarts in, the networks to keep out."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl.fleet import (
    Checkpointing,
    Fleet,
    FleetData,
    FleetHistory,
    Validation,
    WeightedDistortion,
    even_batch_size,
    hard_distortion,
)
from torchmcl.schedules import Cosine, Schedule
from torchmcl.scoring import normalized_scores
from torchmcl.types import Predictions

__all__ = ["Examples", "Trained", "Training", "answers", "default_n_epochs", "mean_one"]

# A small table is seen hundreds of times and a large one twenty times.
_MIN_EPOCHS, _MAX_EPOCHS = 20, 1000
_ROWS_AT_ONCE = 65_536
# A save takes about 15 ms, a training at least a second.
_N_SAVES = 5
# A network with this many times the median distortion on held-out rows has failed: its answers collapsed, or it is of
# little use beside the others.
_FAILED = 2.0
# Held-out likelihood stops most trainings at a high rate, whose noise the networks keep. Those that stop within these
# shares of their epochs are cooled, by some more at a small share of the rate. Those that stop earlier would overfit,
# and to those that stop later the rate was small already.
_STILL_LEARNING, _COOLING_EPOCHS, _COOLING_RATE = (0.1, 0.8), 0.1, 0.1
# Evaluations on held-out rows that only draw a curve.
_N_LOOKS = 100


class Examples(NamedTuple):
    """Inputs [rows, columns], targets [rows, 1, ...] and weights [rows]."""

    inputs: Tensor
    targets: Tensor
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Training:
    """How to train: everything of a fleet but its data."""

    rule: Any
    learning_rate: float | Schedule
    weight_decay: float | Sequence[float]
    n_epochs: int
    batch_size: int
    seeds: Sequence[int]
    cost_fn: Callable[..., Tensor]
    device: str | torch.device
    progress: str | bool
    keep_best: bool = True
    patience: int | None = None
    checkpoint: str | Path | None = None
    moments: dict[str, Tensor] | None = None  # of the optimizer, where a training is continued
    score_weight: float = 1.0

    def run(self, factory: Callable[[], nn.Module], train: Examples, watched: Examples | None = None) -> "Trained":
        """Train; with `keep_best` each network's best epoch on `watched` is kept, else the last."""
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
        validation = None if watched is None else self._validation(watched)
        saves = max(1, self.n_epochs // _N_SAVES)
        history = fleet.fit(
            FleetData.shared(train.inputs, train.targets, len(self.seeds), weights=mean_one(train.weights)),
            self.n_epochs,
            batch_size=even_batch_size(len(train.inputs), self.batch_size),
            validation=validation,
            checkpoint=None if self.checkpoint is None else Checkpointing(self.checkpoint, every=saves),
            continued=True,
            progress=self.progress,
        )
        keeps = validation is not None and self.keep_best
        modules = fleet.best_models if keeps else fleet.models
        assert fleet.optimizer_state is not None  # a continued training leaves it
        values = history.best_value if keeps else _last_looks(history)
        best_epochs = history.best_epoch if keeps else torch.full_like(history.best_epoch, -1)
        return Trained([module.eval() for module in modules], history, values, best_epochs, fleet.optimizer_state)

    def further(self, *, epochs: float, rate: float, name: str) -> "Training":
        """Return a short training at a small rate, to continue with.

        Args:
            epochs: as a share of these.
            rate: as a share of the highest rate; it falls to 0.
            name: for the progress bar, and of the folder inside the checkpoint.
        """
        given, n_epochs = self.learning_rate, max(1, round(epochs * self.n_epochs))
        highest = max(map(given, range(self.n_epochs))) if callable(given) else given
        return replace(
            self,
            learning_rate=Cosine(rate * highest, 0.0, n_epochs),
            n_epochs=n_epochs,
            progress=self.progress and f"{self.progress}, {name}",
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint) / name.replace(" ", "-"),
        )

    def cooled(self, trained: "Trained", train: Examples) -> "Trained":
        """Return networks that were still learning when held-out rows stopped them, after a while at a small rate."""
        stopped = float((trained.best_epochs + 1).double().median()) / self.n_epochs
        earliest, latest = _STILL_LEARNING
        if not earliest <= stopped <= latest:
            return trained
        cooling = self.further(epochs=_COOLING_EPOCHS, rate=_COOLING_RATE, name="cooling")
        made = cooling.run(iter(trained.modules).__next__, train)
        history = trained.history._replace(seconds=trained.history.seconds + made.history.seconds)
        return replace(trained, modules=made.modules, history=history, moments=made.moments)

    def _validation(self, watched: Examples) -> Validation:
        uneven = mean_one(watched.weights)
        return Validation(
            FleetData.shared(watched.inputs, watched.targets, len(self.seeds)),
            monitor=hard_distortion if uneven is None else WeightedDistortion(uneven),
            every=1 if self.keep_best else max(1, self.n_epochs // _N_LOOKS),
            patience=self.patience,
        )


@dataclass(frozen=True)
class Trained:
    """The networks of all restarts and how it went.

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


def _last_looks(history: FleetHistory) -> Tensor:
    """Return the last value of each model on held-out rows, infinity where there is none."""
    values = torch.full_like(history.best_value, torch.inf)
    for looked in history.watched:
        values = torch.where(looked.isnan(), values, looked)
    return values


def mean_one(weights: NDArray[np.float64]) -> Tensor | None:
    """Return weights of mean 1, None where all are alike."""
    if (weights == weights[0]).all():
        return None
    return torch.from_numpy(weights / weights.mean()).float()


def default_n_epochs(n_rows: int, batch_size: int, n_steps: int) -> int:
    """Return epochs for about this many steps, between 20 and 1000."""
    return max(_MIN_EPOCHS, min(_MAX_EPOCHS, round(n_steps / math.ceil(n_rows / batch_size))))


@torch.no_grad()
def answers(modules: Sequence[nn.Module], inputs: Tensor, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Return hypotheses [rows, hypotheses, dim] and probabilities [rows, hypotheses] of all modules together.

    Several modules share the probability equally. The networks compute in the dtype of the inputs; what comes out is
    float64, so that answers far from zero are not rounded to the few numbers that float32 has there.
    """
    at = torch.device(device)
    movable = [copy.deepcopy(module).to(at, inputs.dtype) for module in modules]  # others may be predicting, in threads
    parts = []
    for rows in inputs.split(_ROWS_AT_ONCE):
        given: list[Predictions] = [module(rows.to(at)) for module in movable]
        values = torch.cat([one.hypotheses.cpu().double() for one in given], dim=1)
        logits = [one.score_logits.cpu().double() for one in given if one.score_logits is not None]
        parts.append((values, torch.cat([normalized_scores(one) for one in logits], dim=1) / len(given)))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
