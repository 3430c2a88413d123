"""Reading files that may be damaged or hostile: sizes are checked first, and no content is executed."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torchmcl.errors import bad_value

# Maximum nesting of JSON and YAML: our own files have fewer than ten levels; parsers in C and Rust crash at about a
# thousand.
NESTING = 64
# Recordings are separated in chunks of at least this length: speakers cannot be distinguished in shorter ones, and
# with chunks of a few samples an hour of audio would take years.
SHORTEST_CHUNK_SECONDS = 0.1


class Limit(NamedTuple):
    """A limit: its default and the counted quantity, for messages and the documentation."""

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


def read_text(owner: str, path: Path, size: str = "file_bytes") -> str:
    """Return the contents of a text file in UTF-8 after checking its size.

    Raises:
        ValueError: if it is larger than the limit `size`, or not text.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(limit(size) + 1)  # not by the file size: a file can grow, and a device has none
    if len(content) > limit(size):
        check_limit(owner, path.name, size, max(path.stat().st_size, len(content)))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            bad_value(owner, path.name, "be text in UTF-8", f"an invalid byte at {error.start}", "Convert it first.")
        ) from error


def json_value(owner: str, name: str, text: str) -> Any:
    """Return the parsed value of a JSON text.

    Raises:
        ValueError: if the text is not JSON, or too deeply nested.
    """
    try:
        return json.loads(text)
    except RecursionError:  # not chained: a traceback of a thousand frames is useless
        raise ValueError(bad_value(owner, name, "be JSON", "lists in lists without end")) from None
    except ValueError as error:
        raise ValueError(bad_value(owner, name, "be JSON", str(error))) from error


def read_json(owner: str, path: Path) -> Any:
    """Return the contents of a JSON file.

    Raises:
        ValueError: if it is too large or not JSON.
        OSError: if it cannot be read.
    """
    return json_value(owner, path.name, read_text(owner, path))


def unpacked(owner: str, path: Path, size: str) -> bytes:
    """Return the contents of a gzip file, unpacked up to the limit `size`.

    Raises:
        ValueError: if it exceeds the limit.
        EOFError, zlib.error: if it is truncated or damaged.
        OSError: if it cannot be read or is not a gzip file.
    """
    with gzip.open(path, "rb") as file:
        content = file.read(limit(size) + 1)
    check_limit(owner, path.name, size, len(content))
    return content


@contextmanager
def as_written(owner: str, argument: str, by: str) -> Iterator[None]:
    """Turn errors about the contents of a file into one error that names the file.

    Raises:
        ValueError: if the block fails because of a value that is missing, of the wrong type or invalid.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}".partition("\n")[0]
        got = got if len(got) <= 300 else got[:297] + "..."
        raise ValueError(
            bad_value(owner, argument, f"be as {by} wrote it", got, "It is damaged: write it again.")
        ) from error


def plain_name(owner: str, argument: str, name: Any) -> str:
    """Return the name of a file in the same folder as another one; other paths are rejected.

    Raises:
        ValueError: if it is not a string, or a path outside the folder.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        rule = "name a file in the same folder"
        raise ValueError(bad_value(owner, argument, rule, repr(name)[:200]))
    return name
