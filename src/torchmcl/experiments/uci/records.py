"""The records of the study: one JSON line for each set, fold, method, protocol and seed."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchmcl.extending import json_value, read_text, write_atomically

__all__ = ["KEYS", "Records"]

KEYS = ("set", "fold", "method", "protocol", "seed")


class Records:
    """Rows on disk, kept in memory, written whole and atomically: a file of them is small.

    Raises:
        ValueError: if the file holds something else.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        if path.exists():
            lines = read_text("reproduce uci", path, "records_bytes").splitlines()
            for number, line in enumerate(lines, start=1):
                try:
                    row = json_value("reproduce uci", path.name, line)
                    key = tuple(row[name] for name in KEYS)
                    hash(key)
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f"reproduce uci: {path} line {number} is not a record: {error!r}.") from error
                if row.get("epochs") != settings["epochs"]:
                    raise ValueError(
                        f"reproduce uci: {path} was made with {row.get('epochs')} epochs, not {settings['epochs']}. "
                        "Give another --out."
                    )
                self.rows[key] = row

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether there is a row for (set, fold, method, protocol, seed)."""
        return key in self.rows

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add rows and write the file; what is there already stays as it is."""
        self.keep(rows)
        self.write()

    def keep(self, rows: list[dict[str, Any]]) -> None:
        """Add rows that `write` will write."""
        for row in rows:
            self.rows.setdefault(tuple(row[name] for name in KEYS), row | self.settings)

    def arrange(self, keys: Iterable[tuple[Any, ...]]) -> None:
        """Bring the rows of these keys into their order, behind all others, and write the file."""
        for key in [key for key in keys if key in self.rows]:
            self.rows[key] = self.rows.pop(key)
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in self.rows.values()))
