"""Separating a recording of any length, format and sample rate into files, in constant memory."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import available_device, bad_value
from torchmcl._files import write_atomically
from torchmcl._limits import SHORTEST_CHUNK_SECONDS
from torchmcl._progress import Progress
from torchmcl.data.speech.audio import AudioInfo, BadAudio, audio_info, check_samples
from torchmcl.data.speech.streams import Resampler, Track16, audio_blocks
from torchmcl.nn.long_recordings import StreamingSeparator
from torchmcl.scoring import normalized_scores
from torchmcl.separation.counting import count_probabilities
from torchmcl.separation.evaluate import trained_precision
from torchmcl.separation.shipped import DEFAULT_MODEL, load_separator

__all__ = ["separate_recording"]


def separate_recording(
    recording: Path | str,
    out: Path | str,
    model: Path | str = DEFAULT_MODEL,
    *,
    chunk_seconds: float = 10.0,
    device: str = "cpu",
    progress: bool = False,
) -> dict[str, Any]:
    """Write one WAV file for each output, one for the mixture as the model heard it, and `separation.json` about them.

    Outputs are ordered by their score; without a score head, by the share of the energy they have. The recording is
    mixed down to mono, resampled for the model, and the outputs are resampled back: files have its length and its
    sample rate, and the frequencies that the model hears. If one exceeds full scale, all are turned down.

    Args:
        recording: any audio file that soundfile reads.
        out: folder for the files, `<recording>-<place>.wav` and `<recording>-mixture.wav`.
        model: name of a separator that comes with the package, or folder of a saved model.
        chunk_seconds: longer recordings are taken in chunks of this length that overlap by half, one after the other.
        device: where to compute; on a GPU, in the precision of the training.
        progress: whether to show a bar.

    Returns:
        What was written into `separation.json`. Of a model with scores, `speakers` has the probability of each number
        of voices, from 0 on.

    Raises:
        ValueError: if the recording or the model cannot be used, or the chunk is too short to tell speakers apart.
    """
    if not SHORTEST_CHUNK_SECONDS <= chunk_seconds < math.inf:
        rule = f"be a finite number >= {SHORTEST_CHUNK_SECONDS}"
        raise ValueError(bad_value("separate_recording", "chunk_seconds", rule, repr(chunk_seconds)))
    available_device("separate_recording", device)
    separator, notes = load_separator(model)
    info, model_rate = audio_info(recording), int(notes.get("sample_rate", 8000))
    check_samples(recording, info.length_at(model_rate))
    if info.length_at(model_rate) < 1:
        raise BadAudio(f"{recording}: is too short; {info.length} samples at {info.sample_rate} Hz are no sound.")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    stream = StreamingSeparator(separator.to(device), chunk=max(round(chunk_seconds * model_rate), 2))
    with contextlib.closing(_Tracks(out, info.sample_rate, model_rate)) as tracks:
        with torch.inference_mode(), trained_precision(notes, device):
            for heard, outputs in _pieces(recording, info, stream, model_rate, device, progress):
                tracks.add(heard, outputs)
        tracks.add_last()
        logits = stream.score_logits
        scores, kind = tracks.scores(logits)
        order = scores.argsort(descending=True, stable=True).tolist()
        files, gain = tracks.write(Path(recording).stem, order, info)
    result = {
        "recording": str(recording),
        "seconds": info.length / info.sample_rate,
        "sample_rate": info.sample_rate,
        "n_channels": info.n_channels,
        "model": str(model),
        "model_rate": model_rate,
        "gain": gain,
        "ordered_by": kind,
        "speakers": None if logits is None else count_probabilities(logits[0].float().cpu()).tolist(),
        "mixture": files[0],
        "outputs": [
            {"file": file, "output": index, "score": float(scores[index])}
            for file, index in zip(files[1:], order, strict=True)
        ],
    }
    write_atomically(out / "separation.json", json.dumps(result, indent=1) + "\n")
    return result


def _pieces(
    recording: Path | str, info: AudioInfo, stream: StreamingSeparator, model_rate: int, device: str, progress: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what the model heard [n], and the outputs [outputs, m] that became final."""
    resample = Resampler(info.sample_rate, model_rate)
    block_seconds = stream.chunk / model_rate / 2
    with Progress(math.ceil(info.length / info.sample_rate), "separating", show=progress, unit="s") as bar:
        n_read, shown = 0, 0
        for block in audio_blocks(recording, max(round(block_seconds * info.sample_rate), 1)):
            n_read += len(block)
            heard = torch.from_numpy(resample(block, last=n_read >= info.length))
            if len(heard):
                yield heard, stream.push(heard.unsqueeze(0).to(device))[0].float().cpu()
            seconds = math.ceil(n_read / info.sample_rate)
            bar.step(seconds - shown)
            shown = seconds
        yield torch.empty(0), stream.finish()[0].float().cpu()


class _Tracks:
    """The mixture and the outputs on their way to files, at the sample rate of the recording."""

    def __init__(self, folder: Path, rate: int, model_rate: int) -> None:
        self.folder, self.rate, self.model_rate = folder, rate, model_rate
        self.tracks = [Track16(folder)]
        self.resamplers = [Resampler(model_rate, rate)]
        self.energy = torch.zeros(0, dtype=torch.float64)

    def add(self, heard: Tensor, outputs: Tensor) -> None:
        """Append what became known."""
        if len(outputs) and len(self.tracks) == 1:
            self.tracks += [Track16(self.folder) for _ in outputs]
            self.resamplers += [Resampler(self.model_rate, self.rate) for _ in outputs]
            self.energy = torch.zeros(len(outputs), dtype=torch.float64)
        self.energy = self.energy + outputs.double().square().sum(dim=-1) if len(outputs) else self.energy
        for track, resample, samples in zip(self.tracks, self.resamplers, (heard, *outputs), strict=False):
            if len(samples):
                track.add(resample(samples.numpy()))

    def add_last(self) -> None:
        """Append what the resampling still holds back."""
        for track, resample in zip(self.tracks, self.resamplers, strict=True):
            track.add(resample(torch.empty(0).numpy(), last=True))

    def scores(self, score_logits: Tensor | None) -> tuple[Tensor, str]:
        """Return a number for each output, which sum to 1, and what it is."""
        if score_logits is not None:
            return normalized_scores(score_logits[0].float().cpu()), "score"
        return self.energy / self.energy.sum().clamp_min(torch.finfo(self.energy.dtype).tiny), "energy"

    def write(self, stem: str, order: list[int], info: AudioInfo) -> tuple[list[str], float]:
        """Write all files, the outputs in an order; return the names, the mixture first, and the gain."""
        loudest = max(track.peak for track in self.tracks[1:])
        gain = 1.0 if loudest < 1 else 0.99 / loudest
        tracks = [self.tracks[0], *(self.tracks[1 + index] for index in order)]
        names = [f"{stem}-mixture.wav", *(f"{stem}-{place}.wav" for place in range(1, len(tracks)))]
        for name, track in zip(names, tracks, strict=True):
            track.write(self.folder / name, info.sample_rate, info.length, gain)
        return names, gain

    def close(self) -> None:
        """Forget all samples."""
        for track in self.tracks:
            track.close()
