"""Callbacks: logging of the rule, records for reports, a warning on collapse, averaged weights."""

import json
import time
import warnings
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.course import described_rule
from torchmcl.checks import bad_value, check_fraction
from torchmcl.io import change_records
from torchmcl.lightning._backend import pl
from torchmcl.rules.winners import AssignmentRule
from torchmcl.types import StepOutput


class RuleLogger(pl.Callback):  # type: ignore[name-defined]
    """Log the fields of the rule that change (temperature, epsilon, ...) and show them in the progress bar.

    They are logged when an epoch starts; the temperature of `AutoAnnealing` when it ends, as the first temperature
    depends on the costs of its epoch.
    """

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Log the values of this epoch, if they are scheduled."""
        rule, epoch = module.rule, trainer.current_epoch
        if not isinstance(rule, AssignmentRule | AutoAnnealing):
            self._log(module, rule.values(epoch) if hasattr(rule, "values") else described_rule(rule, epoch))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Log the values of this epoch, if they are set during training."""
        if isinstance(module.rule, AutoAnnealing):
            self._log(module, described_rule(module.rule_at(trainer.current_epoch), 0))

    def _log(self, module: Any, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, Real):
                module.log(name, float(value), prog_bar=True)


class RecordWriter(pl.Callback):  # type: ignore[name-defined]
    """Write one line of JSON per epoch: losses, metrics, learning rate, and the rule with its fields as numbers.

    When training resumes from a checkpoint, the lines of repeated epochs are replaced.

    Args:
        path: of the file.
        show: whether to also print each line.
    """

    def __init__(self, path: Path | str, *, show: bool = False) -> None:
        self.path, self.show = Path(path), show
        self._began = time.perf_counter()

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Write the line of this epoch."""
        if not trainer.is_global_zero:
            return
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith("val_") or name == "train_loss_epoch"
        }
        rule = module.rule_at(trainer.current_epoch)
        record = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            **{name.removesuffix("_epoch"): value for name, value in metrics.items()},
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "rule": repr(rule),
            **{name: value for name, value in described_rule(rule, 0).items() if name != "kind"},
            "seconds": round(time.perf_counter() - self._began, 3),
        }
        change_records(
            "RecordWriter",
            self.path,
            lambda records: [*(old for old in records if old["epoch"] < trainer.current_epoch), record],
        )
        if self.show:
            print(json.dumps(record), flush=True)


class CollapseWarning(pl.Callback):  # type: ignore[name-defined]
    """Warn about hypotheses that are not the best for any validation target.

    There is no warning while the temperature is above 0: hypotheses may coincide then, and split later.

    Args:
        threshold: a hypothesis counts as unused below this share of wins.
    """

    def __init__(self, threshold: float = 1e-3) -> None:
        check_fraction("CollapseWarning", "threshold", threshold)
        self.threshold = threshold
        self._wins: Tensor | None = None
        self._n_before = 0

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        """Start counting."""
        self._wins = None

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: StepOutput, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count the winners of a batch."""
        weights = outputs.matching.weights
        wins = weights.flatten(0, -2).sum(dim=0)
        self._wins = wins if self._wins is None else self._wins + wins

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """Warn if more hypotheses are unused than in the previous validation."""
        if self._wins is None or trainer.sanity_checking:
            return
        wins = trainer.strategy.reduce(self._wins, reduce_op="sum")
        shares = wins / wins.sum().clamp_min(1)
        starved = (shares < self.threshold).nonzero().flatten().tolist()
        module.log("val_starved", float(len(starved)))
        if _is_warm(module.rule_at(trainer.current_epoch)):
            return
        if len(starved) > self._n_before and trainer.is_global_zero:
            message = (
                f"MCLModule: {len(starved)} of {len(shares)} hypotheses win no target in epoch {trainer.current_epoch} "
                f"(numbers {starved}). Annealing, AnnealedWTA with a temperature that falls to 0, keeps them in use."
            )
            warnings.warn(message, stacklevel=2)
        self._n_before = len(starved)


def _is_warm(rule: Any) -> bool:
    """Return whether a rule has a temperature above 0."""
    return float(getattr(rule, "temperature", 0.0)) > 0


class ExponentialAverage(pl.callbacks.WeightAveraging):  # type: ignore[name-defined]
    """Lightning's exponential moving average of the weights, updated after every step.

    The average is `decay * average + (1 - decay) * weights`. It is used in validation, and replaces the weights when
    training ends. Sharded weights are not supported.

    Args:
        decay: a factor per step; closer to 1 averages over more steps. It is smaller in the first steps, so that the
            average quickly discards the initial weights.
    """

    def __init__(self, decay: float = 0.999) -> None:
        check_fraction("ExponentialAverage", "decay", decay)
        super().__init__(use_buffers=False, multi_avg_fn=partial(_move_average, decay))

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Copy the model.

        Raises:
            ValueError: if the weights are sharded, which Lightning does not average.
        """
        if isinstance(trainer.strategy, pl.strategies.ModelParallelStrategy | pl.strategies.FSDPStrategy):
            demand = "hold whole weights in every process"
            raise ValueError(bad_value("ExponentialAverage", "strategy", demand, type(trainer.strategy).__name__))
        super().setup(trainer, module, stage)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Move the average to the device of the model, which Lightning changes after the copy."""
        self._average_model.to(module.device)

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """Keep the average in the model, because callbacks that save the best model run later."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Restore the weights."""
        super().on_validation_epoch_end(trainer, module)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Leave the average in the model even if no epoch remained to be trained."""
        self._copy_average_to_current(module)


def _move_average(decay: float, average: list[Tensor], weights: list[Tensor], n_averaged: Tensor) -> None:
    n_steps = int(n_averaged) + 1
    torch._foreach_lerp_(average, weights, 1 - min(decay, (1 + n_steps) / (10 + n_steps)))
