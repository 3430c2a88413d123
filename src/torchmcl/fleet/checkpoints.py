"""Saving a fleet in training, so that it goes on to the same bits.

A folder holds `plan.json`, which says what is being trained, and the last few checkpoints of each chunk,
`chunk-<number>-epoch-<next epoch>.safetensors`, in the format of `torchmcl.checkpoints`.
"""

import copy
import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl._files import write_atomically
from torchmcl._optional import optional_import
from torchmcl._reading import read_json
from torchmcl.checkpoints import Checkpoint, CheckpointError, CheckpointSeries
from torchmcl.checkpoints.files import digest_of_json
from torchmcl.fleet.fingerprint import ADDED_FIELDS

__all__ = ["FleetCheckpoint", "saved_chunk_size"]

_KIND, _PLAN = "fleet", "plan.json"
_GENERATOR = "random generator"
# What earlier versions did not save; a training of theirs goes on as if nothing had happened before.
_ADDED = {"failed_step"}
_ANEW = "Delete the folder to start anew."


class FleetCheckpoint:
    """The saved state of one training.

    Args:
        folder: of the training.
        plan: what is trained, as JSON.
        keep: how many states of each chunk to keep.
        generator_of: the device whose random numbers the training draws from; None when it draws none.

    Raises:
        ValueError: if the folder holds the state of another training.
    """

    def __init__(
        self, folder: Path, plan: dict[str, Any], *, keep: int = 2, generator_of: torch.device | None = None
    ) -> None:
        optional_import("safetensors.torch", extra="checkpoint", needed_by="Fleet.fit(checkpoint=...)")
        self.folder, self.keep, self.generator_of = folder, keep, generator_of
        path = folder / _PLAN
        saved = _read_plan(path)
        plan = json.loads(json.dumps(plan))
        if saved is not None and not saved.keys() & ADDED_FIELDS:
            plan = {name: value for name, value in plan.items() if name not in ADDED_FIELDS}
        self.plan_digest = digest_of_json(plan)
        if saved != plan and path.exists() and self._is_ours():
            message = f"Fleet.fit: {str(path)!r} is damaged; the states beside it are of this training, so it goes on."
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        elif saved != plan and path.exists():
            differ = sorted(name for name in plan if (saved or {}).get(name) != plan[name])
            advice = "Give another folder, or delete this one to start anew."
            rule = "be empty or hold this very training"
            raise ValueError(bad_value("Fleet.fit", "checkpoint", rule, f"{folder} which differs in {differ}", advice))
        if saved != plan:
            write_atomically(path, json.dumps(plan, indent=1))

    def on(self, device: torch.device) -> "FleetCheckpoint":
        """Return it with the random numbers of another device, where some are drawn."""
        other = copy.copy(self)
        other.generator_of = None if self.generator_of is None else device
        return other

    def load(self, chunk: int, state: dict[str, Tensor]) -> tuple[int, float]:
        """Fill `state` from the newest whole checkpoint of a chunk; return the next epoch and the seconds so far.

        Returns:
            0 and 0.0 where there is none.

        Raises:
            CheckpointError: if there are checkpoints and all of them are damaged, or of another training.
        """
        found = self._series(chunk).newest()
        if found is None:
            return 0, 0.0
        next_epoch, saved = found
        if not isinstance(saved.state, dict) or saved.state.get("plan") != self.plan_digest:
            rule = "hold states of the training in its plan.json"
            got = f"{self._series(chunk).path(next_epoch).name} of another one"
            raise CheckpointError(bad_value("Fleet.fit", "checkpoint", rule, got, _ANEW))
        seconds = saved.state.get("seconds")
        for name, tensor in state.items():
            found_tensor = saved.tensors.get(name)
            if found_tensor is None and name in _ADDED:
                continue
            if found_tensor is None or (found_tensor.shape, found_tensor.dtype) != (tensor.shape, tensor.dtype):
                rule = f"hold {name!r} of shape {tuple(tensor.shape)} and {tensor.dtype}"
                got = "none" if found_tensor is None else f"{tuple(found_tensor.shape)} and {found_tensor.dtype}"
                raise CheckpointError(bad_value("Fleet.fit", "checkpoint", rule, got, _ANEW))
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise CheckpointError(bad_value("Fleet.fit", "checkpoint", "say how many seconds it took", seconds, _ANEW))
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(saved.tensors.get(name, tensor))
        self._restore_generator(saved)
        return next_epoch, float(seconds)

    def save(self, chunk: int, next_epoch: int, seconds: float, state: dict[str, Tensor]) -> None:
        """Write the state of a chunk.

        Raises:
            OSError: if it cannot be written; the last state is then untouched.
        """
        tensors = dict(state)
        if self.generator_of is not None:
            tensors[_GENERATOR] = torch.get_rng_state()
            if self.generator_of.type == "cuda":
                tensors[f"{_GENERATOR} of the device"] = torch.cuda.get_rng_state(self.generator_of)
        self._series(chunk).save(next_epoch, state={"plan": self.plan_digest, "seconds": seconds}, tensors=tensors)

    def _series(self, chunk: int) -> CheckpointSeries:
        return CheckpointSeries(self.folder, _KIND, name=f"chunk-{chunk:04d}-epoch", keep=self.keep)

    def _restore_generator(self, saved: Checkpoint) -> None:
        if _GENERATOR in saved.tensors:
            torch.set_rng_state(saved.tensors[_GENERATOR])
        if (of_device := f"{_GENERATOR} of the device") in saved.tensors and self.generator_of is not None:
            torch.cuda.set_rng_state(saved.tensors[of_device], self.generator_of)

    def _is_ours(self) -> bool:
        """Return whether the first chunk has a whole checkpoint of this very plan."""
        try:
            found = self._series(0).newest()
        except CheckpointError:
            return False
        state = None if found is None else found[1].state
        return isinstance(state, dict) and state.get("plan") == self.plan_digest


def saved_chunk_size(folder: Path) -> int | None:
    """Return how many models of a saved training are trained at once, None where there is none."""
    size = (_read_plan(folder / _PLAN) or {}).get("models_at_once")
    return size if type(size) is int and size > 0 else None


def _read_plan(path: Path) -> dict[str, Any] | None:
    """Return the plan, None if there is none or it cannot be read."""
    try:
        plan = read_json("Fleet.fit", path)
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) else None
