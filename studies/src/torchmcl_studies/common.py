"""Checks of requested names, reproducible random numbers, resumable records, and claims of folders."""

import errno
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchmcl.errors import bad_value, nearest_hint
from torchmcl.io import change_records, read_records

__all__ = ["KeyedRecords", "check_known", "claimed", "own_random_numbers"]


def check_known(owner: str, argument: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that all names are known.

    Raises:
        ValueError: For the first unknown name, with the nearest known one.
    """
    for name in names:
        if name not in known:
            advice = nearest_hint(str(name), list(known)).strip()
            raise ValueError(bad_value(owner, argument, f"be among {', '.join(known)}", repr(name), advice))


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Seed the random numbers of a training run, and restore the CPU generator afterwards."""
    # The GPU generator is not restored: captured graphs refer to its state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Claim a folder for this process in a `with` block; yield whether no other process has claimed it.

    A claim ends with its process, even if that is killed. Where there are no file locks, every process is successful.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".claim").open("w") as file:
        is_free = True
        try:
            import fcntl  # not on Windows

            # These locks also work on network file systems, and worker processes do not inherit them.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (ImportError, OSError) as error:
            is_free = getattr(error, "errno", None) not in (errno.EACCES, errno.EAGAIN)
        yield is_free


class KeyedRecords:
    """Records by key, in memory and on disk; several processes can add to one file.

    Args:
        owner: Name of the command in error messages.
        keys: Columns that identify a record.
        path: File that stores the records.
        settings: Columns with the same value in all records.

    Raises:
        ValueError: If the file does not contain such records, or contains records with different settings.
    """

    def __init__(self, owner: str, keys: Sequence[str], path: Path, settings: dict[str, Any]) -> None:
        self.owner, self.keys, self.path, self.settings = owner, tuple(keys), path, settings
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in read_records(owner, path, lambda row: hash(self._key(row))) if path.exists() else []:
            for name, value in settings.items():
                if row.get(name) != value:
                    raise ValueError(
                        f"{owner}: {path} was made with {row.get(name)} {name}, not {value}. Choose another --out."
                    )
            self.rows.setdefault(self._key(row), row)

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether there is a record with this key."""
        return key in self.rows

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add records to the file; existing records stay unchanged."""
        new = {self._key(row): row | self.settings for row in rows if self._key(row) not in self.rows}
        change_records(self.owner, self.path, lambda records: [*records, *new.values()])
        self.rows |= new

    def arrange(self, keys: Iterable[tuple[Any, ...]]) -> None:
        """Move the records with these keys to the end of the file, in this order."""
        places = {key: place for place, key in enumerate(keys)}
        change_records(self.owner, self.path, lambda rows: sorted(rows, key=lambda row: places.get(self._key(row), -1)))
        self.rows = dict(sorted(self.rows.items(), key=lambda item: places.get(item[0], -1)))

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)
