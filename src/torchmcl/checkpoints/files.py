"""A checkpoint: tensors and JSON in one file that is checked when it is read. No pickle.

It is a safetensors file that any reader of safetensors opens. Its header holds one text more, `torchmcl_checkpoint`:
a checksum (SHA-256, in hexadecimal), a blank, and JSON with the version of the format, that of torchmcl, the kind and
the state. The checksum is of that JSON and of the name, type, shape and bytes of every tensor. The same state gives the
same bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl._files import write_atomically
from torchmcl._optional import optional_import
from torchmcl._version import __version__

__all__ = [
    "VERSION",
    "Checkpoint",
    "CheckpointError",
    "bad_file",
    "digest_of_json",
    "read_any",
    "read_checkpoint",
    "write_checkpoint",
]

# Counts up when an older torchmcl could not read what this one writes. A newer one reads all that came before.
VERSION = 1
_HEADER = "torchmcl_checkpoint"


class CheckpointError(ValueError):
    """A file that is not a whole checkpoint: truncated, changed, of another kind or of a newer version."""


class Checkpoint(NamedTuple):
    """What a file held.

    Attributes:
        kind: what it is of, "fleet" for example.
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
        kind: what it is of; `read_checkpoint` can insist on it.
        state: what JSON can hold; `parted` makes it of more.
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
    own = _apart(tensors)
    document = {"version": VERSION, "torchmcl": __version__, "kind": kind, "state": state}
    text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    write_atomically(Path(path), io.save(own, metadata={_HEADER: f"{_digest(text, own)} {text}"}))


def read_checkpoint(path: Path | str, kind: str | None = None) -> Checkpoint:
    """Return what a file holds, after its checksum was compared. Nothing from the file is executed.

    Args:
        path: of the file.
        kind: what it must be of; anything unless told.

    Raises:
        CheckpointError: if it is not a whole checkpoint, of another kind, or of a newer version.
        FileNotFoundError: if there is none.
    """
    checkpoint, _ = read_any(Path(path), kind)
    if checkpoint is None:
        raise bad_file(Path(path), "be written by torchmcl", "a safetensors file without its checksum")
    return checkpoint


def read_any(path: Path, kind: str | None = None) -> tuple[Checkpoint | None, dict[str, Tensor]]:
    """Return a checkpoint and its tensors; None and the tensors of a safetensors file that is no checkpoint.

    Raises:
        CheckpointError: as `read_checkpoint` does, but for files without a checksum.
    """
    header, tensors = _opened(path)
    if _HEADER not in header:
        return None, tensors
    checksum, _, text = header[_HEADER].partition(" ")
    if checksum != _digest(text, tensors):
        got = "another one: the file has changed since it was written"
        raise bad_file(path, "have the checksum in its header", got)
    document = _document(path, text)
    if document["version"] > VERSION:
        got = f"version {document['version']} (written by torchmcl {document.get('torchmcl')})"
        rule = f"be of version {VERSION} or older"
        raise bad_file(path, rule, got, "Upgrade torchmcl: pip install -U torchmcl.")
    if kind is not None and document.get("kind") != kind:
        raise bad_file(path, f"be of kind {kind!r}", repr(document.get("kind")))
    written_by = str(document.get("torchmcl"))
    return Checkpoint(document.get("kind", ""), document.get("state"), tensors, written_by), tensors


def digest_of_json(value: Any) -> str:
    """Return a checksum of what JSON can hold, whatever the order of its keys and its layout."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _opened(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the texts in the header and the tensors; read at once, so that later changes of the file do not matter."""
    needed_by = "read_checkpoint"
    broken = optional_import("safetensors", extra="checkpoint", needed_by=needed_by).SafetensorError
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by=needed_by)
    if not path.is_file():
        raise FileNotFoundError(f"read_checkpoint: there is no file {str(path)!r}.")
    data = path.read_bytes()
    try:
        tensors = io.load(data)
        n_header = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + n_header]).get("__metadata__", {})
    except (broken, ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise bad_file(path, "be a whole safetensors file", got, "It is damaged, or something else.") from error
    return header, tensors


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_file(path, "hold JSON in its header", type(error).__name__) from error
    if not isinstance(document, dict) or type(document.get("version")) is not int:
        raise bad_file(path, "name the version of its format", repr(text[:80]))
    return document


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU, each with memory of its own, as safetensors wants them."""
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return own


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():  # what is empty has no bytes; and a single number may have any stride
            flat = tensor.as_strided((tensor.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def bad_file(path: Path, rule: str, got: str, advice: str = "") -> CheckpointError:
    """Return the error about a file."""
    return CheckpointError(f"read_checkpoint: {str(path)!r} must {rule}, got {got}. {advice}".strip())
