"""Mixtures of clean recordings in one folder per speaker, without any table."""

import warnings
from pathlib import Path

import numpy as np

from torchmcl._checks import check_choice, check_positive_int
from torchmcl_speech.data.audio import BadAudio, audio_files
from torchmcl_speech.data.mixtures import PARTS, Mixture, Track, random_gains

__all__ = ["recordings_by_speaker", "speaker_mixtures"]

# One of ten speakers validates, one tests. With fewer than this many for each voice of a mixture, recordings are split.
_SHARE, _SPEAKERS_A_VOICE = 0.1, 5
# The gains of WSJ0-mix.
_SPREAD_DB = 2.5


def speaker_mixtures(root: Path | str, part: str, n_speakers: int) -> list[Mixture]:
    """Return mixtures of the recordings in `<speaker>/...` or `{tr,cv,tt}/<speaker>/...`, each at least once.

    Without parts, no speaker is in two of them if there are ten or more (for mixtures of two). Of fewer, each
    one's recordings are split instead, and the validation says nothing about other voices, as a warning says too.
    The same folder gives the same list.

    Args:
        root: folder of the recordings.
        part: "tr", "cv" or "tt".
        n_speakers: voices of a mixture.

    Raises:
        BadAudio: if there are too few speakers or recordings.
    """
    check_choice("speaker_mixtures", "part", part, PARTS)
    check_positive_int("speaker_mixtures", "n_speakers", n_speakers)
    root = Path(root)
    by_speaker = _of_part(root, part, n_speakers)
    if len(by_speaker) < n_speakers:
        raise BadAudio(f"{root}: has {len(by_speaker)} speakers for {part}, fewer than the {n_speakers} of a mixture.")
    random = np.random.default_rng((0, PARTS.index(part)))
    speakers, mixtures = sorted(by_speaker), []
    for speaker in speakers:
        others = [other for other in speakers if other != speaker]
        for path in by_speaker[speaker]:
            joined = [str(other) for other in random.choice(others, n_speakers - 1, replace=False)] if others else []
            paths = [path, *(by_speaker[other][random.integers(len(by_speaker[other]))] for other in joined)]
            names = [p.relative_to(root).as_posix() for p in paths]
            gains = random_gains(random, n_speakers, _SPREAD_DB)
            tracks = tuple(Track(*track) for track in zip(names, gains, [speaker, *joined], strict=True))
            mixtures.append(Mixture("_".join(f"{t.speaker}-{Path(t.name).stem}" for t in tracks), tracks))
    return [mixtures[int(place)] for place in random.permutation(len(mixtures))]


def recordings_by_speaker(folder: Path) -> dict[str, list[Path]]:
    """Return the recordings below each folder of a folder.

    Raises:
        BadAudio: if there are none, or one lies beside the folders.
    """
    by_speaker: dict[str, list[Path]] = {}
    for path in audio_files(folder):
        places = path.relative_to(folder).parts
        if len(places) < 2:
            raise BadAudio(f"{path}: must lie in the folder of its speaker, {folder}/<speaker>/{path.name}.")
        by_speaker.setdefault(places[0], []).append(path)
    return by_speaker


def _of_part(root: Path, part: str, n_speakers: int) -> dict[str, list[Path]]:
    if any((root / name).is_dir() for name in PARTS):
        return recordings_by_speaker(root / part)
    by_speaker = recordings_by_speaker(root)
    if len(by_speaker) >= _SPEAKERS_A_VOICE * n_speakers:
        speakers = [str(name) for name in np.random.default_rng(0).permutation(sorted(by_speaker))]
        n_apart = max(round(_SHARE * len(speakers)), n_speakers)
        parts = {"tt": speakers[:n_apart], "cv": speakers[n_apart : 2 * n_apart], "tr": speakers[2 * n_apart :]}
        return {speaker: by_speaker[speaker] for speaker in parts[part]}
    if part == "cv":
        text = f"{root}: has {len(by_speaker)} speakers; other recordings of the same voices validate."
        warnings.warn(text, stacklevel=4)
    return {speaker: _split(speaker, files)[part] for speaker, files in by_speaker.items()}


def _split(speaker: str, files: list[Path]) -> dict[str, list[Path]]:
    if len(files) < len(PARTS):
        raise BadAudio(f"{files[0].parent}: speaker {speaker} has {len(files)} recordings; {len(PARTS)} are needed.")
    n_apart = max(round(_SHARE * len(files)), 1)
    return {"tt": files[:n_apart], "cv": files[n_apart : 2 * n_apart], "tr": files[2 * n_apart :]}
