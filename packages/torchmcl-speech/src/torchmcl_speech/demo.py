"""Demonstration of speech separation with two bundled recordings, which are mixed and separated."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmcl import PIT, io, pairwise_neg_si_sdr
from torchmcl_speech.data.audio import Samples, read_audio, write_audio
from torchmcl_speech.pretrained import DEFAULT_MODEL, load_separator
from torchmcl_speech.separate import RECORD_FILE, check_replaceable, separate_recording, sound_names

__all__ = ["run_speech_demo"]

_VOICES = Path(__file__).parent / "voices"
_NAMES = ("woman", "man")
_MIXTURE = "demo.wav"
_ATTRIBUTION = (
    "Voices: two readers of LibriSpeech (utterances 5683-32866-0010 and 1320-122617-0031; copyright 2014 Vassil "
    "Panayotov, CC BY 4.0), not in the training data; excerpts, resampled to 8 kHz and leveled."
)


def run_speech_demo(
    out: Path | str,
    model: Path | str = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    overwrite: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Mix two voices, separate them, and write all audio files and `separation.json` into a folder.

    Args:
        out: Folder for the files.
        model: Name of a bundled separator, or folder of a saved model.
        device: Device to compute on.
        overwrite: Whether to replace files that no earlier demonstration wrote.
        progress: Whether to show a progress bar.

    Returns:
        Contents of `separation.json`: the result of `separate_recording`, and `references` with the output of each true
        voice and its SI-SDR in dB before and after the separation.

    Raises:
        ValueError: If the folder has other files of the same names.
    """
    out = Path(out)
    separator = load_separator(model)[0]
    if not overwrite:
        sounds = [*sound_names(_MIXTURE, separator.n_outputs), *map(_true_voice, _NAMES)]  # type: ignore[arg-type]
        check_replaceable("run_speech_demo", out, _MIXTURE, sounds)
    voices = [read_audio(_VOICES / f"{name}.flac") for name in _NAMES]
    length, rate = min(len(voice) for voice in voices), 8000
    sources: Samples = np.stack([voice[:length] for voice in voices])
    n_voices = len(voices) if separator.score is not None else None  # by default, unlikely voices are left out
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / _MIXTURE
        write_audio(recording, sources.sum(axis=0), rate)
        result = separate_recording(
            recording, out, model, n_voices=n_voices, device=device, overwrite=True, progress=progress
        )
    for name, source in zip(_NAMES, sources, strict=True):
        write_audio(out / _true_voice(name), result["gain"] * source, rate)
    result |= {"recording": _MIXTURE, "references": _references(out, result, sources), "attribution": _ATTRIBUTION}
    io.write_atomically(out / RECORD_FILE, json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


def _true_voice(name: str) -> str:
    return f"demo-true-{name}.wav"


def _references(out: Path, result: dict[str, Any], sources: Samples) -> list[dict[str, Any]]:
    """Compute the result for each true voice under the best one-to-one assignment."""
    outputs = torch.from_numpy(np.stack([read_audio(out / output["file"]) for output in result["outputs"]]))
    targets = torch.from_numpy(sources)
    cost = pairwise_neg_si_sdr(hypotheses=outputs, targets=targets)  # [voices, outputs]
    before = -pairwise_neg_si_sdr(hypotheses=targets.sum(dim=0, keepdim=True), targets=targets)[:, 0]
    chosen = PIT()(cost).argmax(dim=-1)
    return [
        {
            "name": name,
            "file": _true_voice(name),
            "output": result["outputs"][int(chosen[place])]["output"],
            "before": float(before[place]),
            "after": -float(cost[place, chosen[place]]),
        }
        for place, name in enumerate(_NAMES)
    ]
