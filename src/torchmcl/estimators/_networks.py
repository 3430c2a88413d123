"""The engine of the estimators: a fleet of restarts in, the modules to keep out."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.fleet import (
    Checkpointing,
    Fleet,
    FleetData,
    FleetHistory,
    Validation,
    WeightedDistortion,
    default_batch_size,
    even_batch_size,
    hard_distortion,
)
from torchmcl.scoring import normalized_scores
from torchmcl.types import Predictions

__all__ = ["TrainedNetworks", "Training", "answers", "default_batch_size", "default_n_epochs", "mean_one"]

# A small table is seen hundreds of times and a large one twenty times.
_MIN_EPOCHS, _MAX_EPOCHS = 20, 1000
_ROWS_AT_ONCE = 65_536
# A save takes about 15 ms, a training at least a second.
_N_SAVES = 5
# A network with this many times the median distortion on held-out rows has failed: its answers collapsed, or it is of
# little use beside the others.
_FAILED = 3.0
# Looks at held-out rows that only draw a curve.
_N_LOOKS = 100


@dataclass(frozen=True)
class Training:
    """How to train: everything of a fleet but its data."""

    n_models: int
    rule: Any
    learning_rate: Any
    weight_decay: float
    n_epochs: int
    batch_size: int
    patience: int | None
    seeds: Sequence[int]
    cost_fn: Callable[..., Tensor] = pairwise_sq_euclidean
    device: str | torch.device = "cpu"
    verbose: bool = False
    what: str = "fit"
    checkpoint: str | Path | None = None
    early_stopping: bool = True
    moments: dict[str, Tensor] | None = None  # of the optimiser, where a training goes on

    def run(
        self,
        factory: Callable[[], nn.Module],
        train: tuple[Tensor, Tensor, NDArray[np.float64]],
        watched: tuple[Tensor, Tensor, NDArray[np.float64]] | None,
    ) -> "TrainedNetworks":
        """Train on (inputs, targets [rows, 1, ...], weights).

        With early stopping each network's best epoch on `watched` is kept, else the last.
        """
        fleet = Fleet(
            factory,
            self.n_models,
            rule=self.rule,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            seeds=list(self.seeds),
            cost_fn=self.cost_fn,
            device=self.device,
        )
        fleet.optimizer_state = self.moments
        inputs, targets, weights = train
        data = FleetData.shared(inputs, targets, self.n_models, weights=mean_one(weights))
        validation = None
        if watched is not None:
            uneven = mean_one(watched[2])
            validation = Validation(
                FleetData.shared(*watched[:2], self.n_models),
                monitor=hard_distortion if uneven is None else WeightedDistortion(uneven),
                every=1 if self.early_stopping else max(1, self.n_epochs // _N_LOOKS),
                patience=self.patience,
            )
        saves = max(1, self.n_epochs // _N_SAVES)
        checkpoint = None if self.checkpoint is None else Checkpointing(self.checkpoint, every=saves)
        history = fleet.fit(
            data,
            self.n_epochs,
            batch_size=even_batch_size(len(inputs), self.batch_size),
            validation=validation,
            checkpoint=checkpoint,
            continued=True,
            progress=self.what if self.verbose else False,
        )
        stops = validation is not None and self.early_stopping
        kept = fleet.best_models if stops else fleet.models
        values = history.best_value if stops else _last_looks(history)
        assert fleet.optimizer_state is not None  # a continued training leaves it
        return TrainedNetworks([module.eval() for module in kept], history, values, stops, fleet.optimizer_state)


@dataclass(frozen=True)
class TrainedNetworks:
    """The modules of all restarts, how it went, their distortion on held-out rows, and the moments to go on with."""

    modules: list[nn.Module]
    history: FleetHistory
    distortions: Tensor
    stopped_early: bool
    moments: dict[str, Tensor]

    def best(self) -> int:
        """Return the restart with the lowest validation distortion, or the lowest last loss without validation."""
        values = self.distortions
        if not torch.isfinite(values).any():
            values = self.history.losses[-1]
        return int(torch.where(values.isnan(), torch.inf, values).argmin())

    def not_failed(self) -> list[int]:
        """Return the restarts but for those that are far worse than most: their answers collapsed or went astray."""
        bound = _FAILED * self.distortions.nanmedian()
        kept = [place for place, value in enumerate(self.distortions) if value <= bound]
        return kept or list(range(len(self.modules)))  # without held-out rows nothing is known


def _last_looks(history: FleetHistory) -> Tensor:
    """Return the last value of each model on held-out rows, infinity where there is none."""
    values = torch.full_like(history.best_value, torch.inf)
    for looked in history.watched if history.watched is not None else ():
        values = torch.where(looked.isnan(), values, looked)
    return values


def mean_one(weights: NDArray[np.float64]) -> Tensor | None:
    """Return weights of mean 1, None where all are alike."""
    if (weights == weights[0]).all():
        return None
    return torch.from_numpy(weights / weights.mean()).float()


def default_n_epochs(n_rows: int, batch_size: int, n_steps: int) -> int:
    """Return epochs for about so many steps, between 20 and 1000."""
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
