"""The records of the study: one JSON line for each set, fold, method, protocol and seed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchmcl.extending import append_records, change_records, read_records

__all__ = ["KEYS", "Records"]

_OWNER = "reproduce uci"
KEYS = ("set", "fold", "method", "protocol", "seed")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEYS)


class Records:
    """Rows by key, in memory and on disk; several processes can add to one file.

    Raises:
        ValueError: if the file holds something else, or records of another number of epochs.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in read_records(_OWNER, path, lambda row: hash(_key(row))) if path.exists() else []:
            if row.get("epochs") != settings["epochs"]:
                raise ValueError(
                    f"{_OWNER}: {path} was made with {row.get('epochs')} epochs, not {settings['epochs']}. "
                    "Give another --out."
                )
            self.rows.setdefault(_key(row), row)

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether there is a row for (set, fold, method, protocol, seed)."""
        return key in self.rows

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add rows to the file; rows that are there already stay as they are."""
        new = {_key(row): row | self.settings for row in rows if _key(row) not in self.rows}
        append_records(self.path, new.values())
        self.rows |= new

    def arrange(self, keys: Iterable[tuple[Any, ...]]) -> None:
        """Move the rows of these keys to the end of the file, in this order."""
        places = {key: place for place, key in enumerate(keys)}
        change_records(_OWNER, self.path, lambda rows: sorted(rows, key=lambda row: places.get(_key(row), -1)))
        self.rows = dict(sorted(self.rows.items(), key=lambda item: places.get(item[0], -1)))
