"""One recording: the position of each person in each frame, read from a text file and checked."""

import io
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchmcl._checks import bad_value
from torchmcl.persistence.reading import read_text, unpacked

__all__ = ["Recording", "read"]

_COLUMNS = ("frame", "person", "x", "y")
# A person may be missed in a frame. The same longer step this many times in a row is another frame rate.
_REPEATS_OF_A_RATE = 3
# Integers beyond this are not exact in float64, in which the text is read.
_LARGEST_EXACT = 2**53


@dataclass(frozen=True, eq=False)
class Recording:
    """The positions of all persons of one recording, sorted by person, then frame.

    Attributes:
        name: of the recording.
        frames: [rows], int64
        persons: [rows], int64
        positions: [rows, 2], float64, in meters
        step: difference between consecutive frames, in the units of `frames`.
    """

    name: str
    frames: np.ndarray
    persons: np.ndarray
    positions: np.ndarray
    step: int

    @classmethod
    def from_rows(cls, rows: np.ndarray, name: str = "recording") -> "Recording":
        """Return the recording of rows (frame, person, x, y) in any order.

        The step is the most frequent one between the frames of a person. A longer one is a gap if it is a multiple of
        it; the same longer one three times in a row is another frame rate.

        Args:
            rows: [rows, 4]
            name: for messages, and for `Windows.recordings`.

        Raises:
            ValueError: without rows or for another number of columns, for numbers that are not finite, frames or
                persons that are not integers, a person twice in a frame, or two frame rates.

        Example:
            >>> Recording.from_rows(np.array([[0, 7, 0.0, 1.0], [10, 7, 0.5, 1.0], [20, 7, 1.0, 1.0]])).step
            10
        """
        rows = np.asarray(rows, dtype=np.float64)
        _check_rows(rows, name)
        rows = rows[np.lexsort((rows[:, 0], rows[:, 1]))]
        frames, persons = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
        return cls(name, frames, persons, rows[:, 2:], _frame_step(frames, persons, name))


def read(path: str | Path, name: str | None = None) -> Recording:
    """Return the recording of a text file with the columns frame, person, x and y, separated by white space.

    Args:
        path: the file; one that ends in .gz is unpacked.
        name: of the recording, the name of the file without its endings by default.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a table of numbers, or not a recording (see `Recording.from_rows`).
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(bad_value("pedestrians.read", "path", "be a file", path))
    text = _text(path)
    if not text.strip():
        raise ValueError(bad_value("pedestrians.read", path.name, "hold rows", "an empty file"))
    try:
        rows = np.loadtxt(io.StringIO(text), dtype=np.float64, ndmin=2)
    except ValueError as error:
        rule = "hold lines of four numbers: frame, person, x, y"
        raise ValueError(bad_value("pedestrians.read", path.name, rule, str(error).partition("\n")[0])) from error
    return Recording.from_rows(rows, name if name is not None else path.name.partition(".")[0])


def _text(path: Path) -> str:
    if path.suffix != ".gz":
        return read_text("pedestrians.read", path, "table_bytes")
    try:
        return unpacked("pedestrians.read", path, "table_bytes").decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(bad_value("pedestrians.read", path.name, "be text packed by gzip", str(error))) from error


def _check_rows(rows: np.ndarray, name: str) -> None:
    owner = "pedestrians"
    if rows.ndim != 2 or rows.shape[1] != len(_COLUMNS):
        got = f"{rows.shape[1]} columns" if rows.ndim == 2 else f"shape {rows.shape}"
        raise ValueError(bad_value(owner, name, "have the columns frame, person, x, y", got))
    if not len(rows):
        raise ValueError(bad_value(owner, name, "hold rows", "none"))
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        got = f"{rows[row, column]} as {_COLUMNS[column]} in row {row}"
        raise ValueError(bad_value(owner, name, "hold finite numbers", got, "Remove the row: absent is absent."))
    offends = (rows[:, :2] != np.floor(rows[:, :2])) | (np.abs(rows[:, :2]) > _LARGEST_EXACT)
    if offends.any():
        row, column = np.argwhere(offends)[0]
        got = f"{rows[row, column]} as {_COLUMNS[column]} in row {row}"
        raise ValueError(bad_value(owner, name, "number frames and persons by integers", got))


def _frame_step(frames: np.ndarray, persons: np.ndarray, name: str) -> int:
    """Return the most frequent step between frames of a person; everything must lie on its grid."""
    owner = "pedestrians"
    steps = np.diff(frames)
    same = np.diff(persons) == 0
    if (twice := same & (steps == 0)).any():
        row = int(twice.argmax())
        got = f"person {persons[row]} twice in frame {frames[row]}"
        raise ValueError(bad_value(owner, name, "hold each person once per frame", got, "Remove one of the rows."))
    if not same.any():
        return 1  # everybody is seen once: there is no step to know, and there are no windows either
    values, counts = np.unique(steps[same], return_counts=True)
    step = int(values[counts.argmax()])
    other = same & (steps != step)
    repeated = other.copy()
    for back in range(1, _REPEATS_OF_A_RATE):
        repeated[back:] &= other[:-back] & (steps[back:] == steps[:-back])
        repeated[:back] = False
    if (offends := repeated | (other & (steps % step != 0))).any():
        row = int(offends.argmax())
        got = f"frame steps {step} and {steps[row]} (person {persons[row]} before frame {frames[row + 1]})"
        advice = "Split the file, or resample one part of it."
        raise ValueError(bad_value(owner, name, "have one frame rate", got, advice))
    if ((off := (frames - frames[0]) % step) != 0).any():
        row = int((off != 0).argmax())
        got = f"frames {frames[0]} and {frames[row]}"
        advice = "Persons in frames of their own cannot be seen together."
        raise ValueError(bad_value(owner, name, f"have frames that are multiples of {step} apart", got, advice))
    return step
