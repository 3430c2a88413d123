"""Lists of mixtures in the layouts of WSJ0-mix and LibriMix, and as tables of utterances with gains."""

import csv
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchmcl import io
from torchmcl.errors import bad_value
from torchmcl_speech.data.audio import BadAudio

__all__ = ["PARTS", "Mixture", "Track", "librimix_mixtures", "random_gains", "table_mixtures", "wsj0_mixtures"]

PARTS = ("tr", "cv", "tt")


class Track(NamedTuple):
    """Source of a mixture.

    Attributes:
        name: Name of the recording in the store.
        gain_db: Gain of the recording in decibels.
        speaker: Name of the speaker.
    """

    name: str
    gain_db: float = 0.0
    speaker: str = ""


class Mixture(NamedTuple):
    """Mixture of several sources.

    Attributes:
        name: Name of the mixture.
        tracks: Sources of the mixture.
        length: Number of samples to use from the beginning; None for the length of the shortest source.
        recorded: Name of the recording of the mixture; None if the mixture is the sum of the sources.
    """

    name: str
    tracks: tuple[Track, ...]
    length: int | None = None
    recorded: str | None = None


def table_mixtures(root: Path | str, part: str, n_speakers: int) -> list[Mixture]:
    """Read the mixtures of the table `metadata/mix_<n>_spk_<part>.csv`, which contains utterances and gains.

    The columns are mixture_ID, length, and s<i>_path (relative to `root`) and s<i>_gain_db for each source. The folder
    of an utterance is the name of its speaker.
    """
    path = Path(root) / "metadata" / f"mix_{n_speakers}_spk_{part}.csv"
    mixtures = []
    for row in _rows(path, ["mixture_ID", "length", *_columns(n_speakers, "s{}_path", "s{}_gain_db")]):
        names = [row[f"s{i}_path"] for i in range(1, n_speakers + 1)]
        gains = [_number(path, row, f"s{i}_gain_db") for i in range(1, n_speakers + 1)]
        tracks = tuple(Track(name, gain, Path(name).parent.name) for name, gain in zip(names, gains, strict=True))
        mixtures.append(Mixture(row["mixture_ID"], tracks, int(_number(path, row, "length"))))
    return mixtures


def librimix_mixtures(table: Path | str, n_speakers: int) -> list[Mixture]:
    """Read the mixtures of a LibriMix metadata table.

    The columns are mixture_ID, mixture_path, source_<i>_path and length. Speakers are read from the name of the
    mixture, `<speaker>-<chapter>-<utterance>_<speaker>-...`.
    """
    path = Path(table)
    mixtures = []
    for row in _rows(path, ["mixture_ID", "mixture_path", *_columns(n_speakers, "source_{}_path")]):
        if row.get(f"source_{n_speakers + 1}_path"):
            got = f"{n_speakers} where {path} has source_{n_speakers + 1}_path"
            raise ValueError(bad_value("librimix_mixtures", "n_speakers", "be that of the mixtures", got))
        speakers = [utterance.partition("-")[0] for utterance in row["mixture_ID"].split("_")]
        names = [row[f"source_{i}_path"] for i in range(1, n_speakers + 1)]
        speakers += [""] * (n_speakers - len(speakers))
        tracks = tuple(Track(name, 0.0, speaker) for name, speaker in zip(names, speakers, strict=False))
        mixtures.append(Mixture(row["mixture_ID"], tracks, None, row["mixture_path"]))
    return mixtures


def wsj0_mixtures(root: Path | str, part: str, n_speakers: int, *, folder: str = "wav8k/min") -> list[Mixture]:
    """List the mixtures of a WSJ0-mix folder, `wav8k/min/{tr,cv,tt}/{mix,s1,s2,...}/<name>.wav`.

    Speakers are read from the table `mixtures.csv` of `torchmcl data mix`. Without it, they are read from the names,
    `<utterance>_<gain>_<utterance>_<gain>.wav`: the part before the first hyphen of an utterance or, without a hyphen,
    its first three letters, as in WSJ0.

    Raises:
        BadAudio: If a folder is missing, or a file of a mixture or of one of its sources.
        ValueError: If the mixtures have more speakers than `n_speakers`.
    """
    base = Path(folder) / part
    here = Path(root) / base
    places = ["mix", *(f"s{i}" for i in range(1, n_speakers + 1))]
    for place in places:
        if not (here / place).is_dir():
            raise BadAudio(f"{here / place}: no such folder. Check the path.")
    if (more := here / f"s{n_speakers + 1}").is_dir():  # with fewer targets than voices, all results would be wrong
        advice = "Set data.n_speakers and model.n_outputs to the number of speakers in the mixtures."
        got = f"{n_speakers}, although {more} exists"
        raise ValueError(bad_value("wsj0_mixtures", "n_speakers", "equal the number of sources", got, advice))
    names = sorted(path.name for path in (here / "mix").glob("*.wav"))
    if not names:
        raise BadAudio(f"{here / 'mix'}: contains no mixtures (*.wav). Check the path.")
    for place in places[1:]:
        sources = {path.name for path in (here / place).glob("*.wav")}
        if one_sided := sorted(sources.symmetric_difference(names)):
            where = f"only in {place}" if one_sided[0] in sources else f"missing in {place}"
            counts = f"{len(names)} files in mix and {len(sources)} in {place}"
            raise BadAudio(f"{here}: has {counts}; {one_sided[0]} is {where}. Copy the folder again.")
    listed = _listed_speakers(here / "mixtures.csv", n_speakers)
    mixtures = []
    for name in names:
        files = [(base / place / name).as_posix() for place in places]
        speakers = listed.get(Path(name).stem) or _speakers_in(name, n_speakers)
        tracks = tuple(Track(file, 0.0, speaker) for file, speaker in zip(files[1:], speakers, strict=True))
        mixtures.append(Mixture(Path(name).stem, tracks, None, files[0]))
    return mixtures


def random_gains(random: np.random.Generator, n_speakers: int, spread_db: float = 2.5) -> list[float]:
    """Return random gains in dB: +g and -g for two speakers, and independent gains otherwise, as in WSJ0-mix."""
    if n_speakers == 2:
        gain = float(random.uniform(-spread_db, spread_db))
        return [gain, -gain]
    return [float(gain) for gain in random.uniform(-spread_db, spread_db, n_speakers)]


def _listed_speakers(table: Path, n_speakers: int) -> dict[str, list[str]]:
    """Return the speakers of each mixture of a table of `torchmcl data mix`; empty without the table."""
    columns = _columns(n_speakers, "s{}_path")
    rows = _rows(table, ["mixture_ID", *columns]) if table.is_file() else ()
    paths = {row["mixture_ID"]: [Path(row[column]).parts for column in columns] for row in rows}
    return {name: [parts[parts[0] in PARTS] for parts in tracks] for name, tracks in paths.items()}


def _speakers_in(name: str, n_speakers: int) -> list[str]:
    utterances = re.findall(r"(.+?)_-?\d+(?:\.\d+)?(?:_|$)", Path(name).stem)
    if len(utterances) != n_speakers:
        return [""] * n_speakers
    return [u.partition("-")[0] if "-" in u else u[:3] for u in utterances]


def _columns(n_speakers: int, *patterns: str) -> list[str]:
    return [pattern.format(i) for i in range(1, n_speakers + 1) for pattern in patterns]


def _rows(path: Path, columns: list[str]) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise BadAudio(f"{path}: no such table. Check the path.")
    text = io.read_text("mixtures", path)
    try:
        reader = csv.DictReader(StringIO(text, newline=""))
        if missing := sorted(set(columns) - set(reader.fieldnames or [])):
            raise ValueError(bad_value(str(path), "columns", f"include {missing}", reader.fieldnames))
        rows = list(reader)
    except csv.Error as error:
        raise BadAudio(f"{path}: is not a CSV table ({error}). Save it as CSV.") from error
    for number, row in enumerate(rows, start=1):
        if any(not row[column] for column in columns):
            raise BadAudio(f"{path}: row {number} has an empty cell. Fill the cell, or remove the row.")
    if not rows:
        raise BadAudio(f"{path}: has no rows. Write the table again.")
    yield from rows


def _number(path: Path, row: dict[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not np.isfinite(value) or (column == "length" and not 1 <= value < 2**53):
        raise BadAudio(f"{path}: `{column}` of {row['mixture_ID']} must be a number, got {row[column]!r}.")
    return value
