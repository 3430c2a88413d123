"""The files of the eight recordings: in a folder, in the cache, or downloaded from a pinned commit."""

import os
from collections.abc import Iterable
from pathlib import Path

from torchmcl._checks import bad_value, check_choice, nearest_hint
from torchmcl_studies.data.downloads import cache_folder, cached_download
from torchmcl_studies.data.pedestrians.tracks import Recording, read

__all__ = ["RECORDINGS", "read_recordings"]

BASE_URL = (
    "https://raw.githubusercontent.com/StanfordASL/Trajectron-plus-plus/"
    "1031c7bd1a444273af378c1ec1dcca907ba59830/experiments/pedestrians/raw/raw/"
)
# Part of a recording: the folder of the repository, and how the names of its files end.
_PARTS = {"all": ("all_data", ""), "train": ("train", "_train"), "val": ("val", "_val")}
# sha256 of each part, in the order of _PARTS.
_CHECKSUMS = {
    "biwi_eth": (
        "cf8d3fd342a15f409ebc2a1fc76b91a0f06390bd21f1e11410f3859331ab082b",
        "7905d1337f8466c3ebcd80e8264158209370e939774a371d215491256128407e",
        "ed19f8ee52e024788658d70060c1452b991aa506b78ea649c74f79e075ad20b9",
    ),
    "biwi_hotel": (
        "9caa771bb9153d6b809dd0916b6f86761b641e6bbb15e766c1de3133fbbb7fcf",
        "f3f485043273e3d972efd73770df0021ec7d3d5135f60d2e2ca5809f68d6f104",
        "5c6026c5c6feb81295187e2e063d86197344428811ac2ae98a45bdfb5dfa79ed",
    ),
    "students001": (
        "a6d87f278d94136fe39b8be91555487a29ac77259ae403b9dba2d5c18caf7b5b",
        "f41a0a63301e1c15104205c4a1540db477ddc3330ee2801a976d7b9fc238a63e",
        "dc8f3147820e80642903041b017292eb03ea5df81ffd2974b47a725d8ffeb394",
    ),
    "students003": (
        "e25798b660634330aa89f8bb259425de720e84d0873902726c1d1f4ccff21d6c",
        "85fe6324e9a0b94acb21617eb0331f543fe5ebf0caee1e253794bca554f35daf",
        "b7aa6dcedba0e9036272dc363e2a25e6bb80d7485d75dcb3fff918ce01b10e24",
    ),
    "uni_examples": (
        "61f432c0ab3070ed0ef150fbeabcd7baf839cab5495a46e6105bd747f0a092a7",
        "06866bea5c2f589094473371e9fb6b653c7af95e5f748434bc1024544c5e1c7a",
        "436dfa865ffab37957e928e227a1b6cc836ab0e6b7652abbf5d06cdf5638dee4",
    ),
    "crowds_zara01": (
        "1147a1962a09abfb86f28c6cddcac862e095a0cf129b3016385b69eacdd09d85",
        "5b2ff1a334f4b3e8595e0ee898874b1795561db7bde97e90cbc4a1382c8c3d56",
        "d5212e4e3289aa44365e5ce34a476ef2a4208c89bd6a29204ece097c7f33c157",
    ),
    "crowds_zara02": (
        "8a649d0f8c9ae75c87c4d23a85f892786b0aa30266e996c7be03e69dafff22ff",
        "9fd606341135d7d211c3af259c9eb2c25e4c7035efc43d3007ceeef6f954b247",
        "361949e5655814680e1185bdd23344932f7b6ccc0d7120c34b523495d0fc69f8",
    ),
    "crowds_zara03": (
        "16b3e899932c4baacd07f45013d5b921f90bc5a29eb2b0fe42f4d7c904ac3108",
        "d38a0a6cd1e24adadbb3b15cac97b747e5c6ace2c59d457d805f38a4d91d5a03",
        "60d464e21fd3851fab146ec3b35d0db4155b3c057f4b46050336eac59314f0f5",
    ),
}
RECORDINGS = tuple(_CHECKSUMS)
_ADVICE = (
    "Give the folder that has all/, train/ and val/ (root=, or pedestrians/ in the folder of TORCHMCL_DATA), or leave "
    "`root` out to download the files."
)


def read_recordings(
    names: Iterable[str] = RECORDINGS, part: str = "all", root: str | Path | None = None, *, progress: bool = True
) -> list[Recording]:
    """Return recordings, or the parts of them that studies train and validate on.

    Args:
        names: of `RECORDINGS`.
        part: "all" for whole recordings, "train" or "val" for the parts.
        root: the folder with all/, train/ and val/, plain text or gzip; by default the folder pedestrians/ in that of
            TORCHMCL_DATA, then the cache, then a download.
        progress: show a bar while downloading.

    Raises:
        ValueError: for an unknown name or part, or a file that is not a recording.
        OSError: if a file is absent or cannot be downloaded.
    """
    owner = "pedestrians.read_recordings"
    check_choice(owner, "part", part, tuple(_PARTS))
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in RECORDINGS:
            rule = f"be of {', '.join(RECORDINGS)}"
            raise ValueError(bad_value(owner, "names", rule, repr(name), nearest_hint(str(name), RECORDINGS).strip()))
    return [read(_find(name, part, root) or _download(name, part, progress=progress), name) for name in names]


def _find(name: str, part: str, root: str | Path | None) -> Path | None:
    """Return the file in the folder given, or else where it may have been kept."""
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


def _download(name: str, part: str, *, base_url: str | None = None, progress: bool = True) -> Path:
    folder, file_name = _PARTS[part][0], _file_name(name, part)
    return cached_download(
        "pedestrians",
        file_name,
        f"pedestrians/{folder}",
        f"{BASE_URL if base_url is None else base_url}{folder}/",
        file_name,
        _CHECKSUMS[name][list(_PARTS).index(part)],
        advice="Without a network, give the folder with all/, train/ and val/: root=, or pedestrians/ in the "
        "folder of TORCHMCL_DATA.",
        progress=progress,
    )
