"""A checkpoint: tensors and JSON in one file with a checksum. No pickle.

The format is described in `torchmcl.io.headers`. The checksum covers the JSON, and the name, type, shape and
bytes of every tensor. Equal states produce identical files.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl._version import __version__
from torchmcl.checks import bad_value, check_positive_int
from torchmcl.io.headers import HEADER, VERSION, CheckpointError, bad_file, read_header, saved_contents
from torchmcl.io.writing import remove_abandoned, write_atomically
from torchmcl.optional import optional_import


class Checkpoint(NamedTuple):
    """The contents of a file.

    Attributes:
        kind: the kind of its content, "fleet" for example.
        state: JSON values.
        tensors: by name, on the CPU.
        torchmcl: the version that wrote it.
    """

    kind: str
    state: Any
    tensors: dict[str, Tensor]
    torchmcl: str


def write_checkpoint(path: Path | str, kind: str, *, state: Any, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint to a temporary file, flush it, and rename it.

    Args:
        path: of the file.
        kind: the kind of its content, which `read_checkpoint` can require.
        state: JSON values; `encode` converts other values.
        tensors: by name.

    Raises:
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "mine.safetensors"
        >>> write_checkpoint(path, "my loop", state={"epoch": 3}, tensors={"weight": torch.ones(2)})
        >>> read_checkpoint(path, "my loop").state
        {'epoch': 3}
    """
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by="write_checkpoint")
    separate = _separate(tensors)
    document = {"version": VERSION, "torchmcl": __version__, "kind": kind, "state": state}
    text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    write_atomically(Path(path), io.save(separate, metadata={HEADER: f"{_digest(text, separate)} {text}"}))


def read_checkpoint(path: Path | str, kind: str | None = None) -> Checkpoint:
    """Return the contents of a file after verifying its checksum. Nothing from the file is executed.

    Args:
        path: of the file.
        kind: the required kind; any by default.

    Raises:
        CheckpointError: if it is not an intact checkpoint of this kind, or was written by a newer version.
        FileNotFoundError: if the file does not exist.
    """
    path = Path(path)
    broken = optional_import("safetensors", extra="checkpoint", needed_by="read_checkpoint").SafetensorError
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by="read_checkpoint")
    if not path.is_file():
        raise FileNotFoundError(f"read_checkpoint: there is no file {str(path)!r}. Check the path.")
    checksum, text, document = read_header(path, kind)
    try:
        tensors: dict[str, Tensor] = io.load(path.read_bytes())
    except (broken, ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise bad_file(path, "be a complete safetensors file", got, "It is damaged.") from error
    if checksum != _digest(text, tensors):
        got = "another one: the file has changed since it was written"
        raise bad_file(path, "have the checksum in its header", got, "Restore it from a copy.")
    return Checkpoint(document.get("kind", ""), document.get("state"), tensors, str(document.get("torchmcl")))


def read_saved(owner: str, folder: Path, kind: str, by: str) -> Checkpoint:
    """Return the checkpoint of a model in its folder; see `torchmcl.io.headers.saved_contents`."""
    return saved_contents(owner, folder, kind, by, read_checkpoint)


def digest_of_json(value: Any) -> str:
    """Return a checksum of a JSON value, independent of key order and formatting."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU that share no memory, as safetensors requires."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():  # an empty tensor has no bytes, and a single element may have any stride
            flat = tensor.as_strided((tensor.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


_SUFFIX = ".safetensors"


class CheckpointSeries:
    """Checkpoints `<name>-<step>.safetensors` in a folder, of which the newest are kept.

    Args:
        folder: created on the first save.
        kind: of all checkpoints.
        name: prefix of the files.
        keep: the number to keep; with 1 there is no fallback.

    Example:
        >>> import tempfile, torch
        >>> series = CheckpointSeries(Path(tempfile.mkdtemp()), "my loop", keep=2)
        >>> for step in (10, 20, 30):
        ...     series.save(step, state={"loss": 1 / step}, tensors={"weight": torch.ones(2)})
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
        return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))

    def save(self, step: int, *, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Write the checkpoint of a step, then remove the oldest ones.

        Raises:
            OSError: if it cannot be written; earlier checkpoints are then untouched.
        """
        write_checkpoint(self.path(step), self.kind, state=state, tensors=tensors)
        self.prune()

    def prune(self) -> None:
        """Remove all but the newest checkpoints, and the temporary files of killed processes."""
        for step in self.steps()[: -self.keep]:
            self.path(step).unlink(missing_ok=True)
        remove_abandoned(self.folder)

    def newest(self) -> tuple[int, Checkpoint] | None:
        """Return the newest step with a complete checkpoint, and the checkpoint; None without a file.

        Damaged checkpoints are skipped with a warning.

        Raises:
            CheckpointError: if there are files, but none is intact.
        """
        damaged = None
        for step in reversed(self.steps()):
            try:
                found = read_checkpoint(self.path(step), self.kind)
            except CheckpointError as error:
                damaged = damaged or error
                continue
            if damaged is not None:
                message = f"{damaged} Resuming from the previous one, {self.path(step).name}."
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            return step, found
        if damaged is not None:
            rule, advice = "hold a whole checkpoint", "Delete it to start again."
            got = f"{str(self.folder)!r} where the newest is damaged ({damaged})"
            raise CheckpointError(bad_value("CheckpointSeries", "folder", rule, got, advice))
        return None
