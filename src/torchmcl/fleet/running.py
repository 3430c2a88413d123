"""Running the training of a chunk: from where it was saved, with saves on the way and when a signal asks."""

import time
from collections.abc import Callable

from torchmcl._progress import Progress
from torchmcl.checkpoints.stopping import check_stop, stop_requested
from torchmcl.fleet.checkpoints import FleetCheckpoint
from torchmcl.fleet.history import FleetHistory
from torchmcl.fleet.loop import ChunkTraining

__all__ = ["run_chunk"]


def run_chunk(
    training: ChunkTraining,
    number: int,
    saved: FleetCheckpoint | None,
    every: int,
    bar: Progress,
    note: Callable[[int], None],
) -> FleetHistory:
    """Train a chunk to its end, saving it every few epochs.

    Args:
        training: of the chunk.
        number: of the chunk.
        saved: where to go on from and save to; None saves nothing.
        every: epochs between saves.
        bar: moved on by the epochs that need not be run again.
        note: called after each epoch.

    Raises:
        Stopped: if a signal asks to stop; the epochs so far are then saved.
        OSError: if a state cannot be written; the one before it is then untouched.
    """
    n_models, n_epochs = len(training.models), training.plan.n_epochs
    first, seconds = (0, 0.0) if saved is None else saved.load(number, training.state)
    bar.step(first * n_models)
    begin = time.perf_counter()

    def note_or_stop(epoch: int) -> None:
        note(epoch)
        if stop_requested():
            if saved is None:
                check_stop("Nothing was saved: the training has no `checkpoint`.")
            else:
                saved.save(number, epoch + 1, seconds + time.perf_counter() - begin, training.state)
                check_stop(f"Saved in {str(saved.folder)!r}: the same again goes on from there.")

    while first < n_epochs and not training.all_stopped():
        last = n_epochs if saved is None else min(n_epochs, first + every)
        begin = time.perf_counter()
        seconds += training.run(first, last, note_or_stop)
        first = last
        if saved is not None:
            saved.save(number, first, seconds, training.state)
    return training.history(seconds)
