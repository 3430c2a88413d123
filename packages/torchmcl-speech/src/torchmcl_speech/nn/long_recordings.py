"""Separation of recordings of any length, at once or as a stream, in overlapping chunks with consistent outputs."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl import PIT, Predictions, checks, pairwise_neg_si_sdr
from torchmcl.errors import bad_value

__all__ = ["StreamingSeparator", "separate_long"]


class StreamingSeparator:
    """Separate a stream in constant memory and with a bounded delay.

    A separator may return the speakers in a different order in each chunk. The outputs of each chunk are therefore
    reordered to match the previous chunk, by the one-to-one assignment with the best SI-SDR in the overlap, where the
    two are cross-faded. Outputs trained on a scale-invariant cost have
    no defined level, so each is scaled to explain as much of the mixture as possible.

    Push any number of samples; the returned outputs are final. The result does not depend on how the
    samples were divided, and is that of `separate_long`. Use it under `torch.inference_mode()`.

    Args:
        model: takes [batch, length], returns `Predictions`.
        chunk: samples in a chunk; 10 s at 8 kHz by default.
        overlap: samples that two chunks share; half a chunk by default, which must be long
            enough to tell the speakers apart.
        fade: samples at the end of the overlap in which a chunk takes over from the one before; the whole
            overlap by default. A short fade reduces the delay; a large reduction requires more chunks.

    Example:
        >>> def halves(mixture):  # a separator that gives the halves of the sum
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
        self._heard: Tensor | None = None  # the samples that later chunks still need, starting at `_heard_from`
        self._heard_from = self._heard_to = 0
        self._last: Tensor | None = None  # the outputs of the last chunk, [_last_from, _last_to)
        self._last_from = self._last_to = 0
        self._given = 0  # number of final samples that were returned
        self._logits: Tensor | None = None  # of the chunks, added up with their weights
        self._weight = torch.zeros(())

    @property
    def delay(self) -> int:
        """The maximum delay, in samples, until the outputs for a sample are final."""
        return self.chunk - self.overlap + self.fade

    @property
    def score_logits(self) -> Tensor | None:
        """The mean score logits of the chunks so far, [batch, outputs]; None for a model without scores.

        Chunks are weighted by the energy of the output in them, so that a person who speaks only briefly still counts
        as a voice.
        """
        return None if self._logits is None else self._logits / self._weight

    def push(self, samples: Tensor) -> Tensor:
        """Process the next samples [batch, length]; return the final outputs [batch, outputs, n].

        Until the first chunk is complete there are none: [batch, 0, 0].
        """
        if samples.ndim != 2:
            rule, advice = "have shape [batch, length]", "A single recording is samples.unsqueeze(0)."
            raise ValueError(bad_value("StreamingSeparator", "samples", rule, tuple(samples.shape), advice))
        if self._heard is not None and len(samples) != len(self._heard):
            rule = f"have a batch of {len(self._heard)} as before"
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
        """Return the outputs of the remaining samples, and reset for another recording.

        The last chunk is also a full one, if there are enough samples, with a larger overlap. `score_logits` remain
        available.

        Raises:
            ValueError: if no sample was pushed.
        """
        if self._heard is None or self._heard_to == 0:
            raise ValueError(bad_value("StreamingSeparator", "samples", "be pushed before the end", "none"))
        if self._last is not None and self._last_to == self._heard_to:
            rest = self._last[..., self._given - self._last_from :]
        else:
            rest = self._separated(max(self._heard_to - self.chunk, 0), self._heard_to, 0)
        logits, weight = self._logits, self._weight
        self._begin()
        self._logits, self._weight = logits, weight  # until the next recording begins
        return rest

    def _separated(self, start: int, stop: int, kept: int) -> Tensor:
        """Separate a chunk and join it to the last one; return the final part: all but the last `kept` samples."""
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
            # If everything is silent, any nonzero weight works.
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
    """Return the outputs for a long recording, in overlapping chunks as in `StreamingSeparator`.

    Args:
        model: takes [batch, length], returns `Predictions`.
        waveform: [batch, length]
        chunk: samples in a chunk; 10 s at 8 kHz by default.
        overlap: samples that two chunks share; half a chunk by default.

    Returns:
        Predictions with hypotheses [batch, outputs, length], on the device of the waveform, and the mean score logits
        of the chunks, weighted by the energy of the output in them.

    Example:
        >>> def halves(mixture):  # a separator that gives the halves of the sum
        ...     return Predictions(torch.stack([mixture / 2, mixture / 2], dim=1))
        >>> separate_long(halves, torch.randn(1, 1000), chunk=300).hypotheses.shape
        torch.Size([1, 2, 1000])
    """
    stream = StreamingSeparator(model, chunk=chunk, overlap=overlap)
    first = stream.push(waveform)
    rest = stream.finish()
    return Predictions(torch.cat([first, rest], dim=-1) if first.numel() else rest, stream.score_logits)


def _order_of(hypotheses: Tensor, before: Tensor) -> Tensor:
    """Return the permutation [batch, outputs, outputs] that puts `hypotheses` into the order of `before`."""
    cost = pairwise_neg_si_sdr(hypotheses=hypotheses, targets=before)
    return PIT()(cost).to(hypotheses.dtype)


def _at_level_of(mixture: Tensor, hypotheses: Tensor) -> Tensor:
    """Return the outputs, each scaled to best fit the mixture."""
    mixture = mixture.unsqueeze(-2)
    energy = hypotheses.square().sum(dim=-1, keepdim=True)
    explained = (mixture * hypotheses).sum(dim=-1, keepdim=True)
    return hypotheses * torch.where(energy > 0, explained / energy.where(energy > 0, 1), 0)
