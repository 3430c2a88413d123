"""Size limits of files: one table, quoted in the documentation and in every error.

A limit is raised for a process by an environment variable, `TORCHMCL_LIMIT_` and its name in capitals:
`TORCHMCL_LIMIT_TABLE_BYTES=20G torchmcl fit ...`. A number may end in K, M or G (powers of 1024).
"""

import os
import re
from typing import NamedTuple

__all__ = ["LIMITS", "NESTING", "SHORTEST_CHUNK_SECONDS", "Limit", "LimitError", "check_limit", "limit"]

# Lists in lists in JSON and YAML: our own files have fewer than ten levels; readers in C and Rust crash at about a
# thousand.
NESTING = 64
# Recordings are separated in chunks of at least this length: speakers cannot be told apart in less, and with
# chunks of a few samples an hour of audio would take years.
SHORTEST_CHUNK_SECONDS = 0.1


class Limit(NamedTuple):
    """The default and the counted quantity of a limit, for messages and the documentation."""

    default: int
    meaning: str


class LimitError(ValueError):
    """A size exceeds its limit; the message explains how to raise the limit."""


LIMITS = {
    "table_bytes": Limit(8 << 30, "bytes of a table"),
    "file_bytes": Limit(256 << 20, "bytes of another file: headers of models, records, configurations, downloads"),
    "audio_samples": Limit(2_000_000_000, "samples of a recording or a pack, channels and resampling included"),
}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def limit(name: str) -> int:
    """Return a limit by its name in `LIMITS`.

    Raises:
        ValueError: if its variable is set to something other than an integer.

    Example:
        >>> limit("audio_samples")
        2000000000
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
        LimitError: if not; the message explains how to raise the limit.
    """
    maximum = limit(name)
    if count > maximum:
        raise LimitError(
            f"{owner}: `{argument}` must have at most {maximum:,} {LIMITS[name].meaning}, got {count:,}. If you trust "
            f"the file, set TORCHMCL_LIMIT_{name.upper()}."
        )
