"""Resumption: saved progress of a long computation, so that the same call continues after a kill or a signal."""

import copyreg
import functools
import hashlib
import json
import math
import re
import shutil
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from torchmcl.checks import check_positive_int
from torchmcl.errors import bad_value
from torchmcl.io.codec import load, save
from torchmcl.io.files import CheckpointError, read_json, remove_abandoned, write_atomically
from torchmcl.io.stopping import begin_saving, check_stop, end_saving, stop_requested

__all__ = ["Checkpoint", "CheckpointSeries", "described", "digest"]

_SUFFIX, _KEY_FILE = ".safetensors", "key.json"
_Result = TypeVar("_Result")


class CheckpointSeries:
    """Values saved as `<name>-<step>.safetensors` in a folder, of which the newest are kept.

    Args:
        folder: Folder of the files, created on the first save.
        kind: Kind of all files.
        name: Prefix of the files.
        keep: Number of files to keep; with 1 there is no fallback for a damaged file.

    Example:
        >>> import tempfile, torch
        >>> series = CheckpointSeries(Path(tempfile.mkdtemp()), "my loop", keep=2)
        >>> for step in (10, 20, 30):
        ...     series.save(step, {"loss": 1 / step, "weight": torch.ones(2)})
        >>> series.steps(), series.newest()[0]
        ([20, 30], 30)
    """

    def __init__(self, folder: Path | str, kind: str, *, name: str = "checkpoint", keep: int = 2) -> None:
        check_positive_int("CheckpointSeries", "keep", keep)
        self.folder, self.kind, self.name, self.keep = Path(folder), kind, name, keep

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.folder / f"{self.name}-{step:08d}{_SUFFIX}"

    def steps(self) -> list[int]:
        """Return the steps with a file, in order."""
        pattern = re.compile(re.escape(self.name) + r"-(\d{8,})" + re.escape(_SUFFIX))
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(matched[1]) for name in names if (matched := pattern.fullmatch(name)))

    def save(self, step: int, value: Any) -> None:
        """Write the value of a step, then remove the oldest files.

        Raises:
            OSError: If it cannot be written; earlier files are then untouched.
        """
        save(self.path(step), value, kind=self.kind)
        self.prune()

    def prune(self) -> None:
        """Remove all but the newest files, and the temporary files of killed processes."""
        for step in self.steps()[: -self.keep]:
            self.path(step).unlink(missing_ok=True)
        remove_abandoned(self.folder)

    def newest(self) -> tuple[int, Any] | None:
        """Return the newest step with an intact file, and its value; None without a file.

        Damaged files are skipped with a warning.

        Raises:
            CheckpointError: If there are files, but none is intact.
        """
        damaged = None
        for step in reversed(self.steps()):
            try:
                value = load(self.path(step), kind=self.kind)
            except CheckpointError as error:
                damaged = damaged or error
                continue
            if damaged is not None:
                message = f"{damaged} Resuming from the previous one, {self.path(step).name}."
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            return step, value
        if damaged is not None:
            rule, advice = "contain an intact checkpoint", "Delete it to start again."
            got = f"{str(self.folder)!r} where the newest is damaged ({damaged})"
            raise CheckpointError(bad_value("CheckpointSeries", "folder", rule, got, advice))
        return None


class Resumable(Protocol):
    """Object whose progress can be saved: a module, an optimizer, a scheduler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Checkpoint:
    """Saved progress of a computation of several stages, which the same call resumes with equal results.

    Every stage ends with the random generators of torch in the same state, whether it was computed or restored. In a
    `with` block, a signal under `stop_on_signals` ends the work after the next save.

    Args:
        folder: New or empty folder, or one with saved progress; None saves nothing.
        key: Everything that determines the results, by name, in a form that `described` accepts.
        owner: Function named in messages.
        every: Seconds between saves of a loop: the most that a kill loses.
        keep: Number of saved states of each loop.

    Raises:
        ValueError: If the folder holds progress of another computation; the message names what differs.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with Checkpoint(folder, {"n_samples": 3}) as checkpoint:
        ...     samples = checkpoint.once("samples", lambda: torch.rand(3))
        >>> torch.equal(samples, Checkpoint(folder, {"n_samples": 3}).once("samples", lambda: torch.rand(3)))
        True
        >>> Checkpoint("folder", {"n_samples": 3}).key
        {'n_samples': 3}

    See Also:
        CheckpointSeries: Numbered files, without a key.
    """

    def __init__(
        self,
        folder: Path | str | None,
        key: Mapping[str, Any],
        *,
        owner: str = "Checkpoint",
        every: float = 5.0,
        keep: int = 2,
    ) -> None:
        self.folder, self.owner, self.every, self.keep = None if folder is None else Path(folder), owner, every, keep
        self.key: dict[str, Any] = json.loads(json.dumps({name: described(value) for name, value in key.items()}))
        if self.folder is not None and self.folder.exists():
            self._check_key(self.folder)

    def __enter__(self) -> Self:
        """Begin work that is saved on a signal."""
        begin_saving()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """End it; a signal that arrived after the last save stops the process here."""
        end_saving()
        if kind is None:
            self._stop_if_requested()

    @property
    def has_progress(self) -> bool:
        """Whether a stage is saved in the folder."""
        return self.folder is not None and any(self.folder.glob(f"*{_SUFFIX}"))

    def once(self, name: str, compute: Callable[[], _Result]) -> _Result:
        """Return the result of a stage: computed and saved, or restored.

        Args:
            name: Name of the stage, unique in the computation.
            compute: Function that returns a nested value; see `save`.

        Raises:
            TrainingInterrupted: If a signal requested it while the stage was computed, which is then saved.
        """
        stage = self._series(name)
        if stage is not None and (newest := stage.newest()) is not None:
            _set_generators(newest[1]["generators"])
            result: _Result = newest[1]["result"]
            return result
        result = compute()
        if stage is not None:
            self._save(stage, 1, {"result": result})
        self._stop_if_requested()
        return result

    def steps(self, name: str, objects: Mapping[str, Resumable], n_steps: int) -> Iterator[int]:
        """Yield the remaining steps of a training loop, whose objects are restored first.

        The state is saved between steps, if the last save is `every` seconds ago or a signal requests it, and at
        the end.

        Args:
            name: Name of the stage, unique in the computation.
            objects: Objects that change in the loop, by name.
            n_steps: Number of steps of the loop.

        Yields:
            Numbers of steps, from the first that is not saved to `n_steps - 1`.

        Raises:
            TrainingInterrupted: If a signal requests it; the last step is then saved.
        """
        stage, first, saved_at = self._series(name), 0, time.monotonic()
        if stage is not None and (newest := stage.newest()) is not None:
            first = newest[0]
            for part, value in objects.items():
                value.load_state_dict(newest[1]["objects"][part])
            _set_generators(newest[1]["generators"])
        for step in range(first, n_steps):
            yield step
            is_due = stop_requested() or step == n_steps - 1 or time.monotonic() - saved_at > self.every
            if stage is not None and is_due:
                self._save(stage, step + 1, {"objects": {part: value.state_dict() for part, value in objects.items()}})
                saved_at = time.monotonic()
            self._stop_if_requested()

    @staticmethod
    def discard(folder: Path | str) -> None:
        """Remove a folder of saved progress, for example because the computation has ended; others are kept."""
        if (Path(folder) / _KEY_FILE).is_file():
            shutil.rmtree(folder, ignore_errors=True)

    def _series(self, name: str) -> CheckpointSeries | None:
        return None if self.folder is None else CheckpointSeries(self.folder, self.owner, name=name, keep=self.keep)

    def _save(self, stage: CheckpointSeries, step: int, value: dict[str, Any]) -> None:
        key_file = stage.folder / _KEY_FILE
        if not key_file.is_file():
            write_atomically(key_file, json.dumps(self.key, indent=1))
        stage.save(step, value | {"generators": _generators()})

    def _check_key(self, folder: Path) -> None:
        key_file = folder / _KEY_FILE
        if not key_file.is_file():
            if not folder.is_dir() or any(folder.iterdir()):
                rule, advice = "be new, empty or contain saved progress", "Give another name, or remove it first."
                raise ValueError(bad_value(self.owner, "checkpoint", rule, repr(str(folder)), advice))
            return
        saved = read_json(self.owner, key_file)
        saved = saved if isinstance(saved, dict) else {}
        differing = sorted(name for name in {*saved, *self.key} if saved.get(name) != self.key.get(name))
        if differing:
            rule, advice = "contain the progress of the same call", "Give another folder, or delete it to start again."
            got = f"{str(folder)!r}, which differs in {', '.join(differing)}"
            raise ValueError(bad_value(self.owner, "checkpoint", rule, got, advice))

    def _stop_if_requested(self) -> None:
        if stop_requested():
            saved = f"The progress is saved in {str(self.folder)!r}: the same call resumes it."
            check_stop(saved if self.has_progress else "Nothing is saved.")


def _generators() -> list[Tensor]:
    """Return the states of the random generators of the CPU and of the devices."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def _set_generators(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if states[1:] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states[1:])


# ---------------------------------------------------------------------------- keys


def digest(value: Any, *, key: str | None = None) -> str:
    """Return a checksum of a value, equal in other processes; see `described`.

    Example:
        >>> digest({"rate": 0.1, "rows": torch.ones(3)})[:8] == digest({"rows": torch.ones(3), "rate": 0.1})[:8]
        True
    """
    return hashlib.sha256(json.dumps(described(value, key=key)).encode()).hexdigest()


def described(value: Any, *, key: str | None = None) -> Any:
    """Return a description of a value as JSON, by which two computations are compared.

    Numbers, strings and containers are described by their values, tensors and arrays by a checksum, objects by class
    and attributes, modules by their structure, functions and classes by module and qualified name.

    Args:
        value: Value to describe.
        key: Name that stands for functions without a qualified name of their own.

    Raises:
        ValueError: If it contains a lambda, a nested function or a partial, and `key` is None.

    Example:
        >>> described([0.1, {"rows": range(3)}, described])
        [0.1, {'rows': 'range(0, 3)'}, 'torchmcl.io.checkpoints.described']
    """
    return _described(value, key, ())


def _described(value: Any, key: str | None, above: tuple[int, ...]) -> Any:
    if id(value) in above:
        return "recursive"
    above = (*above, id(value))

    def part(inner: Any) -> Any:
        return _described(inner, key, above)

    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, np.generic):
        return part(value.item())
    if isinstance(value, Tensor):
        return ["tensor", list(value.shape), str(value.dtype), _digest_of_bytes(value)]
    if isinstance(value, np.ndarray):
        contents = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        return ["array", list(value.shape), str(value.dtype), hashlib.sha256(contents).hexdigest()]
    if isinstance(value, nn.Module):
        return _described_module(value, part)
    if isinstance(value, Mapping):
        if all(type(name) is str for name in value):
            return {name: part(value[name]) for name in sorted(value)}
        return ["mapping", *sorted(json.dumps([part(name), part(inner)]) for name, inner in value.items())]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(json.dumps(part(inner)) for inner in value)]
    if isinstance(value, list):
        return [part(inner) for inner in value]
    if isinstance(value, tuple):
        return [_name(type(value), key), *(part(inner) for inner in value)]
    if isinstance(value, types.MethodType):
        return [_name(value.__func__, key), part(value.__self__)]
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | functools.partial):
        return _name(value, key)
    if isinstance(value, torch.Generator):
        return ["generator", value.initial_seed()]
    if isinstance(value, float | complex | bytes | slice | range | Enum | Path | torch.dtype | torch.device):
        return repr(value)
    if is_dataclass(value):
        return [_name(type(value), key), {field.name: part(getattr(value, field.name)) for field in fields(value)}]
    # As pickle reads an object: attributes, slots, or the arguments of a constructor in C (dates, tables of pandas).
    return [_name(type(value), key), *(part(list(p) if isinstance(p, Iterator) else p) for p in _reduced(value)[1:])]


def _reduced(value: Any) -> tuple[Any, ...]:
    try:
        reduced = copyreg.dispatch_table.get(type(value), lambda value: value.__reduce_ex__(2))(value)
    except TypeError:  # a lock or a file, which has no value
        return ()
    return reduced if isinstance(reduced, tuple) else (None, reduced)  # a string names a global object


def _described_module(module: nn.Module, part: Callable[[Any], Any]) -> list[Any]:
    """Return the structure of a module: everything but the values of its parameters and buffers."""
    tensors = [
        [name, list(tensor.shape), str(tensor.dtype), tensor.requires_grad]
        for named in (module.named_parameters(), module.named_buffers())  # shared parameters appear once
        for name, tensor in named
    ]
    parts = [
        [name, _name(type(inner), None), inner.training, {key: part(value) for key, value in attributes(inner).items()}]
        for name, inner in module.named_modules()
    ]
    return ["module", tensors, parts]


def attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module other than those of every `nn.Module`, and its hooks if there are any."""
    hooks = {name: list(values.values()) for name, values in vars(module).items() if name.endswith("_hooks") and values}
    inherited = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"}  # the last two of recurrent layers
    return {name: value for name, value in vars(module).items() if name not in inherited} | hooks


def _digest_of_bytes(tensor: Tensor) -> str:
    plain = tensor.detach().cpu().contiguous()
    contents = plain.view(-1).view(torch.uint8) if plain.numel() else plain  # NumPy has no bfloat16
    return hashlib.sha256(contents.numpy().tobytes()).hexdigest()


def _name(value: Any, key: str | None) -> str:
    name = getattr(value, "__qualname__", "<partial>")
    is_class = isinstance(value, type)
    if "<" in name and not is_class:
        if key is None:
            kind = "a partial" if name == "<partial>" else f"the function {name!r}"
            what = f"{kind} has no name by which another process could recognize it"
            raise ValueError(f"Checkpoint: {what}. Define it at the top of a module, or give an explicit `key=`.")
        return f"key {key}"
    return f"{getattr(value, '__module__', None)}.{name}"
