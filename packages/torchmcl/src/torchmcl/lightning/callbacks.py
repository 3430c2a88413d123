"""Callbacks for Lightning: logging of the rule, records, a warning on collapse, and checkpoints without pickle."""

import json
import time
import warnings
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.model import rule_description
from torchmcl.checks import check_fraction, check_positive_int
from torchmcl.errors import bad_value
from torchmcl.io import CheckpointSeries, change_records, check_stop, load, save, stop_requested
from torchmcl.io.stopping import begin_saving, end_saving
from torchmcl.optional import optional_import
from torchmcl.rules.winners import AssignmentRule
from torchmcl.schedules import AnnealedRule
from torchmcl.types import StepOutput

__all__ = ["Checkpoints", "CollapseWarning", "RecordWriter", "RuleLogger", "SafeCheckpointIO"]

pl = optional_import("lightning.pytorch", extra="lightning", needed_by="torchmcl.lightning")

_KIND = "lightning"


class RuleLogger(pl.Callback):  # type: ignore[name-defined]
    """Log the fields of the rule that change (temperature, epsilon, ...) and show them in the progress bar.

    They are logged at the start of an epoch. The temperature of `AutoAnnealing` is logged at the end, because the first
    temperature depends on the costs of the epoch.
    """

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Log the values of this epoch, if they are scheduled."""
        rule, epoch = module.rule, trainer.current_epoch
        if not isinstance(rule, AssignmentRule | AutoAnnealing):
            self._log(module, rule.values(epoch) if isinstance(rule, AnnealedRule) else rule_description(rule, epoch))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Log the values of this epoch, if they are set during training."""
        if isinstance(module.rule, AutoAnnealing):
            self._log(module, rule_description(module.rule_at(trainer.current_epoch), 0))

    def _log(self, module: Any, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, Real):
                module.log(name, float(value), prog_bar=True)


class RecordWriter(pl.Callback):  # type: ignore[name-defined]
    """Write one JSON line per epoch: losses, metrics, learning rate, and the rule with its fields.

    When training resumes from a checkpoint, the lines of repeated epochs are replaced. Under `AutoAnnealing`, "changes"
    lists what it did to the model before the epoch: "rewind", "separation" or "move", and "phase" describes the epoch.

    Args:
        path: Path of the file.
        show: Whether to also print each line.
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
            **{name: value for name, value in rule_description(rule, 0).items() if name != "kind"},
            **_automatic(module, trainer.current_epoch),
            "seconds": round(time.perf_counter() - self._began, 3),
        }
        change_records(
            "RecordWriter",
            self.path,
            lambda records: [*(old for old in records if old["epoch"] < trainer.current_epoch), record],
        )
        if self.show:
            print(json.dumps(record), flush=True)


def _automatic(module: Any, epoch: int) -> dict[str, Any]:
    """Return the phase of `AutoAnnealing` in an epoch, and its changes before it."""
    if module.annealing is None:
        return {}
    changes = [name for ended, name in module.annealing.events if ended == epoch]
    return {"phase": module.phase, "changes": changes}


class CollapseWarning(pl.Callback):  # type: ignore[name-defined]
    """Warn about hypotheses that are not the best for any validation target.

    There is no warning while the temperature is above 0: hypotheses may coincide then, and split later.

    Args:
        threshold: Fraction of wins below which a hypothesis counts as unused.
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
        fractions = wins / wins.sum().clamp_min(1)
        starved = (fractions < self.threshold).nonzero().flatten().tolist()
        module.log("val_starved", float(len(starved)))
        if _is_warm(module.rule_at(trainer.current_epoch)):
            return
        if len(starved) > self._n_before and trainer.is_global_zero:
            message = (
                f"MCLModule: {len(starved)} of {len(fractions)} hypotheses win no target in epoch "
                f"{trainer.current_epoch} (numbers {starved}). Annealing, AnnealedWTA with a temperature that falls "
                "to 0, keeps them in use."
            )
            warnings.warn(message, stacklevel=2)
        self._n_before = len(starved)


def _is_warm(rule: Any) -> bool:
    """Return whether a rule has a temperature above 0."""
    return float(getattr(rule, "temperature", 0.0)) > 0


class SafeCheckpointIO(pl.plugins.CheckpointIO):  # type: ignore[name-defined]
    """Lightning checkpoints in the format of `torchmcl.io`: safetensors and JSON with a checksum.

    `Checkpoints` enables it. For Lightning's `ModelCheckpoint`, whose files are still called .ckpt, pass it to the
    trainer: `Trainer(plugins=[SafeCheckpointIO()])`.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Path | str, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            TypeError: If it contains a value that is neither a tensor nor JSON-compatible.
            OSError: If it cannot be written; the old file, if any, is untouched.
        """
        save(path, checkpoint, kind=_KIND)

    def load_checkpoint(
        self, path: Path | str, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return a checkpoint, on the CPU; nothing from the file is executed.

        Raises:
            CheckpointError: If it is damaged or not a checkpoint.
        """
        checkpoint: dict[str, Any] = load(path, kind=_KIND)
        return checkpoint

    def remove_checkpoint(self, path: Path | str) -> None:
        """Remove a file."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(pl.callbacks.Checkpoint):  # type: ignore[name-defined]
    """Checkpoints after each epoch, and on SIGTERM and Ctrl-C under `stop_on_signals`.

    After a signal, training ends with the current batch. The next run repeats the epoch from its beginning, and has the
    same results as an uninterrupted run.

    Args:
        folder: Folder of the files `epoch-<number of finished epochs>.safetensors`.
        every_n_epochs: Number of epochs between saves; the last one is always saved.
        keep: Number of checkpoints to keep; if the newest is damaged, the previous one is used.

    Example:
        >>> from torchmcl.lightning import Checkpoints
        >>> checkpoints = Checkpoints("out/run/checkpoints", keep=3)
        >>> print(checkpoints.latest())  # for trainer.fit(module, data, ckpt_path=checkpoints.latest())
        None
    """

    def __init__(self, folder: Path | str, *, every_n_epochs: int = 1, keep: int = 2) -> None:
        check_positive_int("Checkpoints", "every_n_epochs", every_n_epochs)
        self.series = CheckpointSeries(folder, _KIND, name="epoch", keep=keep)
        self.every_n_epochs = every_n_epochs
        self._is_listening = False

    def latest(self) -> str | None:
        """Return the newest complete checkpoint, for `ckpt_path` of `trainer.fit`; None if there is none.

        Raises:
            CheckpointError: If there are checkpoints, but all are damaged.
        """
        newest = self.series.newest()
        return None if newest is None else str(self.series.path(newest[0]))

    def stop_if_asked(self) -> None:
        """Stop if a signal requests it.

        Raises:
            TrainingInterrupted: If a signal was received; the message states the number of saved epochs.
        """
        if stop_requested():
            check_stop(self._saved_in_words())

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Make the trainer write the safe format, and handle signals.

        Raises:
            ValueError: For a strategy that shards the weights, because its checkpoints are pickle files.
        """
        if isinstance(trainer.strategy, pl.strategies.ModelParallelStrategy | pl.strategies.FSDPStrategy):
            rule = "keep all weights in every process"
            advice = "Use Lightning's ModelCheckpoint for sharded weights."
            raise ValueError(bad_value("Checkpoints", "strategy", rule, type(trainer.strategy).__name__, advice))
        if not isinstance(trainer.strategy.checkpoint_io, SafeCheckpointIO):
            trainer.strategy.checkpoint_io = SafeCheckpointIO()
        if stage == "fit" and not self._is_listening:
            self._is_listening = True
            begin_saving()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Save at the very end of an epoch, because Lightning calls checkpoint callbacks last."""
        n_epochs = trainer.current_epoch + 1
        is_last = trainer.should_stop or n_epochs == trainer.max_epochs
        if n_epochs % self.every_n_epochs == 0 or is_last:
            trainer.save_checkpoint(self.series.path(n_epochs), weights_only=False)
            if trainer.is_global_zero:
                self.series.prune()
        self.stop_if_asked()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop if a signal requests it."""
        self.stop_if_asked()

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Stop if a signal requests it."""
        self.stop_if_asked()

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Stop handling signals."""
        self._end()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Stop handling signals."""
        self._end()

    def _saved_in_words(self) -> str:
        steps = self.series.steps()
        folder = f"{str(self.series.folder)!r}: run the same again to resume from there."
        return f"{steps[-1]} epochs are saved in {folder}" if steps else "No epoch had ended yet."

    def _end(self) -> None:
        if self._is_listening:
            self._is_listening = False
            end_saving()
