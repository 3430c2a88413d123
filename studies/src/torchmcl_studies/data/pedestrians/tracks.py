"""One recording: the position of each person in each frame, read from a text file and checked."""

import io
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchmcl.checks import check_choice
from torchmcl.errors import bad_value
from torchmcl.io import read_text, unpacked
from torchmcl_studies.common import check_known
from torchmcl_studies.data import cache_folder, cached_download, checksums

__all__ = ["BASE_URL", "RECORDINGS", "Recording", "read", "read_recordings"]

_COLUMNS = ("frame", "person", "x", "y")
# A person may be missing in a frame. The same longer step this many times in a row means a different frame rate.
_REPEATS_OF_A_RATE = 3
# Larger integers are not exact in float64, in which the text is read.
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
        """Return the recording given by rows (frame, person, x, y) in any order.

        The step is the most frequent one between the frames of a person. A longer step is a gap if it is a multiple of
        it; the same longer step three times in a row means a different frame rate.

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
    """Return the recording in a text file with the columns frame, person, x and y, separated by white space.

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
    """Return the most frequent step between frames of a person; all frames must lie on a grid with this step."""
    owner = "pedestrians"
    steps = np.diff(frames)
    same = np.diff(persons) == 0
    if (twice := same & (steps == 0)).any():
        row = int(twice.argmax())
        got = f"person {persons[row]} twice in frame {frames[row]}"
        raise ValueError(bad_value(owner, name, "hold each person once per frame", got, "Remove one of the rows."))
    if not same.any():
        return 1  # each person occurs once: the step is undefined, and there are no windows
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


BASE_URL = (
    "https://raw.githubusercontent.com/StanfordASL/Trajectron-plus-plus/"
    "1031c7bd1a444273af378c1ec1dcca907ba59830/experiments/pedestrians/raw/raw/"
)
# Part of a recording: its folder in the repository, and the suffix of its file names.
_PARTS = {"all": ("all_data", ""), "train": ("train", "_train"), "val": ("val", "_val")}
RECORDINGS = (
    *("biwi_eth", "biwi_hotel", "students001", "students003"),
    *("uni_examples", "crowds_zara01", "crowds_zara02", "crowds_zara03"),
)
_ADVICE = "Give the folder that has all/, train/ and val/: root=, or pedestrians/ in the folder of TORCHMCL_DATA."


def read_recordings(
    names: Iterable[str] = RECORDINGS, part: str = "all", root: str | Path | None = None
) -> list[Recording]:
    """Return recordings, or their training and validation parts.

    Args:
        names: of `RECORDINGS`.
        part: "all" for whole recordings, "train" or "val" for the parts.
        root: the folder with all/, train/ and val/, plain text or gzip; by default the folder pedestrians/ in that of
            TORCHMCL_DATA, then the cache, then a download.

    Raises:
        ValueError: for an unknown name or part, or a file that is not a recording.
        OSError: if a file is absent or cannot be downloaded.
    """
    owner = "pedestrians.read_recordings"
    check_choice(owner, "part", part, tuple(_PARTS))
    names = [names] if isinstance(names, str) else list(names)
    check_known(owner, "names", names, RECORDINGS)
    return [read(_find(name, part, root) or _download(name, part), name) for name in names]


def _find(name: str, part: str, root: str | Path | None) -> Path | None:
    """Return the file in the given folder, or else in the default locations; None if it is missing."""
    if root is not None:
        if not Path(root).is_dir():
            raise FileNotFoundError(bad_value("pedestrians", "root", "be a folder", root, _ADVICE))
        if (path := _in_folder(Path(root), name, part)) is None:
            rule = f"hold {part}/{_file_name(name, part)}, plain or with .gz"
            raise FileNotFoundError(bad_value("pedestrians", "root", rule, root, _ADVICE))
        return path
    if named := os.environ.get("TORCHMCL_DATA"):
        if not Path(named).is_dir():
            raise FileNotFoundError(bad_value("pedestrians", "TORCHMCL_DATA", "be a folder", named, _ADVICE))
        if (path := _in_folder(Path(named) / "pedestrians", name, part)) is not None:
            return path
    return _in_folder(cache_folder("pedestrians"), name, part)


def _in_folder(root: Path, name: str, part: str) -> Path | None:
    for folder in dict.fromkeys((part, _PARTS[part][0])):
        for ending in ("", ".gz"):
            if (path := root / folder / (_file_name(name, part) + ending)).is_file():
                return path
    return None


def _file_name(name: str, part: str) -> str:
    return f"{name}{_PARTS[part][1]}.txt"


def _download(name: str, part: str) -> Path:
    known = checksums("torchmcl_studies.data.pedestrians", "files.txt")
    file_name = f"{_PARTS[part][0]}/{_file_name(name, part)}"
    return cached_download("pedestrians", "pedestrians", BASE_URL, file_name, known, advice=_ADVICE)
