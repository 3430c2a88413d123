"""Writing files so that nothing half-written is ever left behind, whatever happens to the process or the power.

Everything is written under a name that nobody can guess and that nothing may already have, beside its place, and then
renamed. A link at that place stays, and what it leads to is replaced. A killed process leaves at most such a temporary
file or folder behind: it is locked while its writer lives, and the next process that writes to the same folder removes
those without a lock.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "remove_abandoned",
    "replaced_file",
    "replaced_folder",
    "single_writer",
    "sync_folder",
    "write_atomically",
]

# No space left, quota used up, file larger than allowed.
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
# Some filesystems cannot flush a folder; they say so with one of these.
_NO_SUCH_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
# A folder that is not empty stands at the new name.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | getattr(os, "O_BINARY", 0)
_TEMPORARY = re.compile(r"\.torchmcl-[0-9a-f]{16}\.tmp")
# Where the filesystem has no locks, what is older than this is abandoned: nothing takes a day to write.
_ABANDONED_SECONDS = 24 * 3600
# Savers that get in each other's way try again; each time one of them has succeeded.
_ATTEMPTS = 100

_T = TypeVar("_T")
# Folders that this process has already cleaned: a look into a folder of many thousand files for each would be slow.
_cleaned: set[Path] = set()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, and flush it and its name to the disk.

    Raises:
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    with replaced_file(path, n_bytes=len(data)) as file:
        file.write(data)


@contextmanager
def replaced_file(path: Path, *, n_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Give a new file to write to, which takes the place of `path` when the `with` block ends well.

    It has the permissions of the file that it replaces, or those that `open` gives to a new one. What is not a plain
    file, as /dev/stdout, cannot be replaced and is written to.

    Args:
        path: of the file; folders above it are made.
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
    with _full_disk_explained(target, n_bytes), _temporary(target.parent, _new_file) as (temporary, descriptor):
        with os.fdopen(descriptor, "wb") as file:
            _copy_mode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    sync_folder(target.parent)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Give a new, empty folder to write into, which takes the place of `folder` when the `with` block ends well.

    Of several savers at once all succeed, and the folder of the last one stays, whole.

    Raises:
        OSError: if it cannot be put there; the old folder, if any, then stands where it stood.
    """
    target = _target(folder)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(target.parent, os.mkdir) as (new, _):
        _copy_mode(target, new)
        yield new
        sync_folder(new)
        _put_in_place(new, target)
        sync_folder(target.parent)


@contextmanager
def single_writer(folder: Path) -> Iterator[None]:
    """Let one thread or process at a time write several files that belong together into a folder, which is made."""
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


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                _remove_if_abandoned(Path(entry.path))


# ---------------------------------------------------------------------------- temporary names


@contextmanager
def _temporary(parent: Path, make: Callable[[Path], _T]) -> Iterator[tuple[Path, _T]]:
    """Make something of a new name in a folder; whatever has that name in the end is removed."""
    if parent.absolute() not in _cleaned and not _TEMPORARY.fullmatch(parent.name):
        _cleaned.add(parent.absolute())
        remove_abandoned(parent)
    temporary, made, lock = _made_and_locked(parent, make)
    try:
        yield temporary, made
    finally:
        _remove(temporary)
        if lock is not None:
            os.close(lock)


def _made_and_locked(parent: Path, make: Callable[[Path], _T]) -> tuple[Path, _T, int | None]:
    while True:
        temporary = parent / f".torchmcl-{secrets.token_hex(8)}.tmp"
        made = make(temporary)
        with contextlib.suppress(FileNotFoundError):
            lock = _lock(temporary)
            if temporary.exists():
                return temporary, made, lock
        # Another process took it for abandoned, in the moment before it was locked.
        if isinstance(made, int):
            os.close(made)


def _new_file(path: Path) -> int:
    return os.open(path, _NEW, 0o666)  # less what the umask takes away


def _lock(path: Path, *, wait: bool = True) -> int | None:
    """Return an open descriptor that locks a file or folder, None where there are no locks.

    Raises:
        BlockingIOError: if another holds it, without `wait`.
        FileNotFoundError: if it is gone.
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
    with contextlib.suppress(OSError):  # in use, another's, or gone already
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
            return
        lock = _lock(path, wait=False)
        try:
            if lock is not None or time.time() - about.st_mtime > _ABANDONED_SECONDS:
                _remove(path)
        finally:
            if lock is not None:
                os.close(lock)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


# ---------------------------------------------------------------------------- places


def _target(path: Path) -> Path:
    """Return where a link leads, as `open` would follow it: the link itself is never replaced."""
    if not path.is_symlink():
        return path
    with contextlib.suppress(FileNotFoundError):  # a link to what is to be made
        path.stat()  # links in a circle, and links of strangers in a folder for all, are refused by the system
    return Path(os.path.realpath(path))


def _copy_mode(old: Path, new: Path) -> None:
    """Give a new file or folder the permissions of the one that it replaces, if there is one."""
    with contextlib.suppress(OSError):  # filesystems without permissions
        mode = stat.S_IMODE(old.stat().st_mode)
        new.chmod(mode | stat.S_IRWXU if new.is_dir() else mode)


def _put_in_place(new: Path, folder: Path) -> None:
    """Rename a folder to a name that may be taken, also by another saver meanwhile."""
    for _ in range(_ATTEMPTS):
        if folder.exists() and _exchanged(new, folder):
            return
        aside = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.old")
        had_old = _renamed(folder, aside)
        try:
            new.rename(folder)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                if had_old:
                    _renamed(aside, folder)
                raise
        finally:
            if folder.exists():
                shutil.rmtree(aside, ignore_errors=True)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))


def _renamed(old: Path, new: Path) -> bool:
    try:
        old.rename(new)
    except FileNotFoundError:
        return False
    return True


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
    """Return the number of an error that polars and others in Rust only tell in words: "... (os error 28)"."""
    found = re.search(r"\(os error (\d{1,6})\)", str(error))
    return int(found[1]) if found else 0


def _full_disk(path: Path, n_bytes: int | None, reason: str) -> str:
    needs = "cannot be written" if n_bytes is None else f"needs {n_bytes / 2**20:.1f} MiB"
    free = ""
    with contextlib.suppress(OSError):
        free = f" and {shutil.disk_usage(path.parent).free / 2**20:.1f} MiB are free"
    return (
        f"{reason}: {str(path)!r} {needs}{free}. What was there before is untouched; make room and run the same again"
    )
