"""The files of the eight recordings: in a folder, in the cache, or downloaded from a pinned commit."""

import os
from collections.abc import Iterable
from pathlib import Path

from torchmcl._checks import bad_value, check_choice
from torchmcl_studies.common import check_known
from torchmcl_studies.data.downloads import cache_folder, cached_download, checksums
from torchmcl_studies.data.pedestrians.tracks import Recording, read

__all__ = ["RECORDINGS", "read_recordings"]

BASE_URL = (
    "https://raw.githubusercontent.com/StanfordASL/Trajectron-plus-plus/"
    "1031c7bd1a444273af378c1ec1dcca907ba59830/experiments/pedestrians/raw/raw/"
)
# Part of a recording: the folder of the repository, and how the names of its files end.
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
    """Return the file in the given folder, or in the other known places."""
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
