"""Writing files so that nothing half-written is ever left behind, whatever happens to the process or the power.

A file is written beside its place under a new name that nobody can guess, and then renamed. A link at that place stays,
and its target is replaced. A killed process leaves at most such a temporary file behind: it is locked while its writer
lives, and the next process that writes to the same folder removes those without a lock.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["check_writable", "is_temporary", "remove_abandoned", "replaced_file", "single_writer", "write_atomically"]

# No space left, quota used up, file larger than allowed.
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
# Some filesystems cannot flush a folder; they say so with one of these.
_NO_SUCH_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | getattr(os, "O_BINARY", 0)
_TEMPORARY = re.compile(r"\.torchmcl-[0-9a-f]{16}\.tmp")
# On a filesystem without locks, a temporary file older than this is abandoned: nothing takes a day to write.
_ABANDONED_SECONDS = 24 * 3600
# Folders that this process has already cleaned: listing a folder of many thousand files for each write would be slow.
_cleaned: set[Path] = set()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all, and flush it and its name to the disk.

    Raises:
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    with replaced_file(path, n_bytes=len(data)) as file:
        file.write(data)


def check_writable(path: Path) -> None:
    """Check that a file or folder can be made, before work is done for its contents.

    Raises:
        OSError: if the folder above it is no folder, or must not be written to.
    """
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise NotADirectoryError(f"{str(path)!r} cannot be written: {str(above)!r} is not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"{str(path)!r} cannot be written: no permission to write in {str(above)!r}.")


@contextmanager
def replaced_file(path: Path, *, n_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Yield a new file to write to, which replaces `path` when the `with` block ends without an error.

    It has the permissions of the file that it replaces, or those that `open` gives to a new one. A pipe or device, such
    as /dev/stdout, cannot be replaced and is written to.

    Args:
        path: of the file; folders above it are created.
        n_bytes: what will be written, for the message when the disk is full.

    Raises:
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _full_disk_explained(target, n_bytes), _temporary(target.parent) as (temporary, descriptor):
        with os.fdopen(descriptor, "wb") as file:
            _copy_mode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    _sync_folder(target.parent)


@contextmanager
def single_writer(folder: Path) -> Iterator[None]:
    """Let one thread or process at a time change files of a folder, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a filesystem without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _sync_folder(folder: Path) -> None:
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


def is_temporary(name: str) -> bool:
    """Return whether a file name is one of ours for a file that is being written."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                _remove_if_abandoned(Path(entry.path))


# ---------------------------------------------------------------------------- temporary names


@contextmanager
def _temporary(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield a new file and its descriptor; whatever has its name in the end is removed."""
    if folder.absolute() not in _cleaned:
        _cleaned.add(folder.absolute())
        remove_abandoned(folder)
    temporary, descriptor, lock = _new_and_locked(folder)
    try:
        yield temporary, descriptor
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def _new_and_locked(folder: Path) -> tuple[Path, int, int | None]:
    while True:
        temporary = folder / f".torchmcl-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(temporary, _NEW, 0o666)  # less what the umask takes away
        with contextlib.suppress(FileNotFoundError):
            lock = _lock(temporary)
            if temporary.exists():
                return temporary, descriptor, lock
        # Another process took it for abandoned in the moment before it was locked.
        os.close(descriptor)


def _lock(path: Path, *, wait: bool = True) -> int | None:
    """Return an open descriptor that locks a file, None where there are no locks.

    Raises:
        BlockingIOError: if another process holds the lock, without `wait`.
        FileNotFoundError: if the file is gone.
    """
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):  # in use, another user's, or gone already
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return
        lock = _lock(path, wait=False)
        try:
            if lock is not None or time.time() - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink()
        finally:
            if lock is not None:
                os.close(lock)


# ---------------------------------------------------------------------------- places


def _target(path: Path) -> Path:
    """Return where a link leads, as `open` would follow it: the link itself is never replaced."""
    if not path.is_symlink():
        return path
    with contextlib.suppress(FileNotFoundError):  # a link to a file that does not exist yet
        path.stat()  # the system refuses circular links, and links of other users in a shared folder
    return Path(os.path.realpath(path))


def _copy_mode(old: Path, new: Path) -> None:
    """Give a new file the permissions of the one that it replaces, if there is one."""
    with contextlib.suppress(OSError):  # filesystems without permissions
        new.chmod(stat.S_IMODE(old.stat().st_mode))


# ---------------------------------------------------------------------------- full disks


@contextmanager
def _full_disk_explained(path: Path, n_bytes: int | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        code = getattr(error, "errno", None) or _code_of_rust(error)
        if code in _FULL:
            raise OSError(code, _full_disk(path, n_bytes, os.strerror(code))) from error
        raise


def _code_of_rust(error: Exception) -> int:
    """Return the number of an error that Rust packages such as polars only give as text: "... (os error 28)"."""
    match = re.search(r"\(os error (\d{1,6})\)", str(error))
    return int(match[1]) if match else 0


def _full_disk(path: Path, n_bytes: int | None, reason: str) -> str:
    needs = "cannot be written" if n_bytes is None else f"needs {n_bytes / 2**20:.1f} MiB"
    free = ""
    with contextlib.suppress(OSError):
        free = f" and {shutil.disk_usage(path.parent).free / 2**20:.1f} MiB are free"
    return f"{reason}: {str(path)!r} {needs}{free}. What was there before is untouched; make room and run it again"
