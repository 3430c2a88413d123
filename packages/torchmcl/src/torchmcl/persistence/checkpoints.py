"""A checkpoint: tensors and JSON in one file with a checksum. No pickle.

The format is described in `torchmcl.persistence.headers`. The checksum covers the JSON and name, type, shape and bytes
of every tensor. The same state gives the same bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl._optional import optional_import
from torchmcl._version import __version__
from torchmcl.persistence.headers import HEADER, VERSION, CheckpointError, bad_file, read_header, saved_contents
from torchmcl.persistence.writing import write_atomically

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "digest_of_json",
    "read_checkpoint",
    "read_saved",
    "write_checkpoint",
]


class Checkpoint(NamedTuple):
    """The contents of a file.

    Attributes:
        kind: the kind of its content, "fleet" for example.
        state: what JSON can hold.
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
        state: what JSON can hold; `encode` turns other values into it.
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
    """Return the contents of a file after comparing its checksum. Nothing from the file is executed.

    Args:
        path: of the file.
        kind: the required kind; any by default.

    Raises:
        CheckpointError: if it is not an intact checkpoint, of another kind, or of a newer version.
        FileNotFoundError: if there is none.
    """
    path = Path(path)
    broken = optional_import("safetensors", extra="checkpoint", needed_by="read_checkpoint").SafetensorError
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by="read_checkpoint")
    if not path.is_file():
        raise FileNotFoundError(f"read_checkpoint: there is no file {str(path)!r}.")
    checksum, text, document = read_header(path, kind)
    try:
        tensors: dict[str, Tensor] = io.load(path.read_bytes())
    except (broken, ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise bad_file(path, "be a complete safetensors file", got, "It is damaged.") from error
    if checksum != _digest(text, tensors):
        got = "another one: the file has changed since it was written"
        raise bad_file(path, "have the checksum in its header", got)
    return Checkpoint(document.get("kind", ""), document.get("state"), tensors, str(document.get("torchmcl")))


def read_saved(owner: str, folder: Path, kind: str, by: str) -> Checkpoint:
    """Return the checkpoint of a model in its folder; see `torchmcl.persistence.headers.saved_contents`."""
    return saved_contents(owner, folder, kind, by, read_checkpoint)


def digest_of_json(value: Any) -> str:
    """Return a checksum of a JSON value, independent of the order of keys and of the layout."""
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
        if tensor.numel():  # an empty tensor has no bytes, and a single number may have any stride
            flat = tensor.as_strided((tensor.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
