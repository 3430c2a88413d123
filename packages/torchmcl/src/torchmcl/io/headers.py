"""The header of a saved file, read without torch: kind, version, description and checksum.

Everything that is saved (checkpoints, models) is one safetensors file that any safetensors reader can open.
Its header has an additional entry, `torchmcl_checkpoint`: a checksum (SHA-256, in hexadecimal), a space, and JSON with
the version of the format, the version of torchmcl, the kind and the state. `torchmcl.io` reads and writes it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchmcl.errors import bad_value
from torchmcl.io.reading import check_limit, json_value
from torchmcl.io.writing import is_temporary

#: Increased whenever older versions of torchmcl cannot read the new format.
VERSION = 1
HEADER = "torchmcl_checkpoint"
#: The file of a saved model in its folder.
MODEL_FILE = "model.safetensors"

_Contents = TypeVar("_Contents")


class CheckpointError(ValueError):
    """Raised for a file that is not an intact checkpoint: truncated, modified, of another kind or a newer version."""


class Header(NamedTuple):
    """The JSON text in the header, and its checksum.

    Attributes:
        checksum: of `text` and the tensors; not yet verified.
        text: JSON, as it was written.
        document: the parsed text, with "version", "torchmcl", "kind" and "state".
    """

    checksum: str
    text: str
    document: dict[str, Any]


def bad_file(path: Path, rule: str, got: str, advice: str = "") -> CheckpointError:
    """Return the error for a bad file."""
    return CheckpointError(f"read_checkpoint: {str(path)!r} must {rule}, got {got}. {advice}".strip())


def read_header(path: Path, kind: str | None = None) -> Header:
    """Return the header of a saved file. The tensors are not read, so the checksum cannot be verified.

    Args:
        path: of the file.
        kind: the required kind; any by default.

    Raises:
        CheckpointError: if it is not a saved file of this kind, or was written by a newer version.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        n_bytes = int.from_bytes(file.read(8), "little")
        if n_bytes > path.stat().st_size:
            raise bad_file(path, "be a complete safetensors file", "one that is cut short", "It is damaged.")
        check_limit("read_checkpoint", path.name, "file_bytes", n_bytes)
        content = file.read(n_bytes)
    try:
        metadata = json_value("read_checkpoint", path.name, content.decode())["__metadata__"]
        checksum, _, text = metadata[HEADER].partition(" ")
        document = json_value("read_checkpoint", path.name, text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        got = "a file without its header"
        raise bad_file(path, "be written by torchmcl", got, "It is damaged, or another kind of file.") from error
    if not isinstance(document, dict) or type(document.get("version")) is not int:
        raise bad_file(path, "name the version of its format", repr(text[:80]))
    if document["version"] > VERSION:
        got = f"version {document['version']} (written by torchmcl {document.get('torchmcl')})"
        advice = "Upgrade torchmcl: pip install -U torchmcl."
        raise bad_file(path, f"be of version {VERSION} or older", got, advice)
    if kind is not None and document.get("kind") != kind:
        raise bad_file(path, f"be of kind {kind!r}", repr(document.get("kind")))
    return Header(checksum, text, document)


def saved_contents(owner: str, folder: Path, kind: str, by: str, read: Callable[[Path, str], _Contents]) -> _Contents:
    """Return the result of `read` for the file of a saved model: `read_header` or `read_checkpoint`.

    Args:
        owner: named in errors.
        folder: of the model.
        kind: of the model.
        by: the function or command that writes such folders.
        read: called with the file and the kind.

    Raises:
        ValueError: if there is no such file, or it is damaged, of another kind or a newer version.
    """
    path = folder / MODEL_FILE
    if not path.is_file():
        got = f"{str(folder)!r}, which {f'has no {MODEL_FILE}' if folder.exists() else 'does not exist'}"
        raise ValueError(bad_value(owner, "folder", f"be a folder that {by} wrote", got, "Check the path."))
    try:
        return read(path, kind)
    except CheckpointError as error:
        raise ValueError(bad_value(owner, "folder", f"hold what {by} wrote", str(error).rstrip("."))) from error


def check_free(owner: str, folder: Path, by: str) -> bool:
    """Check that a model can be saved in a folder; return whether the folder contains one.

    Raises:
        ValueError: if it exists, is not empty and does not contain a saved model.
    """
    path = folder / MODEL_FILE
    # Before the check for a model: another thread may save one in between.
    others = folder.is_dir() and any(not is_temporary(entry.name) for entry in folder.iterdir())
    try:
        holds_model = path.is_file() and bool(read_header(path))
    except ValueError:
        holds_model = False
    if not holds_model and (others or (folder.exists() and not folder.is_dir())):
        rule, advice = f"be new, empty or hold a model of {by}", "Give another name, or remove it first."
        raise ValueError(bad_value(owner, "folder", rule, repr(str(folder)), advice))
    return holds_model
