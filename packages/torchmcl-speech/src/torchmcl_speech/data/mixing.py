"""Creation of a folder of mixtures in the WSJ0-mix layout from single-speaker recordings."""

import csv
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Annotated

import numpy as np

from torchmcl import checks, io
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl_speech.data.audio import BadAudio, Samples, audio_files, read_audio, warn_skipped, write_audio
from torchmcl_speech.data.mixtures import PARTS, Mixture, Track, random_gains

__all__ = ["MixPlan", "speaker_mixtures", "write_mixtures"]

# Fraction of the speakers for validation, and for testing. With fewer speakers per voice of a mixture than the second
# value, the recordings of each speaker are split instead.
_FRACTION, _SPEAKERS_PER_VOICE = 0.1, 5
# Bound on the gains of WSJ0-mix.
_SPREAD_DB = 2.5


def speaker_mixtures(root: Path | str, part: str, n_speakers: int) -> list[Mixture]:
    """Mix all recordings in `<speaker>/...` or `{tr,cv,tt}/<speaker>/...`.

    If the folder has no parts, the speakers are split into parts without common speakers. With too few speakers (fewer
    than ten for mixtures of two), the recordings of each speaker are split instead; validation scores then do not apply
    to new voices, and a warning is raised. The result is the same for the same folder.

    Args:
        root: Folder of the recordings.
        part: Part of the data: "tr", "cv" or "tt".
        n_speakers: Number of voices per mixture.

    Raises:
        BadAudio: If there are too few speakers or recordings.
    """
    root = Path(root)
    by_speaker = _of_part(root, part, n_speakers)
    if len(by_speaker) < n_speakers:
        got = f"{len(by_speaker)} speakers for {part}, fewer than the {n_speakers} speakers of a mixture"
        raise BadAudio(f"{root}: has {got}. Add speakers, or mix fewer speakers.")
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
    """Return the recordings of each speaker, who is named by a subfolder.

    Raises:
        BadAudio: If there are no recordings, or a recording is not in a subfolder.
    """
    by_speaker: dict[str, list[Path]] = {}
    for path in audio_files(folder):
        places = path.relative_to(folder).parts
        if len(places) < 2:
            raise BadAudio(f"{path}: must be in the folder of its speaker, {folder}/<speaker>/{path.name}.")
        by_speaker.setdefault(places[0], []).append(path)
    return by_speaker


def _of_part(root: Path, part: str, n_speakers: int) -> dict[str, list[Path]]:
    if any((root / name).is_dir() for name in PARTS):
        return recordings_by_speaker(root / part)
    by_speaker = recordings_by_speaker(root)
    if len(by_speaker) >= _SPEAKERS_PER_VOICE * n_speakers:
        speakers = [str(name) for name in np.random.default_rng(0).permutation(sorted(by_speaker))]
        n_held_out = max(round(_FRACTION * len(speakers)), n_speakers)
        parts = {
            "tt": speakers[:n_held_out],
            "cv": speakers[n_held_out : 2 * n_held_out],
            "tr": speakers[2 * n_held_out :],
        }
        return {speaker: by_speaker[speaker] for speaker in parts[part]}
    if part == "cv":
        text = f"{root}: has only {len(by_speaker)} speakers, so validation uses other recordings of the same voices."
        warnings.warn(text, stacklevel=4)
    return {speaker: _split(speaker, files)[part] for speaker, files in by_speaker.items()}


def _split(speaker: str, files: list[Path]) -> dict[str, list[Path]]:
    if len(files) < len(PARTS):
        raise BadAudio(f"{files[0].parent}: speaker {speaker} has {len(files)} recordings; {len(PARTS)} are needed.")
    n_held_out = max(round(_FRACTION * len(files)), 1)
    return {"tt": files[:n_held_out], "cv": files[n_held_out : 2 * n_held_out], "tr": files[2 * n_held_out :]}


# Format of the gains in file names, as in WSJ0-mix.
_GAIN = "{:.4f}"
_ATTEMPTS = 1000


_Count = Annotated[int, checks.Bounds(low=1, integer=True)]


@dataclass(frozen=True)
class MixPlan(checks.Value):
    """Number and properties of the mixtures to write.

    Args:
        n_speakers: Number of speakers per mixture, 2 to 5 in WSJ0-mix.
        counts: Number of mixtures of each part.
        sample_rate: Sample rate of the mixtures.
        spread_db: Bound on the gains, which lie between -spread_db and spread_db.
        seed: Random seed, which determines all mixtures.
    """

    n_speakers: _Count = 2
    counts: Mapping[str, int] = field(default_factory=lambda: {"tr": 20000, "cv": 5000, "tt": 3000})
    sample_rate: _Count = 8000
    spread_db: Annotated[float, checks.Bounds(low=0)] = 2.5
    seed: Annotated[int, checks.Bounds(low=0, integer=True)] = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if unknown := sorted(set(self.counts) - set(PARTS)):
            raise ValueError(bad_value("MixPlan", "counts", f"name parts among {PARTS}", unknown))
        for count in self.counts.values():
            checks.check_positive_int("MixPlan", "counts", count)
        if not self.counts:
            raise ValueError(bad_value("MixPlan", "counts", "not be empty", "{}"))


def write_mixtures(
    recordings: Path | str, out: Path | str, plan: MixPlan, *, skip_bad: bool = False, progress: bool = False
) -> dict[str, int]:
    """Write `out/wav8k/min/{tr,cv,tt}/{mix,s1,s2,...}/<name>.wav` and a table of the mixtures.

    Args:
        recordings: Folder with `<speaker>/...` or `{tr,cv,tt}/<speaker>/...`; if it has no parts, the speakers are
            split into parts without common speakers.
        out: Output folder.
        plan: Number and properties of the mixtures.
        skip_bad: Whether to leave out unusable recordings, with a warning that counts them.
        progress: Whether to show a progress bar.

    Returns:
        Number of mixtures in each part.

    Raises:
        BadAudio: If a recording is unusable, or a part has too few speakers or recordings.
        ValueError: If the output folder contains mixtures of this sample rate.
    """
    root = Path(recordings)
    base = Path(out) / f"wav{plan.sample_rate // 1000}k" / "min"
    if base.exists():  # speakers for testing may be among the speakers of earlier training mixtures
        advice = "Remove this folder, or give another one."
        raise ValueError(bad_value("write_mixtures", "out", "contain no mixtures", repr(str(base)), advice))
    n_written = {}
    bad: list[str] = []
    parts = _parts(root, plan)
    for part, by_speaker in parts.items():  # before anything is written
        _check_enough(part, by_speaker, plan)
    for part, by_speaker in parts.items():
        random = np.random.default_rng((plan.seed, PARTS.index(part)))
        rows: list[list[object]] = []
        taken: set[tuple[str, ...]] = set()
        with Progress(plan.counts[part], part, show=progress, unit="mixture") as bar:
            while len(rows) < plan.counts[part]:
                chosen = _draw(part, by_speaker, plan, random, taken)
                gains = random_gains(random, plan.n_speakers, plan.spread_db)
                try:
                    sources = _sources(chosen, gains, plan.sample_rate)
                except BadAudio as error:
                    if not skip_bad:
                        raise
                    bad.append(str(error))
                    _forget(by_speaker, str(error))
                    continue
                rows.append(_write_one(base / part, chosen, gains, sources, plan.sample_rate, root))
                bar.step()
        _write_table(base / part / "mixtures.csv", rows, plan.n_speakers)
        n_written[part] = len(rows)
    warn_skipped("write_mixtures", bad)
    return n_written


def _parts(root: Path, plan: MixPlan) -> dict[str, dict[str, list[Path]]]:
    """Return the recordings by part and speaker."""
    if any((root / part).is_dir() for part in PARTS):
        return {part: recordings_by_speaker(root / part) for part in plan.counts}
    by_speaker = recordings_by_speaker(root)
    speakers = sorted(by_speaker)
    np.random.default_rng(plan.seed).shuffle(speakers)
    parts = {}
    for part in sorted(plan.counts, key=PARTS.index, reverse=True):  # the remaining speakers are for training
        last = part == min(plan.counts, key=PARTS.index)
        n_chosen = len(speakers) if last else max(round(len(by_speaker) * _FRACTION), plan.n_speakers)
        parts[part] = {speaker: by_speaker[speaker] for speaker in speakers[:n_chosen]}
        speakers = speakers[n_chosen:]
    return parts


def _draw(
    part: str,
    by_speaker: dict[str, list[Path]],
    plan: MixPlan,
    random: np.random.Generator,
    taken: set[tuple[str, ...]],
) -> list[Path]:
    """Sample an unused combination of recordings of different speakers."""
    _check_enough(part, by_speaker, plan)  # unusable recordings may have been removed
    speakers = sorted(speaker for speaker, files in by_speaker.items() if files)
    for _ in range(_ATTEMPTS):
        drawn = [by_speaker[str(s)] for s in random.choice(speakers, plan.n_speakers, replace=False)]
        chosen = [files[random.integers(len(files))] for files in drawn]
        key = tuple(sorted(str(path) for path in chosen))
        if key not in taken:
            taken.add(key)
            return chosen
    raise _too_few(part, by_speaker, plan, len(taken))


def _check_enough(part: str, by_speaker: Mapping[str, list[Path]], plan: MixPlan) -> None:
    """Check that enough different mixtures exist for the plan."""
    n_choices = [1] + [0] * plan.n_speakers  # numbers of combinations of recordings of 0, 1, 2, ... different speakers
    for files in by_speaker.values():
        for n in range(plan.n_speakers, 0, -1):
            n_choices[n] += len(files) * n_choices[n - 1]
    n_speakers = sum(bool(files) for files in by_speaker.values())
    if n_speakers < plan.n_speakers:
        raise BadAudio(
            f"{part}: has {n_speakers} speakers, fewer than the {plan.n_speakers} speakers of a mixture. Add folders "
            "of speakers, mix fewer speakers (--speakers), or write one part with all speakers (--counts tr=100)."
        )
    if n_choices[-1] < plan.counts[part]:
        raise _too_few(part, by_speaker, plan, n_choices[-1])


def _too_few(part: str, by_speaker: Mapping[str, list[Path]], plan: MixPlan, possible: int) -> BadAudio:
    n_files, n_speakers = sum(map(len, by_speaker.values())), sum(map(bool, by_speaker.values()))
    return BadAudio(
        f"{part}: {n_files} recordings of {n_speakers} speakers are too few for {plan.counts[part]} different "
        f"mixtures. Request fewer mixtures (--counts {part}={possible}), add recordings, or create new mixtures in "
        "every step: torchmcl separation train ship-2spk --data FOLDER."
    )


def _sources(chosen: list[Path], gains: list[float], sample_rate: int) -> Samples:
    tracks = [read_audio(path, sample_rate) for path in chosen]
    for path, track in zip(chosen, tracks, strict=True):
        if not track.any():
            raise BadAudio(f"{path}: is silent. Remove the file.")
    length = min(len(track) for track in tracks)
    scaled = [track[:length] * 10 ** (gain / 20) for track, gain in zip(tracks, gains, strict=True)]
    sources: Samples = np.stack(scaled).astype(np.float32)
    loudest = max(np.abs(sources).max(), np.abs(sources.sum(axis=0)).max())
    return sources if loudest < 1 else sources * np.float32(0.9 / loudest)  # one factor, to keep their ratios


def _write_one(
    folder: Path, chosen: list[Path], gains: list[float], sources: Samples, sample_rate: int, root: Path
) -> list[object]:
    places = [path.relative_to(root).as_posix() for path in chosen]
    utterances = ["-".join(Path(place).with_suffix("").parts).replace("_", "-") for place in places]
    name = "_".join(f"{u}_{_GAIN.format(g)}" for u, g in zip(utterances, gains, strict=True))
    for index, source in enumerate(sources, start=1):
        write_audio(folder / f"s{index}" / f"{name}.wav", source, sample_rate)
    write_audio(folder / "mix" / f"{name}.wav", sources.sum(axis=0), sample_rate)
    return [name, sources.shape[-1], *(x for pair in zip(places, gains, strict=True) for x in pair)]


def _write_table(path: Path, rows: list[list[object]], n_speakers: int) -> None:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [column.format(i) for i in range(1, n_speakers + 1) for column in ("s{}_path", "s{}_gain_db")]
    writer.writerow(["mixture_ID", "length", *columns])
    writer.writerows(rows)
    io.write_atomically(path, text.getvalue())


def _forget(by_speaker: dict[str, list[Path]], message: str) -> None:
    for files in by_speaker.values():
        files[:] = [path for path in files if not message.startswith(f"{path}:")]
