"""The state of a training run, its history and its checkpoints; a resumed run is bit-identical.

A folder of checkpoints holds `plan.json`, the fingerprint of the training run, and the last few states of each chunk,
`chunk-<number>-epoch-<next epoch>.safetensors`, in the format of `torchmcl.io`.
"""

import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import checks, io
from torchmcl.errors import bad_value
from torchmcl_fleet.modules.stacked import StackedModules
from torchmcl_fleet.plan import Checkpointing, TrainingPlan
from torchmcl_fleet.problem import FleetData

__all__ = ["ChunkState", "FleetCheckpoint", "FleetHistory", "chunk_size_of", "fingerprint_of", "note_failures"]


@dataclass
class ChunkState:
    """All tensors that change during training; they are updated in place."""

    models: dict[str, Tensor]
    best: dict[str, Tensor]  # state of the models at their best evaluation; empty without validation
    optimizer: dict[str, Tensor]
    annealing: dict[str, Tensor]
    epoch: Tensor
    losses: Tensor  # [epochs, models], like the next three
    watched: Tensor
    temperatures: Tensor
    learning_rates: Tensor
    best_value: Tensor  # [models], like the next three
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_step: Tensor

    @classmethod
    def of(
        cls,
        models: StackedModules,
        n_epochs: int,
        *,
        optimizer: dict[str, Tensor],
        annealing: dict[str, Tensor],
        keep_best: bool,
    ) -> "ChunkState":
        """Return the state before the first epoch."""
        n_models, device = len(models), models.flat.device
        number: dict[str, Any] = {"dtype": models.flat.dtype, "device": device}
        return cls(
            models=models.state,
            best={name: value.clone() for name, value in models.state.items()} if keep_best else {},
            optimizer=optimizer,
            annealing=annealing,
            epoch=torch.zeros((), dtype=torch.long, device=device),
            losses=torch.zeros(n_epochs, n_models, **number),
            watched=torch.full((n_epochs, n_models), torch.nan, **number),
            temperatures=torch.full((n_epochs, n_models), torch.nan, **number),
            learning_rates=torch.full((n_epochs, n_models), torch.nan, **number),
            best_value=torch.full((n_models,), torch.inf, **number),
            best_epoch=torch.full((n_models,), -1, device=device),
            stopped_epoch=torch.full((n_models,), -1, device=device),
            failed_step=torch.full((n_models,), -1, device=device),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, for checkpoints and captured epochs."""
        named: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            named |= {name: value} if isinstance(value, Tensor) else {f"{name}.{key}": v for key, v in value.items()}
        return named


class FleetHistory(NamedTuple):
    """History of a training run, on the CPU.

    Attributes:
        losses: Mean training loss of each epoch, [epochs, models]; NaN after early stopping.
        best_value: Best monitored value, [models]; infinite without validation.
        best_epoch: Epoch of the best value, counted from 0, [models]; -1 without validation.
        stopped_epoch: Epoch of early stopping, [models]; -1 for models that were trained to the end.
        failed_epoch: First epoch with a non-finite loss, [models]; -1 if there is none.
        failed_batch: First batch with a non-finite loss in `failed_epoch`, counted from 0, [models]; -1 if there is
            none.
        watched: Monitored value of each epoch, [epochs, models]; NaN where it was not evaluated.
        temperatures: Temperatures that `AutoAnnealing` set, [epochs, models]; NaN for models with other rules, and
            None if no model uses it.
        learning_rates: Learning rates that were used, [epochs, models]; NaN after early stopping.
        seconds: Wall time of the training.
    """

    losses: Tensor
    best_value: Tensor
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_epoch: Tensor
    failed_batch: Tensor
    watched: Tensor
    temperatures: Tensor | None
    learning_rates: Tensor
    seconds: float

    @classmethod
    def of(cls, state: ChunkState, n_batches: int, temperatures: Tensor | None, seconds: float) -> "FleetHistory":
        """Return the history of a chunk."""
        stopped = state.stopped_epoch
        # A model has no loss after it stopped, while others continue.
        epochs = torch.arange(len(state.losses), device=stopped.device).unsqueeze(-1)
        after = (stopped >= 0) & (epochs > stopped)
        bad = ~(state.losses.isfinite() | after)
        failed = torch.where(bad.any(dim=0), bad.int().argmax(dim=0), -1).cpu()

        curves = [state.losses, state.watched, state.learning_rates, temperatures]
        if bool(after.any()):
            curves = [None if values is None else values.masked_fill(after, torch.nan) for values in curves]
        losses, watched, rates, decided = (None if values is None else values.cpu() for values in curves)
        assert losses is not None
        assert watched is not None
        assert rates is not None
        best_value, best_epoch, step = state.best_value.cpu(), state.best_epoch.cpu(), state.failed_step.cpu()
        if n_batches == 1:
            step = failed
        batches = torch.where((failed >= 0) & (step // n_batches == failed), step % n_batches, -1)
        return cls(losses, best_value, best_epoch, stopped.cpu(), failed, batches, watched, decided, rates, seconds)

    def warn_of_failures(self) -> None:
        """Warn the caller of `Fleet.fit` about models with a NaN or infinite loss."""
        failed = (self.failed_epoch >= 0).nonzero().flatten().tolist()
        if failed:
            batch, epoch = int(self.failed_batch[failed[0]]), int(self.failed_epoch[failed[0]])
            where = f"epoch {epoch}" if batch < 0 else f"batch {batch} of epoch {epoch}"
            warnings.warn(
                f"Fleet: the loss of {len(failed)} of {len(self.failed_epoch)} models is not finite; model {failed[0]} "
                f"was the first of them, from {where} on. The others are not affected. Their last finite weights are "
                "kept: check their rows, or fit them again with a lower `learning_rate`.",
                RuntimeWarning,
                stacklevel=3,
            )

    @classmethod
    def joined(cls, parts: "list[FleetHistory]") -> "FleetHistory":
        """Return the history of a fleet from the histories of its chunks."""
        if len(parts) == 1:
            return parts[0]
        decided = None
        if any(part.temperatures is not None for part in parts):
            filled = [
                torch.full_like(part.losses, torch.nan) if part.temperatures is None else part.temperatures
                for part in parts
            ]
            decided = torch.cat(filled, dim=-1)
        names = set(cls._fields) - {"temperatures", "seconds"}
        joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts], dim=-1) for name in names}
        return cls(**joined, temperatures=decided, seconds=sum(part.seconds for part in parts))


def note_failures(step: Tensor, losses: Tensor, *, n_batches: int, epoch: Tensor) -> None:
    """Record the first batch of each model with a non-finite loss, without synchronization with a GPU.

    Args:
        step: Number of the first failed batch, counted from the start of training, [models]; -1 before a failure.
            Changed in place.
        losses: Losses of consecutive batches, [batches, models].
        n_batches: Number of batches per epoch.
        epoch: Epoch of the first of these batches, a tensor.

    Example:
        >>> step = torch.tensor([-1, -1])
        >>> losses = torch.tensor([[1.0, 1.0], [1.0, torch.nan], [1.0, 1.0]])
        >>> note_failures(step, losses, n_batches=3, epoch=torch.tensor([4]))
        >>> step
        tensor([-1, 13])
    """
    if losses.device.type == "cpu" and math.isfinite(float(losses.sum())):  # reading a value is free on the CPU
        return
    bad = ~losses.isfinite()
    first = epoch * n_batches + bad.int().argmax(dim=0)
    step.copy_(torch.where(bad.any(dim=0) & (step < 0), first, step))


_KIND, _PLAN = "fleet", "plan.json"
_GENERATOR, _DEVICE_GENERATOR = "random generator", "random generator of the device"
_ANEW = "Delete the folder to start anew."


class FleetCheckpoint:
    """Checkpoints of a training run.

    Args:
        options: Folder, and number of states to keep per chunk.
        plan: Fingerprint of the training run, as JSON.
        is_random: Whether the training draws random numbers; the states of the generators are then saved, too.

    Raises:
        ValueError: If the folder contains the state of a different training run.
    """

    def __init__(self, options: Checkpointing, plan: dict[str, Any], *, is_random: bool) -> None:
        self.folder, self.options, self.is_random = Path(options.folder), options, is_random
        plan = json.loads(json.dumps(plan))
        self.plan_digest = io.digest(plan)
        path = self.folder / _PLAN
        saved = _read_plan(path)
        if saved == plan:
            return
        if path.exists():
            differ = sorted(name for name in plan if (saved or {}).get(name) != plan[name])
            advice = "Choose a different folder, or delete this one to start anew."
            rule = "be empty or contain this training run"
            got = f"{self.folder}, which differs in {differ}"
            raise ValueError(bad_value("Fleet.fit", "checkpoint", rule, got, advice))
        io.write_atomically(path, json.dumps(plan, indent=1))

    def load(self, chunk: int, state: dict[str, Tensor], device: torch.device) -> tuple[int, float]:
        """Fill `state` from the newest complete checkpoint of a chunk; return the next epoch and the seconds so far.

        Args:
            chunk: Number of the chunk.
            state: Tensors that training changes.
            device: Device that trains the chunk.

        Returns:
            Next epoch and seconds so far; 0 and 0.0 without a checkpoint.

        Raises:
            CheckpointError: If there are checkpoints, but all are damaged or belong to a different training run.
        """
        newest = self._series(chunk).newest()
        if newest is None:
            return 0, 0.0
        next_epoch, saved = newest
        if not isinstance(saved, dict) or saved.get("plan") != self.plan_digest:
            got = f"{self._series(chunk).path(next_epoch).name} of a different one"
            raise _damaged("contain states of the training run in its plan.json", got)
        with torch.no_grad():
            for name, tensor in state.items():
                value = saved.get(name)
                if not isinstance(value, Tensor) or (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
                    rule = f"contain {name!r} with shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
                    raise _damaged(rule, "something else")
                tensor.copy_(value)
        self._restore_generator(saved, device)
        seconds = saved.get("seconds")
        if not isinstance(seconds, float | int) or not 0 <= seconds < math.inf:
            raise _damaged("contain the seconds of the training so far", seconds)
        return next_epoch, float(seconds)

    def save(self, chunk: int, next_epoch: int, seconds: float, state: dict[str, Tensor], device: torch.device) -> None:
        """Write the state of a chunk.

        Raises:
            OSError: If the file cannot be written; the last state is then untouched.
        """
        tensors = dict(state)
        if self.is_random:
            tensors[_GENERATOR] = torch.get_rng_state()
            if device.type == "cuda":
                tensors[_DEVICE_GENERATOR] = torch.cuda.get_rng_state(device)
        self._series(chunk).save(next_epoch, {**tensors, "plan": self.plan_digest, "seconds": seconds})

    def _series(self, chunk: int) -> io.CheckpointSeries:
        return io.CheckpointSeries(self.folder, _KIND, name=f"chunk-{chunk:04d}-epoch", keep=self.options.keep)

    def _restore_generator(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        if self.is_random and _GENERATOR in tensors:
            torch.set_rng_state(tensors[_GENERATOR])
        if self.is_random and _DEVICE_GENERATOR in tensors:
            torch.cuda.set_rng_state(tensors[_DEVICE_GENERATOR], device)


def _damaged(rule: str, got: object) -> io.CheckpointError:
    return io.CheckpointError(bad_value("Fleet.fit", "checkpoint", rule, got, _ANEW))


def chunk_size_of(models_at_once: int | None, options: Checkpointing | None) -> int | None:
    """Return the number of models per chunk: as requested, or as in the saved run; None if undetermined.

    The chunks of a saved run are kept: available memory and threads may have changed.
    """
    if models_at_once is not None:
        checks.check_positive_int("Fleet.fit", "models_at_once", models_at_once)
        return models_at_once
    plan = None if options is None else _read_plan(Path(options.folder) / _PLAN)
    size = (plan or {}).get("models_at_once")
    return size if type(size) is int and size > 0 else None


def _read_plan(path: Path) -> dict[str, Any] | None:
    """Return the saved plan; None if it is missing or unreadable."""
    try:
        plan = io.read_json("Fleet.fit", path)
    except (OSError, ValueError):
        return None
    return plan if isinstance(plan, dict) else None


def fingerprint_of(
    plan: TrainingPlan, models: StackedModules, data: FleetData, validation: FleetData | None, *, key: str | None
) -> dict[str, Any]:
    """Return the fingerprint of a training run as JSON, for comparison with a folder of checkpoints.

    Rules and learning rates are compared by their values at every epoch, rows by a checksum, options by their fields,
    modules by their structure, and functions by their module and qualified name.

    Args:
        plan: Plan of all models.
        models: Models whose structure is compared.
        data: Training rows.
        validation: Validation rows.
        key: Name that identifies functions without a unique qualified name, such as lambdas.

    Raises:
        ValueError: If there is such a function and `key` is None.
    """
    parts = {
        "n_models": len(models),
        "n_epochs": plan.n_epochs,
        "rule": [plan.rule_plan.by_group(), plan.policies],
        "learning_rate": plan.learning_rates.full(),
        "weight_decay": plan.weight_decays.tolist(),
        "seeds": plan.seeds.tolist(),
        **vars(plan.spec),
        "modules": models.module(0),
        "rows": data,
        "validation": validation,
        "validate_every": list(plan.validate_every),
        "patience": plan.patience,
    }
    return {name: _described(name, part, key) for name, part in parts.items()}


def _described(name: str, part: Any, key: str | None) -> Any:
    try:
        return io.described(part, key=key)
    except ValueError as error:
        message = f"Fleet.fit: `checkpoint` requires a key for `{name}`: Checkpointing(folder, key=...). {error}"
        raise ValueError(message) from error
