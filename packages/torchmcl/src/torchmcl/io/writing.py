"""Atomic file writes, which never leave a partial file after a kill or a power failure.

A file is written in the destination folder under a random name, and then renamed. If the destination is a link, the
link is kept and its target is replaced. A killed process leaves at most such a temporary file behind; files older than
a day are removed by the next process that writes to the same folder.
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
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    with replaced_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_writable(path: Path) -> None:
    """Check that a file or folder can be created, before its contents are computed.

    Raises:
        OSError: if its parent is not a folder, or not writable.
    """
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise NotADirectoryError(
            f"{str(path)!r} cannot be written: {str(above)!r} is not a folder. Choose another path."
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{str(path)!r} cannot be written: no permission to write in {str(above)!r}. Choose another path."
        )


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file to write to, which replaces `path` when the `with` block ends without an error.

    It has the permissions of the file that it replaces, or the default ones of a new file. A pipe or device, such as
    /dev/stdout, cannot be replaced and is written to directly. Parent folders are created.

    Raises:
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.
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


def is_temporary(name: str) -> bool:
    """Return whether a file name is one of our temporary files."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files of killed processes that are older than a day."""
    now = time.time()
    with contextlib.suppress(OSError):  # another user's, or gone already
        for path in filter(lambda path: is_temporary(path.name), folder.iterdir()):
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
        if code is None and (found := re.search(r"\(os error (\d{1,6})\)", str(error))):  # from polars, in Rust
            code = int(found[1])
        if code not in _FULL:
            raise
        free = shutil.disk_usage(path.parent).free / 2**20
        what = f"{os.strerror(code)}: {str(path)!r} cannot be written, {free:.1f} MiB are free"
        raise OSError(code, f"{what}. The previous file is unchanged; free some space and rerun") from error
