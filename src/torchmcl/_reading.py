"""Reading files that may be broken or hostile: sizes are looked at first, and nothing in a file is ever run."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchmcl._limits import RATIO, RATIO_FREE_BYTES, LimitError, check_limit, limit
from torchmcl._messages import bad_value

__all__ = [
    "as_written",
    "json_value",
    "plain_name",
    "read_description",
    "read_json",
    "read_lines",
    "read_text",
    "unpacked",
]

_PIECE = 1 << 20


def read_text(owner: str, path: Path, size: str = "json_bytes") -> str:
    """Return a text file in UTF-8, after a look at its size.

    Raises:
        ValueError: if it is larger than the limit `size`, or no text.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(limit(size) + 1)  # not the size by name: a file can grow, and a device has none
    if len(content) > limit(size):
        check_limit(owner, path.name, size, max(path.stat().st_size, len(content)))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(bad_value(owner, path.name, "be text in UTF-8", f"byte {error.start} that is none")) from error


def json_value(owner: str, name: str, text: str) -> Any:
    """Return the value of a text in JSON.

    Raises:
        ValueError: if the text is no JSON, or lists stand in lists without end.
    """
    try:
        return json.loads(text)
    except RecursionError:  # not chained: a thousand frames say nothing
        raise ValueError(bad_value(owner, name, "be JSON", "lists in lists without end")) from None
    except ValueError as error:
        raise ValueError(bad_value(owner, name, "be JSON", str(error))) from error


def read_json(owner: str, path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        ValueError: if it is too large or no JSON.
        OSError: if it cannot be read.
    """
    return json_value(owner, path.name, read_text(owner, path))


def read_description(owner: str, argument: str, path: Path, *, kind: str, newest: int, by: str) -> dict[str, Any]:
    """Return the JSON file that says what a folder holds.

    Args:
        owner: whom errors speak for.
        argument: what they call the folder.
        path: of the file.
        kind: what must stand under "kind".
        newest: the newest "format" that can be read.
        by: who writes such folders.

    Raises:
        ValueError: if it is not there, describes something else, or is of a newer version.
    """
    rule = f"be a folder that {by} wrote"
    if not path.is_file():
        got = f"{str(path.parent)!r}, which {f'has no {path.name}' if path.parent.exists() else 'does not exist'}"
        raise ValueError(bad_value(owner, argument, rule, got, f"It has a file {path.name} in it."))
    try:
        found = read_json(owner, path)
    except LimitError:
        raise
    except ValueError as error:
        raise ValueError(bad_value(owner, argument, rule, f"{str(path)!r}, which is not JSON")) from error
    if not isinstance(found, dict) or found.get("kind") != kind or not isinstance(found.get("format"), int):
        raise ValueError(bad_value(owner, argument, rule, f"{str(path)!r}, which describes something else"))
    if found["format"] > newest:
        rule = f"hold a model of format {newest} or older"
        got = f"format {found['format']} (written by torchmcl {found.get('torchmcl', 'of unknown version')})"
        raise ValueError(bad_value(owner, argument, rule, got, "Upgrade torchmcl: pip install -U torchmcl."))
    return found


def read_lines(owner: str, path: Path) -> Iterator[tuple[int, Any]]:
    """Return the number and the value of each line of a file of JSON lines.

    Raises:
        ValueError: if the file is too large or a line is no JSON; it names the line.
        OSError: if it cannot be read.
    """
    for number, line in enumerate(read_text(owner, path, "records_bytes").splitlines(), start=1):
        yield number, json_value(owner, f"{path.name} line {number}", line)


def unpacked(owner: str, path: Path, size: str) -> bytes:
    """Return the content of a gzip file, unless it is far larger than its file.

    Raises:
        ValueError: if it exceeds the limit `size` or has the ratio of a bomb.
        EOFError, zlib.error: if it is cut short or broken.
        OSError: if it cannot be read or is no gzip file.
    """
    packed = path.stat().st_size
    pieces: list[bytes] = []
    n_bytes = 0
    with gzip.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            pieces.append(piece)
            n_bytes += len(piece)
            check_limit(owner, path.name, size, n_bytes)
            if n_bytes > max(RATIO_FREE_BYTES, RATIO * packed):
                rule = f"be at most {RATIO} times as large unpacked as packed"
                got = f"{packed:,} bytes that become more than {n_bytes:,}"
                raise ValueError(bad_value(owner, path.name, rule, got, "If you trust the file, unpack it first."))
    return b"".join(pieces)


@contextmanager
def as_written(owner: str, argument: str, by: str) -> Iterator[None]:
    """Turn what goes wrong with the content of a file into one error that names the file.

    Raises:
        ValueError: if the block fails for a value that is missing, of another type or impossible.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}".partition("\n")[0]
        got = got if len(got) <= 300 else got[:297] + "..."
        raise ValueError(bad_value(owner, argument, f"be as {by} wrote it", got)) from error


def plain_name(owner: str, argument: str, name: Any) -> str:
    """Return the name of a file beside another one; a name that leads elsewhere is refused.

    Raises:
        ValueError: if it is no text or leads out of the folder.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        rule = "name a file in the same folder"
        raise ValueError(bad_value(owner, argument, rule, repr(name)[:200]))
    return name
