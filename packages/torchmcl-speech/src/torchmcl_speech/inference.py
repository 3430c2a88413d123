"""Separation of a recording in constant memory: reading, resampling and separating it chunk by chunk."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import checks
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl_speech.counting import count_probabilities, score_temperature
from torchmcl_speech.data.audio import SILENCE, BadAudio, Resampler, audio_blocks, audio_info, check_samples
from torchmcl_speech.evaluate import trained_precision
from torchmcl_speech.nn.long_recordings import StreamingSeparator
from torchmcl_speech.pretrained import load_separator

__all__ = ["CHUNK_SECONDS", "RecordingSeparator"]

CHUNK_SECONDS = 10.0
# Minimum chunk: speakers cannot be distinguished in shorter chunks, and chunks of a few samples would take very long.
_SHORTEST_CHUNK_SECONDS = 0.1
# Overlap of chunks: a few words are enough to match the voices, and a larger overlap would be wasted computation.
_OVERLAP_SECONDS = 1.0


class RecordingSeparator:
    """Separation of one recording with one separator.

    Args:
        recording: Audio file in any format that soundfile reads.
        model: Name of a bundled separator, or folder of a saved model.
        owner: Function or command name at the beginning of messages.
        chunk_seconds: Maximum chunk length; longer recordings are processed in equal chunks, one after another.
        device: Device to compute on; a GPU computes in the precision of the training.

    Raises:
        ValueError: If the recording or the model is unusable, or the chunk is too short to distinguish speakers.
    """

    def __init__(
        self, recording: Path | str, model: Path | str, *, owner: str, chunk_seconds: float, device: str
    ) -> None:
        if not _SHORTEST_CHUNK_SECONDS <= chunk_seconds < math.inf:
            rule = f"be a finite number >= {_SHORTEST_CHUNK_SECONDS}"
            raise ValueError(bad_value(owner, "chunk_seconds", rule, repr(chunk_seconds)))
        checks.available_device(owner, device)
        separator, self.notes = load_separator(model)
        self.recording, self.device, self._owner = recording, device, owner
        self.info, self.model_rate = audio_info(recording), int(self.notes.get("sample_rate", 8000))
        check_samples(recording, self.info.length_at(self.model_rate))
        if self.info.length_at(self.model_rate) < 1:
            length, rate = self.info.length, self.info.sample_rate
            raise BadAudio(f"{recording}: is too short ({length} samples at {rate} Hz). Use a longer recording.")
        #: Number of outputs of the separator.
        self.n_outputs: int = separator.n_outputs  # type: ignore[assignment]
        self.has_scores = separator.score is not None
        longest = max(round(chunk_seconds * self.model_rate), 2)
        overlap = min(round(_OVERLAP_SECONDS * self.model_rate), longest // 2)
        chunk = _even_chunk(self.info.length_at(self.model_rate), longest, overlap)
        self._stream = StreamingSeparator(separator.to(device), chunk=chunk, overlap=overlap)
        self._peak, self._temperature = 0.0, score_temperature(self.notes)

    def pieces(self, *, progress: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of new model inputs [n] and new final outputs [outputs, m]."""
        info, stream = self.info, self._stream
        resample = Resampler(info.sample_rate, self.model_rate)
        block = max(round(stream.chunk / self.model_rate / 2 * info.sample_rate), 1)
        with (
            Progress(math.ceil(info.length / info.sample_rate), "separating", show=progress, unit="s") as bar,
            torch.inference_mode(),
            trained_precision(self.notes, self.device),
        ):
            n_read, shown = 0, 0
            for samples in audio_blocks(self.recording, block):
                n_read += len(samples)
                inputs = torch.from_numpy(resample(samples, last=n_read >= info.length))
                if len(inputs):
                    self._peak = max(self._peak, float(inputs.abs().max()))
                    yield inputs, self._finite(stream.push(inputs.unsqueeze(0).to(self.device)))
                seconds = math.ceil(n_read / info.sample_rate)
                bar.step(seconds - shown)
                shown = seconds
            yield torch.empty(0), self._finite(stream.finish())

    def _finite(self, outputs: Tensor) -> Tensor:
        """Check that outputs [1, outputs, n] are finite, and return them as [outputs, n] on the CPU."""
        outputs = outputs[0].float().cpu()
        if not outputs.isfinite().all():
            advice = "The training diverged, or the file is damaged: use another checkpoint."
            raise ValueError(bad_value(self._owner, "model", "return finite outputs", "NaN or infinity", advice))
        return outputs

    @property
    def is_silent(self) -> bool:
        """Whether the recording is silent."""
        return self._peak < SILENCE

    @property
    def score_logits(self) -> Tensor | None:
        """Calibrated score logits of the whole recording, [outputs]; None for a model without scores."""
        logits = self._stream.score_logits
        if logits is None:
            return None
        return logits[0].float().cpu() / self._temperature

    def speakers(self) -> list[float] | None:
        """Return the probabilities of 0, 1, 2, ... voices; None for a model without scores."""
        logits = self.score_logits
        if logits is None:
            return None
        if self.is_silent:
            return [1.0] + [0.0] * len(logits)
        return count_probabilities(logits).tolist()

    def facts(self) -> dict[str, Any]:
        """Return the attributes of the recording that `separation.json` contains."""
        return {
            "recording": str(Path(self.recording).resolve()),
            "seconds": self.info.length / self.info.sample_rate,
            "sample_rate": self.info.sample_rate,
            "n_channels": self.info.n_channels,
            "silent": self.is_silent,
        }


def _even_chunk(length: int, longest: int, overlap: int) -> int:
    """Return the length of the smallest number of equal chunks; a short last chunk would waste computation."""
    if length <= longest:
        return longest
    n_chunks = math.ceil((length - overlap) / (longest - overlap))
    return math.ceil((length + (n_chunks - 1) * overlap) / n_chunks)
