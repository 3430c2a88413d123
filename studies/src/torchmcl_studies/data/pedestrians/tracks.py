"""Recordings: positions of each person in each frame, read from text files and checked."""

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
# A person may be missing in a frame; this many equal longer steps in a row mean a different frame rate.
_REPEATS_OF_A_RATE = 3
# Larger integers are not exact in float64, in which the text is read.
_LARGEST_EXACT = 2**53


@dataclass(frozen=True, eq=False)
class Recording:
    """Positions of all persons of a recording, sorted by person, then frame.

    Attributes:
        name: Name of the recording.
        frames: Frame numbers, [rows], int64.
        persons: Person numbers, [rows], int64.
        positions: Positions in meters, [rows, 2], float64.
        step: Difference between consecutive frames, in the units of `frames`.
    """

    name: str
    frames: np.ndarray
    persons: np.ndarray
    positions: np.ndarray
    step: int

    @classmethod
    def from_rows(cls, rows: np.ndarray, name: str = "recording") -> "Recording":
        """Return a recording from rows (frame, person, x, y) in any order.

        The frame step is the most frequent difference between consecutive frames of a person. A multiple of it is a
        gap; three equal longer steps in a row mean a different frame rate.

        Args:
            rows: Rows of frame, person, x and y, [rows, 4].
            name: Name in error messages and in `Windows.recordings`.

        Raises:
            ValueError: If there are no rows, the number of columns is not 4, values are not finite, frames or persons
                are not integers, a person occurs twice in a frame, or there are two frame rates.

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
        path: Text file; a file that ends in .gz is unpacked.
        name: Name of the recording; by default the file name without suffixes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a table of numbers, or not a recording (see `Recording.from_rows`).
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
        raise ValueError(bad_value(owner, name, "hold finite numbers", got, "Remove rows of absent persons."))
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
        advice = "Otherwise, persons would never be in the same frame."
        raise ValueError(bad_value(owner, name, f"have frames that are multiples of {step} apart", got, advice))
    return step


BASE_URL = (
    "https://raw.githubusercontent.com/StanfordASL/Trajectron-plus-plus/"
    "1031c7bd1a444273af378c1ec1dcca907ba59830/experiments/pedestrians/raw/raw/"
)
# Part of the recordings -> folder in the repository, suffix of the file names.
_PARTS = {"all": ("all_data", ""), "train": ("train", "_train"), "val": ("val", "_val")}
RECORDINGS = (
    *("biwi_eth", "biwi_hotel", "students001", "students003"),
    *("uni_examples", "crowds_zara01", "crowds_zara02", "crowds_zara03"),
)
_ADVICE = "Pass the folder that contains all/, train/ and val/ as root=, or put it at $TORCHMCL_DATA/pedestrians."


def read_recordings(
    names: Iterable[str] = RECORDINGS, part: str = "all", root: str | Path | None = None
) -> list[Recording]:
    """Return recordings, or their training and validation parts.

    Args:
        names: Names of recordings, as in `RECORDINGS`.
        part: "all" for whole recordings, "train" or "val" for their parts.
        root: Folder that contains all/, train/ and val/, plain text or gzip; by default $TORCHMCL_DATA/pedestrians,
            then the cache, then a download.

    Raises:
        ValueError: If a name or the part is unknown, or a file is not a recording.
        OSError: If a file is missing or cannot be downloaded.
    """
    owner = "pedestrians.read_recordings"
    check_choice(owner, "part", part, tuple(_PARTS))
    names = [names] if isinstance(names, str) else list(names)
    check_known(owner, "names", names, RECORDINGS)
    return [read(_find(name, part, root) or _download(name, part), name) for name in names]


def _find(name: str, part: str, root: str | Path | None) -> Path | None:
    """Return the file in `root` or, without it, in the default locations; None if it is missing."""
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
