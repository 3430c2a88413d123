"""Writing files so that nothing half-written is ever left behind, whatever happens to the process or the power."""

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replaced_folder", "sync_folder", "write_atomically"]

# No space left, quota used up, file larger than allowed.
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
# Some filesystems cannot flush a folder; they say so with one of these.
_NO_SUCH_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write to a temporary file beside `path`, flush it to the disk, rename it, and flush the folder.

    Raises:
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno in _FULL:
            raise OSError(error.errno, _full_disk(path, len(data), error)) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _full_disk(path: Path, n_bytes: int, error: OSError) -> str:
    free = ""
    with contextlib.suppress(OSError):
        free = f" and {shutil.disk_usage(path.parent).free / 2**20:.1f} MiB are free"
    return (
        f"{error.strerror}: {str(path)!r} needs {n_bytes / 2**20:.1f} MiB{free}. What was there before is untouched; "
        "make room and run the same again"
    )


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk: without it a rename may be undone by a power cut."""
    if os.name == "nt":  # where a folder cannot be opened, and names are flushed with the files
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SUCH_FLUSH:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder to write into, which takes the place of `folder` when the `with` block ends well.

    Raises:
        OSError: if it cannot be put there; the old folder, if any, then stands where it stood.
    """
    beside = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    aside = folder.parent / f".{folder.name}.{os.getpid()}.old"
    try:
        yield beside
        if folder.exists() and beside.exists() and _exchanged(beside, folder):
            sync_folder(folder.parent)
            return
        if folder.exists():
            folder.rename(aside)
        try:
            beside.rename(folder)
        except OSError:
            if aside.exists():
                aside.rename(folder)
            raise
        sync_folder(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Let two folders change places in one step, so that a kill never finds the name empty; False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # an old C library
        return False
    at_working_folder, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    done: int = rename(at_working_folder, os.fsencode(one), at_working_folder, os.fsencode(other), exchange)
    return done == 0
