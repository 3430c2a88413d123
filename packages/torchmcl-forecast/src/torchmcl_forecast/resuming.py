"""Progress of a fit: its parts are counted, and its state is saved regularly, so that a killed fit resumes exactly."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchmcl.app.progress import Progress
from torchmcl.checks import bad_value
from torchmcl.io.checkpoints import CheckpointSeries
from torchmcl.io.codec import decode, encode
from torchmcl.io.stopping import check_stop, stop_requested

__all__ = ["Course"]

_KIND = "torchmcl forecast training"
# Seconds between saves: the most that a kill loses, approximately.
_BETWEEN_SAVES = 5.0


class Course:
    """Consecutive training runs, each of several parts.

    Args:
        bar: the progress bar, with a step for each part.
        networks: all trained networks; changed in place.
        folder: to save to, and to resume from; None saves nothing.
        identity: a digest of data and parameters; a state with a different one is rejected.

    Raises:
        ValueError: if the folder holds a state of another fit.
    """

    def __init__(self, bar: Progress, networks: Sequence[nn.Module], folder: Path | None, identity: str) -> None:
        self._bar, self._networks, self._identity = bar, networks, identity
        self._series = None if folder is None else CheckpointSeries(folder, _KIND)
        self._n_done, self._saved_at = 0, time.monotonic()
        self._notes: dict[str, Any] = {}
        self._n_saved, self._saved = 0, None
        if self._series is not None and (newest := self._series.newest()) is not None:
            self._n_saved, checkpoint = newest
            saved = decode(checkpoint.state, checkpoint.tensors)
            if saved["identity"] != identity:
                rule, advice = (
                    "hold a training of the same data and parameters, or none",
                    "Remove it to start anew (--restart).",
                )
                raise ValueError(bad_value("Forecaster.fit", "checkpoint", rule, f"{str(folder)!r}", advice))
            self._saved, self._notes = saved, saved["notes"]

    def begin(self, network: nn.Module, parts: Mapping[str, Any], n_parts: int) -> int:
        """Restore the saved state of a training run, and return the number of its finished parts.

        Args:
            network: the network to train.
            parts: optimizer and schedulers, by name.
            n_parts: of this training.
        """
        n_before, n_saved = self._n_done, self._n_saved
        if self._saved is None or n_saved <= n_before:
            return 0
        network.load_state_dict(self._saved["networks"][self._place(network)])
        if n_saved <= n_before + n_parts:  # the run that was interrupted or had just ended
            for name, part in parts.items():
                part.load_state_dict(self._saved["parts"][name])
            _set_generators(self._saved["generators"])
        done = min(n_saved - n_before, n_parts)
        self._n_done += done
        self._bar.step(done)
        return done

    def step(self, parts: Mapping[str, Any]) -> None:
        """Count a finished part, and save if it is due.

        Raises:
            Stopped: if a signal requests it.
        """
        self._n_done += 1
        self._bar.step()
        if self._series is None:
            check_stop()
        elif stop_requested() or time.monotonic() - self._saved_at > _BETWEEN_SAVES:
            state = {
                "identity": self._identity,
                "notes": self._notes,
                "networks": [dict(network.state_dict()) for network in self._networks],
                "parts": {name: part.state_dict() for name, part in parts.items()},
                "generators": _generators(),
            }
            encoded, tensors = encode(state)
            self._series.save(self._n_done, state=encoded, tensors=tensors)
            self._saved_at = time.monotonic()
            check_stop(f"The training is saved in {str(self._series.folder)!r}: the same call resumes it.")

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a number measured between two training runs, or its saved value in a resumed fit."""
        if name not in self._notes:
            self._notes[name] = measure()
        return self._notes[name]

    def _place(self, network: nn.Module) -> int:
        return next(place for place, other in enumerate(self._networks) if other is network)


def _generators() -> list[torch.Tensor]:
    """Return the states of the random generators of the CPU and of the devices."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def _set_generators(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if states[1:] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states[1:])
