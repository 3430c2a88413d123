"""Separating a recording of any length into files."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import available_device, bad_value
from torchmcl._files import write_atomically
from torchmcl._limits import SHORTEST_CHUNK_SECONDS
from torchmcl.data.speech.audio import audio_info, read_audio, write_audio
from torchmcl.nn.long_recordings import separate_long
from torchmcl.nn.saved import load_model
from torchmcl.scoring import normalized_scores
from torchmcl.separation.evaluate import trained_precision
from torchmcl.types import Predictions

__all__ = ["separate_recording"]


def separate_recording(
    recording: Path | str,
    model: Path | str,
    out: Path | str,
    *,
    chunk_seconds: float = 10.0,
    device: str = "cpu",
) -> dict[str, Any]:
    """Write one WAV file for each output, one for the mixture as the model heard it, and `separation.json` about them.

    Outputs are ordered by their score; without a score head, by the share of the energy they have.
    They are written at the sample rate of the model. If one exceeds full scale, all are turned down.

    Args:
        recording: any audio file.
        model: folder of a saved model.
        out: folder for the files, `<recording>-<place>.wav` and `<recording>-mixture.wav`.
        chunk_seconds: longer recordings are taken in chunks of this length that overlap by half.
        device: where to compute; on a GPU, in the precision of the training.

    Returns:
        What was written into `separation.json`.

    Raises:
        ValueError: if the recording or the model cannot be used, or the chunk is too short to tell speakers apart.
    """
    if not SHORTEST_CHUNK_SECONDS <= chunk_seconds < math.inf:
        rule = f"be a finite number >= {SHORTEST_CHUNK_SECONDS}"
        raise ValueError(bad_value("separate_recording", "chunk_seconds", rule, repr(chunk_seconds)))
    available_device("separate_recording", device)
    separator, notes = load_model(model)
    sample_rate = int(notes.get("sample_rate", 8000))
    info = audio_info(recording)
    if info.n_channels > 1:
        warnings.warn(f"{recording}: mixed down from {info.n_channels} channels.", stacklevel=2)
    if info.sample_rate != sample_rate:
        warnings.warn(f"{recording}: resampled from {info.sample_rate} to {sample_rate} Hz.", stacklevel=2)
    mixture = torch.from_numpy(read_audio(recording, sample_rate)).unsqueeze(0)
    with torch.inference_mode(), trained_precision(notes, device):
        chunk = max(round(min(chunk_seconds * sample_rate, mixture.shape[-1])), 2)
        predictions = separate_long(separator.to(device), mixture.to(device), chunk=chunk)
    hypotheses, scores, kind = _scored(predictions)
    order = scores.argsort(descending=True, stable=True).tolist()
    loudest = float(hypotheses.abs().max())
    gain = 1.0 if loudest < 1 else 0.99 / loudest
    outputs = []
    for place, index in enumerate(order, start=1):
        name = f"{Path(recording).stem}-{place}.wav"
        write_audio(Path(out) / name, (gain * hypotheses[index]).numpy(), sample_rate)
        outputs.append({"file": name, "output": index, "score": float(scores[index])})
    # Any format, rate and number of channels came in; what is compared with the outputs is like them.
    heard = f"{Path(recording).stem}-mixture.wav"
    write_audio(Path(out) / heard, gain * mixture[0].numpy(), sample_rate)
    result = {
        "recording": str(recording),
        "seconds": mixture.shape[-1] / sample_rate,
        "sample_rate": sample_rate,
        "gain": gain,
        "ordered_by": kind,
        "mixture": heard,
        "outputs": outputs,
    }
    write_atomically(Path(out) / "separation.json", json.dumps(result, indent=1) + "\n")
    return result


def _scored(predictions: Predictions) -> tuple[Tensor, Tensor, str]:
    """Return waveforms [outputs, length], a number for each that sums to 1, and what it is."""
    hypotheses = predictions.hypotheses[0].float().cpu()
    if predictions.score_logits is not None:
        return hypotheses, normalized_scores(predictions.score_logits[0].float().cpu()), "score"
    energy = hypotheses.square().sum(dim=-1)
    return hypotheses, energy / energy.sum().clamp_min(torch.finfo(energy.dtype).tiny), "energy"
