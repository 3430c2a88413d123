"""Checkpoints of a fleet in training, with bit-exact resumption.

A folder holds `plan.json`, the fingerprint of the training, and the last few checkpoints of each chunk,
`chunk-<number>-epoch-<next epoch>.safetensors`, in the format of `torchmcl.persistence`.
"""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int
from torchmcl._optional import optional_import
from torchmcl.fleet.courses import TrainingPlan
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.models import StackedModules
from torchmcl.fleet.options import Checkpointing
from torchmcl.persistence import Checkpoint, CheckpointError, CheckpointSeries
from torchmcl.persistence.checkpoints import digest_of_json
from torchmcl.persistence.identity import digest_of_tensors, identity_of
from torchmcl.persistence.reading import read_json
from torchmcl.persistence.writing import write_atomically

__all__ = ["FleetCheckpoint", "chunk_size_of", "fingerprint_of"]

_KIND, _PLAN = "fleet", "plan.json"
_GENERATOR, _DEVICE_GENERATOR = "random generator", "random generator of the device"
_ANEW = "Delete the folder to start again."


class FleetCheckpoint:
    """The saved state of one training run.

    Args:
        options: folder, and how many states of each chunk to keep.
        plan: fingerprint of the training, as JSON.
        is_random: whether the training draws random numbers, whose state is then kept too.

    Raises:
        ValueError: if the folder holds the state of another training.
    """

    def __init__(self, options: Checkpointing, plan: dict[str, Any], *, is_random: bool) -> None:
        optional_import("safetensors.torch", extra="checkpoint", needed_by="Fleet.fit(checkpoint=...)")
        self.folder, self.options, self.is_random = Path(options.folder), options, is_random
        plan = json.loads(json.dumps(plan))
        self.plan_digest = digest_of_json(plan)
        path = self.folder / _PLAN
        saved = _read_plan(path)
        if saved == plan:
            return
        if path.exists() and self._is_ours():
            message = f"Fleet.fit: {str(path)!r} is damaged; the states beside it are of this training and are resumed."
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        elif path.exists():
            differ = sorted(name for name in plan if (saved or {}).get(name) != plan[name])
            advice = "Give another folder, or delete this one to start again."
            rule = "be empty or hold this very training"
            got = f"{self.folder} which differs in {differ}"
            raise ValueError(bad_value("Fleet.fit", "checkpoint", rule, got, advice))
        write_atomically(path, json.dumps(plan, indent=1))

    def load(self, chunk: int, state: dict[str, Tensor], device: torch.device) -> tuple[int, float]:
        """Fill `state` from the newest whole checkpoint of a chunk; return the next epoch and the seconds so far.

        Args:
            chunk: its number.
            state: of the training.
            device: where it trains.

        Returns:
            0 and 0.0 where there is none.

        Raises:
            CheckpointError: if there are checkpoints and all of them are damaged, or of another training.
        """
        newest = self._series(chunk).newest()
        if newest is None:
            return 0, 0.0
        next_epoch, saved = newest
        if not isinstance(saved.state, dict) or saved.state.get("plan") != self.plan_digest:
            got = f"{self._series(chunk).path(next_epoch).name} of another one"
            raise _damaged("hold states of the training in its plan.json", got)
        seconds = saved.state.get("seconds")
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise _damaged("say how many seconds it took", seconds)
        for name, tensor in state.items():
            kept = saved.tensors.get(name)
            if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
                got = "none" if kept is None else f"{tuple(kept.shape)} and {kept.dtype}"
                raise _damaged(f"hold {name!r} of shape {tuple(tensor.shape)} and {tensor.dtype}", got)
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(saved.tensors[name])
        self._restore_generator(saved, device)
        return next_epoch, float(seconds)

    def save(self, chunk: int, next_epoch: int, seconds: float, state: dict[str, Tensor], device: torch.device) -> None:
        """Write the state of a chunk.

        Raises:
            OSError: if it cannot be written; the last state is then untouched.
        """
        tensors = dict(state)
        if self.is_random:
            tensors[_GENERATOR] = torch.get_rng_state()
            if device.type == "cuda":
                tensors[_DEVICE_GENERATOR] = torch.cuda.get_rng_state(device)
        self._series(chunk).save(next_epoch, state={"plan": self.plan_digest, "seconds": seconds}, tensors=tensors)

    def _series(self, chunk: int) -> CheckpointSeries:
        return CheckpointSeries(self.folder, _KIND, name=f"chunk-{chunk:04d}-epoch", keep=self.options.keep)

    def _restore_generator(self, saved: Checkpoint, device: torch.device) -> None:
        if self.is_random and _GENERATOR in saved.tensors:
            torch.set_rng_state(saved.tensors[_GENERATOR])
        if self.is_random and _DEVICE_GENERATOR in saved.tensors:
            torch.cuda.set_rng_state(saved.tensors[_DEVICE_GENERATOR], device)

    def _is_ours(self) -> bool:
        """Return whether the first chunk has a complete checkpoint of the same plan."""
        try:
            found = self._series(0).newest()
        except CheckpointError:
            return False
        state = None if found is None else found[1].state
        return isinstance(state, dict) and state.get("plan") == self.plan_digest


def _damaged(rule: str, got: object) -> CheckpointError:
    return CheckpointError(bad_value("Fleet.fit", "checkpoint", rule, got, _ANEW))


def chunk_size_of(models_at_once: int | None, options: Checkpointing | None) -> int | None:
    """Return the number of models per chunk: as requested, or as in the saved run; None if undetermined.

    The chunks of a saved training stay: memory and threads may differ by now.
    """
    if models_at_once is not None:
        check_positive_int("Fleet.fit", "models_at_once", models_at_once)
        return models_at_once
    plan = None if options is None else _read_plan(Path(options.folder) / _PLAN)
    size = (plan or {}).get("models_at_once")
    return size if type(size) is int and size > 0 else None


def _read_plan(path: Path) -> dict[str, Any] | None:
    """Return the plan, None if it is missing or unreadable."""
    try:
        plan = read_json("Fleet.fit", path)
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) else None


def fingerprint_of(
    plan: TrainingPlan, models: StackedModules, data: FleetData, validation: FleetData | None
) -> dict[str, Any]:
    """Return the fingerprint of a training run as JSON, for comparison with a folder of checkpoints.

    All that decides the result counts by value (learning rates and rules at every epoch, the structure of the
    modules, the rows), and functions by their code and closures, not by their names.

    Args:
        plan: of all models.
        models: their structure counts.
        data: rows of the training.
        validation: rows of the validation.
    """
    return {
        "n_models": len(models),
        "n_epochs": plan.n_epochs,
        "optimizer": repr(plan.spec.optimizer),
        "rule": identity_of([plan.courses.groups, plan.policies]),
        "learning_rate": digest_of_tensors({"rates": plan.learning_rates}),
        "weight_decay": plan.weight_decays.tolist(),
        "seeds": plan.seeds.tolist(),
        "score_weight": plan.spec.score_weight,
        "cost_fn": identity_of(plan.spec.cost_fn),
        "loss_fn": identity_of(plan.spec.loss_fn),
        "scores": identity_of(plan.spec.scores),
        "modules": identity_of(models.template),
        "rows": digest_of_tensors(data._asdict()),
        "source of rows": None if data.source is None else identity_of(data.source),
        "validation": None if validation is None else digest_of_tensors(validation._asdict()),
        "monitor": identity_of(plan.spec.monitor),
        "validate_every": list(plan.validate_every),
        "patience": plan.patience,
    }
