"""Separation of recordings of any length, format and sample rate into files, in constant memory."""

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import checks, io
from torchmcl.errors import bad_value
from torchmcl_speech.data.audio import AudioInfo, Resampler, Track16
from torchmcl_speech.inference import CHUNK_SECONDS, RecordingSeparator
from torchmcl_speech.pretrained import DEFAULT_MODEL

__all__ = ["RECORD_FILE", "check_replaceable", "count_speakers", "separate_recording", "sound_names"]

RECORD_FILE, PAGE_FILE = "separation.json", "index.html"


def sound_names(recording: Path | str, n_outputs: int) -> list[str]:
    """Return the names of the audio files: the mixture, and then the outputs.

    Example:
        >>> sound_names("talk.flac", 2)
        ['talk-mixture.wav', 'talk-1.wav', 'talk-2.wav']
    """
    stem = Path(recording).stem
    return [f"{stem}-mixture.wav", *(f"{stem}-{place}.wav" for place in range(1, n_outputs + 1))]


def check_replaceable(owner: str, folder: Path, recording: str, names: list[str]) -> None:
    """Check that only files of an earlier separation of this recording will be replaced.

    Args:
        owner: Function or command name at the beginning of messages.
        folder: Folder for the files.
        recording: Recording as its record names it: an absolute path, or the name of a mixture that is not a file.
        names: Names of the audio files; `separation.json` and the HTML report are always written.

    Raises:
        ValueError: If there are files of these names that no earlier separation of this recording wrote.
    """
    replaceable = _written_before(folder, recording)
    others = [name for name in (*names, RECORD_FILE, PAGE_FILE) if name not in replaceable and (folder / name).exists()]
    if others:
        rule = "contain no other files with the names of the new files"
        got = f"{str(folder)!r} with {', '.join(map(repr, others))}"
        advice = "Use another folder, or replace the files with `overwrite=True` (--overwrite)."
        raise ValueError(bad_value(owner, "out", rule, got, advice))


def _written_before(folder: Path, recording: str) -> set[str]:
    """Return the files of an earlier separation of a recording, as listed in its record."""
    try:
        record: dict[str, Any] = io.read_json("separate_recording", folder / RECORD_FILE)
        if record["recording"] != recording:
            return set()
        references = [Path(reference["file"]).name for reference in record.get("references", [])]
        return {RECORD_FILE, PAGE_FILE, *sound_names(recording, len(record["outputs"])), *references}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no record, or a foreign file
        return set()


#: Separator that estimates the number of speakers.
COUNTING_MODEL = "any-number"


def separate_recording(
    recording: Path | str,
    out: Path | str,
    model: Path | str = DEFAULT_MODEL,
    *,
    n_voices: int | None = None,
    chunk_seconds: float = CHUNK_SECONDS,
    device: str = "cpu",
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Separate a recording into a WAV file per voice, a WAV file of the model input, and `separation.json`.

    If the model has scores, the number of written outputs is the most likely number of voices, and the outputs are
    ordered by score. Without scores, all outputs are written, ordered by energy. The recording is mixed down to mono
    and resampled for the model, and the outputs are resampled back: the files have the length and the sample rate of
    the recording, and the frequency range of the model. If one file exceeds full scale, all files are attenuated.
    The files of an earlier separation of the same path are replaced; voices that no longer exist are deleted.

    Args:
        recording: Audio file in any format that soundfile reads.
        out: Folder for the files `<recording>-<index>.wav` and `<recording>-mixture.wav`.
        model: Name of a bundled separator, or folder of a saved model.
        n_voices: Number of outputs to write; by default the most likely number of speakers, or all outputs if the model
            has no scores.
        chunk_seconds: Maximum chunk length; longer recordings are processed in chunks that overlap by a second.
        device: Device to compute on; a GPU computes in the precision of the training.
        overwrite: Whether to replace files of these names, and an `index.html`, that no earlier separation of this
            recording wrote.
        progress: Whether to show a progress bar.

    Returns:
        Contents of `separation.json`. For a model with scores, `speakers` contains the probabilities of 0, 1, 2, ...
        voices; silence has 0 voices.

    Raises:
        ValueError: If the recording or the model is unusable, `n_voices` exceeds the number of outputs, the chunk is
            too short to distinguish speakers, or the folder has other files of the same names.
    """
    owner = "separate_recording"
    separation = RecordingSeparator(recording, model, owner=owner, chunk_seconds=chunk_seconds, device=device)
    if n_voices is not None:
        checks.check_positive_int(owner, "n_voices", n_voices)
        if n_voices > separation.n_outputs:
            rule = f"be at most {separation.n_outputs}, the number of outputs of the model"
            raise ValueError(bad_value(owner, "n_voices", rule, n_voices))
    out = Path(out)
    names, path = sound_names(recording, separation.n_outputs), separation.facts()["recording"]
    if not overwrite:
        check_replaceable(owner, out, path, names)
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(_Tracks(out, separation.info.sample_rate, separation.model_rate)) as tracks:
        for inputs, outputs in separation.pieces(progress=progress):
            tracks.add(inputs, outputs)
        tracks.add_last()
        speakers, logits = separation.speakers(), separation.score_logits
        scores = tracks.energy_fractions() if logits is None else torch.sigmoid(logits)
        likely = separation.n_outputs if speakers is None else speakers.index(max(speakers))
        order = scores.argsort(descending=True, stable=True).tolist()[: likely if n_voices is None else n_voices]
        files, gain = tracks.write(names, order, separation.info)
    for name in {*_written_before(out, path), *names} - {*files, RECORD_FILE, PAGE_FILE}:
        (out / name).unlink(missing_ok=True)
    result = separation.facts() | {
        "model": str(model),
        "model_rate": separation.model_rate,
        "gain": gain,
        "ordered_by": "energy" if logits is None else "score",
        "speakers": speakers,
        "mixture": files[0],
        "outputs": [
            {"file": file, "output": index, "score": float(scores[index])}
            for file, index in zip(files[1:], order, strict=True)
        ],
    }
    io.write_atomically(out / RECORD_FILE, json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


def count_speakers(
    recording: Path | str,
    model: Path | str = COUNTING_MODEL,
    *,
    chunk_seconds: float = CHUNK_SECONDS,
    device: str = "cpu",
    progress: bool = False,
) -> dict[int, float]:
    """Estimate the probability of each number of speakers in a recording, without writing files.

    Args:
        recording: Audio file in any format that soundfile reads.
        model: Separator with scores: name of a bundled separator, or folder of a saved model.
        chunk_seconds: Maximum chunk length; longer recordings are processed in chunks, whose scores are averaged with
            the energies of the outputs as weights.
        device: Device to compute on; a GPU computes in the precision of the training.
        progress: Whether to show a progress bar.

    Returns:
        Mapping from the number of speakers, 0 to the number of outputs, to its probability. Silence has 0 speakers.

    Raises:
        ValueError: If the recording or the model is unusable, or the model has no scores.
    """
    owner = "count_speakers"
    separation = RecordingSeparator(recording, model, owner=owner, chunk_seconds=chunk_seconds, device=device)
    if not separation.has_scores:
        advice = "Use a model with scores, or train one with --set model.scores=true."
        raise ValueError(bad_value(owner, "model", "have scores", repr(str(model)), advice))
    for _ in separation.pieces(progress=progress):
        pass
    return dict(enumerate(separation.speakers() or []))


class _Tracks:
    """Buffers of the mixture and the outputs, at the sample rate of the recording."""

    def __init__(self, folder: Path, rate: int, model_rate: int) -> None:
        self.folder, self.rate, self.model_rate = folder, rate, model_rate
        self.tracks = [Track16(folder)]
        self.resamplers = [Resampler(model_rate, rate)]
        self.energy = torch.zeros(0, dtype=torch.float64)

    def add(self, inputs: Tensor, outputs: Tensor) -> None:
        """Append samples of the model input and of the outputs."""
        if len(outputs) and len(self.tracks) == 1:
            self.tracks += [Track16(self.folder) for _ in outputs]
            self.resamplers += [Resampler(self.model_rate, self.rate) for _ in outputs]
            self.energy = torch.zeros(len(outputs), dtype=torch.float64)
        self.energy = self.energy + outputs.double().square().sum(dim=-1) if len(outputs) else self.energy
        for track, resample, samples in zip(self.tracks, self.resamplers, (inputs, *outputs), strict=False):
            if len(samples):
                track.add(resample(samples.numpy()))

    def add_last(self) -> None:
        """Append the samples that remain in the resamplers."""
        for track, resample in zip(self.tracks, self.resamplers, strict=True):
            track.add(resample(torch.empty(0).numpy(), last=True))

    def energy_fractions(self) -> Tensor:
        """Return the energy fraction of each output; the fractions sum to 1 unless all outputs are silent."""
        return self.energy / self.energy.sum().clamp_min(torch.finfo(self.energy.dtype).tiny)

    def write(self, names: list[str], order: list[int], info: AudioInfo) -> tuple[list[str], float]:
        """Write the mixture and the outputs with the indices `order`; return the written names and the gain."""
        tracks = [self.tracks[0], *(self.tracks[1 + index] for index in order)]
        loudest = max(track.peak for track in tracks)
        gain = 1.0 if loudest <= 1 else 0.99 / loudest
        names = names[: len(tracks)]
        for name, track in zip(names, tracks, strict=True):
            track.write(self.folder / name, info.sample_rate, info.length, gain)
        return names, gain

    def close(self) -> None:
        """Discard all samples."""
        for track in self.tracks:
            track.close()
