"""What counts as a finding: whatever is not an error of ours, in words, for a value that deserves one."""

import importlib.util
import linecache
import traceback
from pathlib import Path
from typing import NamedTuple

__all__ = ["Finding", "NotAsPromised", "judged"]

# Found, not imported: a fuzzer that measures coverage must see the import.
_SPEC = importlib.util.find_spec("torchmcl")
_OURS = str(Path((_SPEC and _SPEC.origin) or "not installed").parent)
_KINDS = (ValueError, TypeError, OSError, ImportError)


class NotAsPromised(AssertionError):
    """A result that breaks a promise: NaN from good numbers, weights that do not sum to 1."""


class Finding(NamedTuple):
    """One input that did harm.

    Attributes:
        edge: where it was put in.
        what: the error, or how the process ended.
        where: the innermost line.
        content: the input.
    """

    edge: str
    what: str
    where: str
    content: bytes


def judged(edge: str, error: BaseException, content: bytes) -> Finding | None:
    """Return a finding, or None for an error that we raise ourselves, with a sentence for the user."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    where = f"{last.filename}:{last.lineno}" if last else "?"
    if isinstance(error, OSError) and error.errno is not None:  # the system's word about a file is as good as ours
        return None
    if isinstance(error, _KINDS) and not isinstance(error, UnicodeError) and last and _is_a_raise_of_ours(last):
        return None
    return Finding(edge, f"{type(error).__name__}: {error}"[:300], where, content)


def _is_a_raise_of_ours(frame: traceback.FrameSummary) -> bool:
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    if not frame.filename.startswith(_OURS):
        return False
    return line.startswith("raise")
