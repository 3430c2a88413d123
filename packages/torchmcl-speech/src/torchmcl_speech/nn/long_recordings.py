"""Separation of recordings of any length, whole or as a stream, in overlapping chunks with consistent outputs."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl import PIT, Predictions, checks, pairwise_neg_si_sdr
from torchmcl.errors import bad_value

__all__ = ["StreamingSeparator", "separate_long"]


class StreamingSeparator:
    """Separator of a stream, with constant memory and a bounded delay.

    A separator may return the speakers in a different order in each chunk. The outputs of each chunk are therefore
    reordered to match the previous chunk, by the one-to-one assignment with the best SI-SDR in the overlap, in which
    the two chunks are cross-faded. Outputs of a model that was trained on a scale-invariant cost have no defined level,
    so each output is scaled to explain as much of the mixture as possible.

    `push` accepts any number of samples and returns final outputs. The result does not depend on how the samples are
    divided, and equals the result of `separate_long`. Use this class under `torch.inference_mode()`.

    Args:
        model: Separator that maps [batch, length] to `Predictions`.
        chunk: Number of samples per chunk; 10 s at 8 kHz by default.
        overlap: Number of samples by which two chunks overlap; half a chunk by default. It must be long enough to
            distinguish the speakers.
        fade: Number of samples at the end of the overlap in which consecutive chunks are cross-faded; the whole overlap
            by default. A short fade reduces the delay; a large reduction requires more chunks.

    Example:
        >>> def halves(mixture):  # a separator with two equal outputs
        ...     return Predictions(torch.stack([mixture / 2, mixture / 2], dim=1))
        >>> stream = StreamingSeparator(halves, chunk=300, overlap=200, fade=50)
        >>> stream.delay
        150
        >>> [stream.push(samples).shape[-1] for samples in torch.randn(1, 600).split(200, dim=-1)]
        [0, 350, 200]
        >>> stream.finish().shape
        torch.Size([1, 2, 50])
    """

    def __init__(
        self,
        model: Callable[[Tensor], Predictions],
        *,
        chunk: int = 80_000,
        overlap: int | None = None,
        fade: int | None = None,
    ) -> None:
        checks.check_positive_int("StreamingSeparator", "chunk", chunk)
        overlap = chunk // 2 if overlap is None else overlap
        if not 0 < overlap < chunk:
            rule = f"lie between 0 and the chunk of {chunk}"
            raise ValueError(bad_value("StreamingSeparator", "overlap", rule, overlap))
        fade = overlap if fade is None else fade
        if not 0 < fade <= overlap:
            rule = f"be positive and at most the overlap of {overlap}"
            raise ValueError(bad_value("StreamingSeparator", "fade", rule, fade))
        self.model, self.chunk, self.overlap, self.fade = model, chunk, overlap, fade
        self._begin()

    def _begin(self) -> None:
        self._heard: Tensor | None = None  # samples for later chunks, starting at `_heard_from`
        self._heard_from = self._heard_to = 0
        self._last: Tensor | None = None  # outputs of the last chunk, [_last_from, _last_to)
        self._last_from = self._last_to = 0
        self._given = 0  # number of returned final samples
        self._logits: Tensor | None = None  # weighted sum of the score logits of the chunks
        self._weight = torch.zeros(())

    @property
    def delay(self) -> int:
        """Maximum delay in samples until the outputs for a sample are final."""
        return self.chunk - self.overlap + self.fade

    @property
    def score_logits(self) -> Tensor | None:
        """Mean score logits of the chunks so far, [batch, outputs]; None for a model without scores.

        Chunks are weighted by the energy of the output, so that a person who speaks only briefly still counts as a
        voice.
        """
        return None if self._logits is None else self._logits / self._weight

    def push(self, samples: Tensor) -> Tensor:
        """Process the next samples [batch, length] and return the new final outputs [batch, outputs, n].

        Before the first chunk is complete, the result has the shape [batch, 0, 0].
        """
        if samples.ndim != 2:
            rule, advice = "have shape [batch, length]", "A single recording is samples.unsqueeze(0)."
            raise ValueError(bad_value("StreamingSeparator", "samples", rule, tuple(samples.shape), advice))
        if self._heard is not None and len(samples) != len(self._heard):
            rule = f"have the batch size {len(self._heard)} of the earlier samples"
            raise ValueError(bad_value("StreamingSeparator", "samples", rule, tuple(samples.shape)))
        if self._heard is None:
            self._logits, self._weight = None, torch.zeros(())
        self._heard = samples if self._heard is None else torch.cat([self._heard, samples], dim=-1)
        self._heard_to += samples.shape[-1]
        finished = []
        start = 0 if self._last is None else self._last_from + self.chunk - self.overlap
        while start + self.chunk <= self._heard_to:
            finished.append(self._separated(start, start + self.chunk, self.fade))
            start += self.chunk - self.overlap
        self._forget(max(min(start, self._heard_to - self.chunk), 0))
        return torch.cat(finished, dim=-1) if finished else samples.new_zeros(len(samples), 0, 0)

    def finish(self) -> Tensor:
        """Return the outputs of the remaining samples, and reset the separator for another recording.

        If there are enough samples, the last chunk has the full length and a larger overlap. `score_logits` remains
        available.

        Raises:
            ValueError: If no sample was pushed.
        """
        if self._heard is None or self._heard_to == 0:
            raise ValueError(bad_value("StreamingSeparator", "samples", "be pushed before `finish`", "none"))
        if self._last is not None and self._last_to == self._heard_to:
            rest = self._last[..., self._given - self._last_from :]
        else:
            rest = self._separated(max(self._heard_to - self.chunk, 0), self._heard_to, 0)
        logits, weight = self._logits, self._weight
        self._begin()
        self._logits, self._weight = logits, weight  # until the next recording begins
        return rest

    def _separated(self, start: int, stop: int, kept: int) -> Tensor:
        """Separate a chunk and join it to the last chunk; return all new samples except the last `kept` ones."""
        assert self._heard is not None
        piece = self._heard[:, start - self._heard_from : stop - self._heard_from]
        hypotheses, score_logits = self.model(piece)
        hypotheses = _at_level_of(piece, hypotheses)
        if self._last is not None:
            shared = self._last_to - start
            before = self._last[..., start - self._last_from :]
            order = _order_of(hypotheses[..., :shared], before)
            hypotheses = order @ hypotheses
            score_logits = None if score_logits is None else (order @ score_logits.unsqueeze(-1)).squeeze(-1)
            fixed = self._given - start
            fade = torch.linspace(0, 1, shared - fixed + 2, device=hypotheses.device)[1:-1].to(hypotheses.dtype)
            faded = torch.lerp(before[..., fixed:], hypotheses[..., fixed:shared], fade)
            hypotheses = torch.cat([before[..., :fixed], faded, hypotheses[..., shared:]], dim=-1)
        self._last, self._last_from, self._last_to = hypotheses, start, stop
        if score_logits is not None:
            # For silence, any positive weight is valid.
            weight = hypotheses.float().square().sum(dim=-1).clamp_min(1e-30)
            self._logits = weight * score_logits + (0 if self._logits is None else self._logits)
            self._weight = self._weight.to(weight.device) + weight
        final = hypotheses[..., self._given - start : stop - kept - start]
        self._given = stop - kept
        return final

    def _forget(self, start: int) -> None:
        assert self._heard is not None
        if start > self._heard_from:
            self._heard = self._heard[:, start - self._heard_from :].clone()
            self._heard_from = start


def separate_long(
    model: Callable[[Tensor], Predictions], waveform: Tensor, *, chunk: int = 80_000, overlap: int | None = None
) -> Predictions:
    """Separate a long recording in overlapping chunks, as in `StreamingSeparator`.

    Args:
        model: Separator that maps [batch, length] to `Predictions`.
        waveform: Recording [batch, length].
        chunk: Number of samples per chunk; 10 s at 8 kHz by default.
        overlap: Number of samples by which two chunks overlap; half a chunk by default.

    Returns:
        Predictions with hypotheses [batch, outputs, length] on the device of the waveform, and the mean score logits of
        the chunks, weighted by the energy of the output.

    Example:
        >>> def halves(mixture):  # a separator with two equal outputs
        ...     return Predictions(torch.stack([mixture / 2, mixture / 2], dim=1))
        >>> separate_long(halves, torch.randn(1, 1000), chunk=300).hypotheses.shape
        torch.Size([1, 2, 1000])
    """
    stream = StreamingSeparator(model, chunk=chunk, overlap=overlap)
    first = stream.push(waveform)
    rest = stream.finish()
    return Predictions(torch.cat([first, rest], dim=-1) if first.numel() else rest, stream.score_logits)


def _order_of(hypotheses: Tensor, before: Tensor) -> Tensor:
    """Compute the permutation [batch, outputs, outputs] that orders `hypotheses` like `before`."""
    cost = pairwise_neg_si_sdr(hypotheses=hypotheses, targets=before)
    return PIT()(cost).to(hypotheses.dtype)


def _at_level_of(mixture: Tensor, hypotheses: Tensor) -> Tensor:
    """Scale each output to the best fit of the mixture."""
    mixture = mixture.unsqueeze(-2)
    energy = hypotheses.square().sum(dim=-1, keepdim=True)
    explained = (mixture * hypotheses).sum(dim=-1, keepdim=True)
    return hypotheses * torch.where(energy > 0, explained / energy.where(energy > 0, 1), 0)
