"""Mixture lists and recordings of a configuration."""

import re
from dataclasses import replace
from pathlib import Path

from torchmcl.errors import bad_value
from torchmcl_speech.config import DataConfig
from torchmcl_speech.data import (
    AudioFolder,
    AudioPack,
    BadAudio,
    Mixture,
    librimix_mixtures,
    speaker_mixtures,
    table_mixtures,
    wsj0_mixtures,
)
from torchmcl_speech.data.audio import is_recording
from torchmcl_speech.data.stores import AudioStore

__all__ = ["audio_store", "data_layout", "first_mixtures", "listed_mixtures"]

# Number of folders that an error names.
_MOST_NAMED = 8


def listed_mixtures(config: DataConfig, part: str) -> list[Mixture]:
    """Return the mixtures of a part for all numbers of speakers."""
    root = _root(config)
    layout = data_layout(config)
    mixtures: list[Mixture] = []
    for n_speakers in config.n_speakers:
        if layout == "tables" and n_speakers == 1 and not (root / "metadata" / f"mix_1_spk_{part}.csv").exists():
            mixtures += _alone(table_mixtures(root, part, 2))
        elif layout == "tables":
            mixtures += table_mixtures(root, part, n_speakers)
        elif layout == "speakers":
            mixtures += speaker_mixtures(root, part, n_speakers)
        elif layout == "wsj0":
            mixtures += wsj0_mixtures(root, part, n_speakers, folder=_wsj0_folder(root, n_speakers, config.sample_rate))
        else:
            if part not in config.tables:
                raise ValueError(bad_value("data", "tables", f"name the table of {part!r}", dict(config.tables)))
            mixtures += librimix_mixtures(root / config.tables[part], n_speakers)
    return mixtures


def first_mixtures(config: DataConfig, part: str, n_mixtures: int | None) -> list[Mixture]:
    """Return the first mixtures of a part, balanced over the numbers of speakers; all if `n_mixtures` is None."""
    by_number = [listed_mixtures(replace(config, n_speakers=(number,)), part) for number in config.n_speakers]
    longest = max(len(mixtures) for mixtures in by_number)
    in_turn = [mixtures[i] for i in range(longest) for mixtures in by_number if i < len(mixtures)]
    return in_turn[:n_mixtures]


def _alone(mixtures: list[Mixture]) -> list[Mixture]:
    """Return mixtures that contain only the first voice of each mixture."""
    return [Mixture(f"{m.name}_alone", m.tracks[:1], m.length) for m in mixtures]


def data_layout(config: DataConfig) -> str:
    """Return the configured data layout, or detect it from the contents of the folder.

    Raises:
        ValueError: If the folder matches no layout.
    """
    if config.layout != "auto":
        return config.layout
    if config.tables:
        return "librimix"
    root = _root(config)
    if any((root / "metadata").glob("mix_*_spk_*.csv")):
        return "tables"
    if _wsj0_folders(root) or any(root.glob("wav*k/min")):
        return "wsj0"
    if not root.is_dir():
        raise BadAudio(f"{root}: no such folder. Check the path.")
    if any(is_recording(path) for folder in sorted(root.iterdir()) if folder.is_dir() for path in folder.rglob("*")):
        return "speakers"
    rule = "contain <speaker>/<recordings>, wav8k/min/{tr,cv,tt}/{mix,s1,s2,...} or metadata/mix_<n>_spk_<part>.csv"
    raise ValueError(bad_value("data", "root", rule, repr(str(root)), "For LibriMix, name its tables in data.tables."))


def _wsj0_folders(root: Path) -> list[str]:
    """Return the folders of parts, relative to `root`; only the highest level that has any."""
    for level in (".", "min", "wav*k/min", "*/wav*k/min", "*/*/wav*k/min"):
        folders = {path.parents[1].relative_to(root).as_posix() for path in root.glob(f"{level}/[ct][rvt]/mix")}
        if folders:
            return sorted(folders)
    return []


def _wsj0_folder(root: Path, n_speakers: int, sample_rate: int) -> str:
    """Return the folder of parts, relative to `root`, for a number of speakers and if possible a sample rate."""
    folders = _wsj0_folders(root)
    fitting = [folder for folder in folders if _named_number(root / folder) in (None, n_speakers)]
    fitting = [folder for folder in fitting if f"wav{sample_rate // 1000}k" in folder] or fitting
    if len(fitting) != 1:
        sources = ",".join(f"s{i}" for i in range(1, n_speakers + 1))
        rule = f"contain one folder {n_speakers}speakers/wav8k/min/{{tr,cv,tt}}/{{mix,{sources}}}"
        found = fitting or folders or sorted(path.name for path in root.glob("*/"))[:_MOST_NAMED] or ["no folders"]
        raise ValueError(bad_value("data", "root", rule, f"{str(root)!r} with {', '.join(found)}"))
    return fitting[0]


def _named_number(folder: Path) -> int | None:
    """Return the number of speakers in names such as 2speakers and wsj0-2mix."""
    numbers = re.findall(r"([2-9])[-_ ]?(?:speakers?|spk|mix)", "/".join(folder.absolute().parts[-3:]))
    return int(numbers[-1]) if numbers else None


def audio_store(config: DataConfig) -> AudioStore:
    """Return the source of the recordings."""
    if config.pack is not None:
        return AudioPack.load(config.pack).checked_rate(config.sample_rate)
    return AudioFolder(_root(config), config.sample_rate, outside=config.outside)


def _root(config: DataConfig) -> Path:
    if config.root is None:
        advice = "Set it in the configuration file or with --data."
        raise ValueError(bad_value("data", "root", "be a folder of recordings", None, advice))
    return Path(config.root)
