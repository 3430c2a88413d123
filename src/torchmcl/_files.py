"""Writing files so that nothing half-written is ever left behind."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replaced_folder", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write to a temporary file beside `path`, flush it to the disk, then rename it.

    Raises:
        OSError: if the disk is full or the folder cannot be written; the old file, if any, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
        if folder.exists():
            folder.rename(aside)
        try:
            beside.rename(folder)
        except OSError:
            if aside.exists():
                aside.rename(folder)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
