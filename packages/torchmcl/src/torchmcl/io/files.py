"""Robust files: atomic writes, reads with size limits, JSON lines, and headers of saved models.

A file is written in the destination folder under a random name, and then renamed. If the destination is a link, the
link is kept and its target is replaced. A killed process leaves at most such a temporary file behind; files older than
a day are removed by the next process that writes to the same folder. This module does not import torch.
"""

import contextlib
import errno
import gzip
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from torchmcl.errors import bad_value

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "LIMITS",
    "MODEL_FILE",
    "CheckpointError",
    "Header",
    "LimitError",
    "as_written",
    "bad_file",
    "change_records",
    "check_free",
    "check_limit",
    "check_writable",
    "json_value",
    "limit",
    "read_header",
    "read_json",
    "read_records",
    "read_text",
    "records_text",
    "remove_abandoned",
    "replaced_file",
    "saved_contents",
    "single_writer",
    "unpacked",
    "write_atomically",
    "write_records",
]

# ---------------------------------------------------------------------------- limits and reads


class Limit(NamedTuple):
    """Limit of a size: its default and the counted quantity, for messages and the documentation."""

    default: int
    meaning: str


class LimitError(ValueError):
    """A size exceeds its limit; the message explains how to raise the limit."""


LIMITS = {
    "table_bytes": Limit(8 << 30, "bytes of a table"),
    "file_bytes": Limit(256 << 20, "bytes of another file: headers of models, records, configurations, downloads"),
    "audio_samples": Limit(2_000_000_000, "samples of a recording or a pack, channels and resampling included"),
}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def limit(name: str) -> int:
    """Return a limit by its name in `LIMITS`.

    Raises:
        ValueError: If its environment variable is set to something other than an integer.

    Example:
        >>> limit("audio_samples")
        2000000000
    """
    variable = f"TORCHMCL_LIMIT_{name.upper()}"
    text = os.environ.get(variable, "").strip()
    if not text:
        return LIMITS[name].default
    matched = re.fullmatch(r"([0-9]{1,18})([KMG]?)", text)
    if matched is None:
        raise ValueError(f"torchmcl: `{variable}` must be an integer, also with K, M or G, got {text!r}.")
    return int(matched[1]) * _UNITS[matched[2]]


def check_limit(owner: str, argument: str, name: str, count: int) -> None:
    """Check that `count` is within a limit.

    Raises:
        LimitError: If it is not; the message explains how to raise the limit.
    """
    maximum = limit(name)
    if count > maximum:
        raise LimitError(
            f"{owner}: `{argument}` must have at most {maximum:,} {LIMITS[name].meaning}, got {count:,}. If you trust "
            f"the file, set TORCHMCL_LIMIT_{name.upper()}."
        )


def read_text(owner: str, path: Path, size: str = "file_bytes") -> str:
    """Return the contents of a text file in UTF-8 after checking its size.

    Raises:
        ValueError: If it is larger than the limit `size`, or not text.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(limit(size) + 1)  # not by the file size: a file can grow, and a device has none
    if len(content) > limit(size):
        check_limit(owner, path.name, size, max(path.stat().st_size, len(content)))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"an invalid byte at {error.start}"
        raise ValueError(bad_value(owner, path.name, "be text in UTF-8", got, "Convert it first.")) from error


def json_value(owner: str, name: str, text: str) -> Any:
    """Return the parsed value of a JSON text.

    Raises:
        ValueError: If the text is not JSON, or too deeply nested.
    """
    try:
        return json.loads(text)
    except RecursionError:  # not chained: a traceback of a thousand frames is useless
        raise ValueError(bad_value(owner, name, "be JSON", "a nesting that is too deep")) from None
    except ValueError as error:
        raise ValueError(bad_value(owner, name, "be JSON", str(error))) from error


def read_json(owner: str, path: Path) -> Any:
    """Return the contents of a JSON file.

    Raises:
        ValueError: If it is too large or not JSON.
        OSError: If it cannot be read.
    """
    return json_value(owner, path.name, read_text(owner, path))


def unpacked(owner: str, path: Path, size: str) -> bytes:
    """Return the contents of a gzip file, unpacked up to the limit `size`.

    Raises:
        ValueError: If it exceeds the limit.
        EOFError, zlib.error: If it is truncated or damaged.
        OSError: If it cannot be read or is not a gzip file.
    """
    with gzip.open(path, "rb") as file:
        content = file.read(limit(size) + 1)
    check_limit(owner, path.name, size, len(content))
    return content


@contextmanager
def as_written(owner: str, argument: str, by: str) -> Iterator[None]:
    """Turn errors about the contents of a file into one error that names the file.

    Raises:
        ValueError: If the block fails because of a value that is missing, of the wrong type or invalid.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}".partition("\n")[0]
        got = got if len(got) <= 300 else got[:297] + "..."
        advice = "The file is damaged: write it again."
        raise ValueError(bad_value(owner, argument, f"be as {by} wrote it", got, advice)) from error


# ---------------------------------------------------------------------------- writes

# No space left, quota exceeded, file too large.
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
# Exclusive creation: an existing file or link of that name is never followed.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_TEMPORARY = re.compile(r"\.torchmcl-[0-9a-f]{16}\.tmp")
# No write takes a day.
_ABANDONED_SECONDS = 24 * 3600
# Folders that this process has already cleaned: listing a folder of many thousand files for each write would be slow.
_cleaned: set[Path] = set()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all, and flush it and its name to the disk.

    Raises:
        OSError: If the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    with replaced_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_writable(path: Path) -> None:
    """Check that a file or folder can be created, before its contents are computed.

    Raises:
        OSError: If its parent is not a folder, or not writable.
    """
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        why = f"{str(above)!r} is not a folder"
        raise NotADirectoryError(f"{str(path)!r} cannot be written: {why}. Choose another path.")
    if not os.access(above, os.W_OK | os.X_OK):
        why = f"no permission to write in {str(above)!r}"
        raise PermissionError(f"{str(path)!r} cannot be written: {why}. Choose another path.")


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file to write to, which replaces `path` when the `with` block ends without an error.

    It has the permissions of the file that it replaces, or the default ones of a new file. A pipe or device, such as
    /dev/stdout, cannot be replaced and is written to directly. Parent folders are created.

    Raises:
        OSError: If the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = _target(path)
    folder = target.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    if folder not in _cleaned:
        _cleaned.add(folder)
        remove_abandoned(folder)
    temporary = folder / f".torchmcl-{secrets.token_hex(8)}.tmp"
    with _full_disk_explained(target):
        descriptor = os.open(temporary, _NEW, 0o666)  # minus the umask
        try:
            with os.fdopen(descriptor, "wb") as file:
                with contextlib.suppress(OSError):  # a new file, or a filesystem without permissions
                    temporary.chmod(stat.S_IMODE(target.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    _sync_folder(folder)


@contextmanager
def single_writer(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, across threads and processes; the folder is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a filesystem without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files of killed processes that are older than a day."""
    now = time.time()
    with contextlib.suppress(OSError):  # owned by another user, or already removed
        for path in filter(lambda path: _TEMPORARY.fullmatch(path.name), folder.iterdir()):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and now - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk: without it a rename may be undone by a power failure."""
    with contextlib.suppress(OSError):  # unsupported, and not needed, on Windows and some filesystems
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _target(path: Path) -> Path:
    """Return the target of a link, as `open` would follow it: the link itself is never replaced."""
    if not path.is_symlink():
        return path
    with contextlib.suppress(FileNotFoundError):  # a link to a file that does not exist yet
        path.stat()  # the system rejects circular links, and links of other users in a shared folder
    return Path(os.path.realpath(path))


@contextmanager
def _full_disk_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        code = getattr(error, "errno", None)
        if code is None and (matched := re.search(r"\(os error (\d{1,6})\)", str(error))):  # from polars, in Rust
            code = int(matched[1])
        if code not in _FULL:
            raise
        free = shutil.disk_usage(path.parent).free / 2**20
        what = f"{os.strerror(code)}: {str(path)!r} cannot be written, {free:.1f} MiB are free"
        raise OSError(code, f"{what}. The previous file is unchanged; free some space and rerun") from error


# ---------------------------------------------------------------------------- records

Record = dict[str, Any]


def read_records(owner: str, path: Path, check: Callable[[Record], object] | None = None) -> list[Record]:
    """Return the records of a file of JSON lines. An incomplete last record, left by a power failure, is ignored.

    Args:
        owner: Function named in errors.
        path: Path of the file.
        check: Function called with each record; its errors are reported with the line.

    Raises:
        ValueError: If the file is too large or a line is not a record; the message names the line.
        OSError: If it cannot be read.
    """
    records = []
    *lines, tail = read_text(owner, path).split("\n")
    if tail and not _is_torn(tail):
        lines.append(tail)
    for number, line in enumerate(lines, start=1):
        try:
            record = json_value(owner, path.name, line)
            if not isinstance(record, dict):
                raise TypeError(f"{type(record).__name__} instead of an object")
            if check is not None:
                check(record)
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{owner}: {path} line {number} is not a record: {error!r}. Remove the line.") from error
        records.append(record)
    return records


def change_records(owner: str, path: Path, change: Callable[[list[Record]], Iterable[Mapping[str, Any]]]) -> None:
    """Replace the records of a file, which may not exist yet; other processes may do the same.

    Args:
        owner: Function named in errors.
        path: Path of the file.
        change: Function from the present records to the new ones.

    Raises:
        ValueError: If a line is not a record.
        OSError: If it cannot be written; the file is then unchanged.
    """
    with single_writer(path.parent):
        write_records(path, change(read_records(owner, path) if path.exists() else []))


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of records, completely or not at all."""
    write_atomically(path, records_text(records))


def records_text(records: Iterable[Mapping[str, Any]]) -> str:
    """Return records as JSON lines.

    Example:
        >>> records_text([{"epoch": 0}, {"epoch": 1}]).splitlines()
        ['{"epoch": 0}', '{"epoch": 1}']
    """
    return "".join(json.dumps(record) + "\n" for record in records)


def _is_torn(tail: str) -> bool:
    """Return whether the text after the last newline is an incomplete record."""
    try:
        json.loads(tail)
    except (ValueError, RecursionError):
        return tail.startswith("{")
    return False


# ---------------------------------------------------------------------------- headers of saved values

#: Increased whenever older versions of torchmcl cannot read the new format.
VERSION = 1
#: Additional entry in the header of the safetensors file: a checksum (SHA-256, in hexadecimal), a space, and JSON with
#: the version of the format, the version of torchmcl, the kind and the state.
HEADER = "torchmcl_checkpoint"
#: File of a saved model in its folder.
MODEL_FILE = "model.safetensors"
_Contents = TypeVar("_Contents")


class CheckpointError(ValueError):
    """Raised for a file that is not an intact checkpoint: truncated, modified, of another kind or version."""


class Header(NamedTuple):
    """JSON text in the header of a saved file, and its checksum.

    Attributes:
        checksum: Checksum of `text` and the tensors; not yet verified.
        text: JSON, as it was written.
        document: Parsed text, with "version", "torchmcl", "kind" and "state".
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
        path: Path of the file.
        kind: Required kind; any by default.

    Raises:
        CheckpointError: If it is not a saved file of this kind, or was written in another version of the format.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        n_bytes = int.from_bytes(file.read(8), "little")
        if n_bytes > path.stat().st_size:
            raise bad_file(path, "be a complete safetensors file", "a truncated one", "It is damaged.")
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
    if document["version"] != VERSION:
        got = f"version {document['version']} (written by torchmcl {document.get('torchmcl')})"
        raise bad_file(path, f"be of version {VERSION}", got, "Install that version of torchmcl, or write it again.")
    if kind is not None and document.get("kind") != kind:
        raise bad_file(path, f"be of kind {kind!r}", repr(document.get("kind")))
    return Header(checksum, text, document)


def saved_contents(owner: str, folder: Path, kind: str, by: str, read: Callable[[Path, str], _Contents]) -> _Contents:
    """Return what `read` returns for the file of a saved model.

    Args:
        owner: Function named in errors.
        folder: Folder of the model.
        kind: Kind of the model.
        by: Function or command that writes such folders.
        read: Function of the file and the kind, such as `read_header`.

    Raises:
        ValueError: If there is no such file, or it is damaged, of another kind or another version.
    """
    path = folder / MODEL_FILE
    if not path.is_file():
        got = f"{str(folder)!r}, which {f'has no {MODEL_FILE}' if folder.exists() else 'does not exist'}"
        raise ValueError(bad_value(owner, "folder", f"be a folder that {by} wrote", got, "Check the path."))
    try:
        return read(path, kind)
    except CheckpointError as error:
        raise ValueError(bad_value(owner, "folder", f"contain what {by} wrote", str(error).rstrip("."))) from error


def check_free(owner: str, folder: Path, by: str) -> bool:
    """Check that a model can be saved in a folder; return whether the folder contains one.

    Raises:
        ValueError: If it exists, is not empty and does not contain a saved model.
    """
    path = folder / MODEL_FILE
    # Before the check for a model: another thread may save one in between.
    others = folder.is_dir() and any(not _TEMPORARY.fullmatch(entry.name) for entry in folder.iterdir())
    try:
        holds_model = path.is_file() and bool(read_header(path))
    except ValueError:
        holds_model = False
    if not holds_model and (others or (folder.exists() and not folder.is_dir())):
        rule, advice = f"be new, empty or contain a model of {by}", "Give another name, or remove it first."
        raise ValueError(bad_value(owner, "folder", rule, repr(str(folder)), advice))
    return holds_model
