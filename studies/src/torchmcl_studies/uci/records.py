"""The records of the study: one JSON line for each set, fold, method, protocol and seed."""

from pathlib import Path
from typing import Any

from torchmcl_studies.records import KeyedRecords

__all__ = ["KEYS", "Records"]

KEYS = ("set", "fold", "method", "protocol", "seed")


class Records(KeyedRecords):
    """Rows by (set, fold, method, protocol, seed); see `KeyedRecords`."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        super().__init__("reproduce uci", KEYS, path, settings)
