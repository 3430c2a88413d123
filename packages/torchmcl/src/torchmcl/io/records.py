"""Records as JSON lines: a reader and a writer that support concurrent processes."""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from torchmcl.io.reading import json_value, read_text
from torchmcl.io.writing import single_writer, write_atomically

Record = dict[str, Any]


def read_records(owner: str, path: Path, check: Callable[[Record], object] | None = None) -> list[Record]:
    """Return the records of a file. An incomplete last record, left by a power failure, is ignored.

    Args:
        owner: named in errors.
        path: of the file.
        check: called with each record; its errors are reported with the line.

    Raises:
        ValueError: if the file is too large or a line is not a record; the message names the line.
        OSError: if it cannot be read.
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


def append_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add records to a file, all or none of them; other processes may do the same.

    Raises:
        OSError: if the disk is full or the file cannot be written; the file is then unchanged.
    """
    data = records_text(records).encode()
    with single_writer(path.parent):
        path.touch()
        with path.open("rb+") as file:
            size = _complete_size(file)
            file.seek(size)
            tail = file.read()
            if tail and not _is_torn(tail.decode(errors="replace")):
                size, data = size + len(tail), b"\n" + data
            try:
                file.seek(size)
                file.write(data)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                os.ftruncate(file.fileno(), size)
                raise


def change_records(owner: str, path: Path, change: Callable[[list[Record]], Iterable[Mapping[str, Any]]]) -> None:
    """Replace the records of a file, which may not exist yet, with the result of `change`.

    Raises:
        ValueError: if a line is not a record.
        OSError: if it cannot be written; the file is then unchanged.
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
        json_value("records", "tail", tail)
    except ValueError:
        return tail.startswith("{")
    return False


def _complete_size(file: BinaryIO) -> int:
    """Return the size of a file up to its last complete line."""
    if not os.fstat(file.fileno()).st_size:  # an empty file cannot be memory-mapped
        return 0
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n") + 1
