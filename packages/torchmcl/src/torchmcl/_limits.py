"""Size limits of untrusted input: one table, quoted in the documentation and in every error.

A limit is raised for a process by an environment variable, `TORCHMCL_LIMIT_` and its name in capitals:
`TORCHMCL_LIMIT_TABLE_BYTES=20G torchmcl fit ...`. A number may end in K, M or G (powers of 1024).
"""

import os
import re
from typing import NamedTuple

__all__ = [
    "LIMITS",
    "NESTING",
    "RATIO",
    "RATIO_FREE_BYTES",
    "SHORTEST_CHUNK_SECONDS",
    "Limit",
    "LimitError",
    "check_limit",
    "limit",
]

# Lists in lists in JSON, YAML and schemas: our own files have fewer than ten levels; readers in C and Rust
# crash at about a thousand.
NESTING = 64
# Compressed text beyond this many bytes may be at most this many times as large as its file. Tables rarely reach 50;
# the format allows 1032.
RATIO, RATIO_FREE_BYTES = 200, 64 << 20
# Recordings are separated in chunks of at least this length: speakers cannot be told apart in less, and with
# chunks of a few samples an hour of audio would take years.
SHORTEST_CHUNK_SECONDS = 0.1


class Limit(NamedTuple):
    """One limit.

    Attributes:
        default: used if the variable is not set.
        meaning: what is counted, for messages and the documentation.
    """

    default: int
    meaning: str


class LimitError(ValueError):
    """Something is larger than its limit; the message says how to raise the limit."""


LIMITS = {
    "json_bytes": Limit(64 << 20, "bytes of a JSON file: descriptions of models, records of a page"),
    "records_bytes": Limit(1 << 30, "bytes of a file of records (JSON lines, CSV)"),
    "config_bytes": Limit(256 << 10, "bytes of a configuration in YAML"),
    "table_bytes": Limit(8 << 30, "bytes of a table, unpacked"),
    "table_cells": Limit(1_000_000_000, "rows times columns of a table"),
    "table_columns": Limit(100_000, "columns of a table"),
    "audio_samples": Limit(500_000_000, "samples of a recording, channels and resampling included"),
    "pack_samples": Limit(2_000_000_000, "samples of a pack of utterances"),
}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def limit(name: str) -> int:
    """Return a limit by its name in `LIMITS`.

    Raises:
        ValueError: if its variable is set to something other than an integer.

    Example:
        >>> limit("table_columns")
        100000
    """
    variable = f"TORCHMCL_LIMIT_{name.upper()}"
    text = os.environ.get(variable, "").strip()
    if not text:
        return LIMITS[name].default
    matched = re.fullmatch(r"([0-9]{1,18})([KMG]?)", text)
    if matched is None:
        raise ValueError(f"torchmcl: `{variable}` must be an integer, also with K, M or G, got {text!r}.")
    return int(matched[1]) * _UNITS[matched[2]]


def check_limit(owner: str, argument: str, name: str, count: int) -> None:
    """Check that `count` is within a limit.

    Raises:
        LimitError: if not; it says how to raise the limit.
    """
    maximum = limit(name)
    if count > maximum:
        raise LimitError(
            f"{owner}: `{argument}` must have at most {maximum:,} {LIMITS[name].meaning}, got {count:,}. If you trust "
            f"the file, set TORCHMCL_LIMIT_{name.upper()}."
        )
