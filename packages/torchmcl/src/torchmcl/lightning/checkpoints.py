"""Lightning's checkpoints without pickle, a limited number of them, and a clean exit on signals."""

from pathlib import Path
from typing import Any

from torchmcl.checks import bad_value, check_positive_int
from torchmcl.io import CheckpointSeries, check_stop, load, save, stop_requested
from torchmcl.io.stopping import begin_saving, end_saving
from torchmcl.lightning._backend import pl

_KIND = "lightning"


class SafeCheckpointIO(pl.plugins.CheckpointIO):  # type: ignore[name-defined]
    """Writes Lightning's checkpoints in the format of `torchmcl.io`: safetensors and JSON, with a checksum.

    `Checkpoints` enables it; with Lightning's own `ModelCheckpoint`, which still names its files .ckpt,
    pass it to the trainer: `Trainer(plugins=[SafeCheckpointIO()])`.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Path | str, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            TypeError: if it contains a value that is neither a tensor nor JSON-compatible.
            OSError: if it cannot be written; the old file, if any, is untouched.
        """
        save(path, checkpoint, kind=_KIND)

    def load_checkpoint(
        self, path: Path | str, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return a checkpoint, on the CPU; nothing from the file is executed.

        Raises:
            CheckpointError: if it is damaged or not a checkpoint.
        """
        checkpoint: dict[str, Any] = load(path, kind=_KIND)
        return checkpoint

    def remove_checkpoint(self, path: Path | str) -> None:
        """Remove a file."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(pl.callbacks.Checkpoint):  # type: ignore[name-defined]
    """Save after each epoch, and stop on SIGTERM and Ctrl-C under `stop_on_signals`.

    After a signal, training ends with the current batch. The next run repeats the epoch from its beginning, with the
    same results as an uninterrupted run.

    Args:
        folder: for `epoch-<number of finished epochs>.safetensors`.
        every_n_epochs: epochs between saves; the last one is always saved.
        keep: number of checkpoints to keep; if the newest is damaged, the previous one is used.

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
            CheckpointError: if there are checkpoints, but all are damaged.
        """
        newest = self.series.newest()
        return None if newest is None else str(self.series.path(newest[0]))

    def stop_if_asked(self) -> None:
        """Stop if a signal requests it.

        Raises:
            Stopped: with the number of saved epochs.
        """
        if stop_requested():
            check_stop(self._saved_in_words())

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Make the trainer write the safe format, and handle signals.

        Raises:
            ValueError: for a strategy that shards the weights, because its checkpoints are pickle files.
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
