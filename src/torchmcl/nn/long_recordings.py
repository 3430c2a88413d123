"""Separating recordings of any length: overlapping pieces, put together in one order."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int, check_tensor
from torchmcl.costs import pairwise_neg_si_sdr
from torchmcl.transport import PIT
from torchmcl.types import Predictions

__all__ = ["separate_long"]


def separate_long(
    model: Callable[[Tensor], Predictions], waveform: Tensor, *, chunk: int = 80_000, overlap: int | None = None
) -> Predictions:
    """Return the outputs for a long recording, taken in overlapping chunks.

    A separator may give the speakers in another order in each chunk. Each chunk is therefore put
    into the order of what came before: the one-to-one assignment with the best SI-SDR where they
    overlap. There the two are faded into each other. Outputs trained on a scale-invariant cost have
    no defined level, so each is scaled to explain as much of the mixture as possible.

    Args:
        model: takes [batch, length], returns `Predictions`.
        waveform: [batch, length]
        chunk: samples in a chunk; 10 s at 8 kHz by default.
        overlap: samples that two chunks share; half a chunk by default, which must be long
            enough to tell the speakers apart.

    Returns:
        Predictions with hypotheses [batch, outputs, length], on the device of the waveform, and the
        mean score logits of the chunks.

    Example:
        >>> def halves(mixture):  # a separator that gives the halves of the sum
        ...     return Predictions(torch.stack([mixture / 2, mixture / 2], dim=1))
        >>> separate_long(halves, torch.randn(1, 1000), chunk=300).hypotheses.shape
        torch.Size([1, 2, 1000])
    """
    check_tensor("separate_long", "waveform", waveform)
    check_positive_int("separate_long", "chunk", chunk)
    overlap = chunk // 2 if overlap is None else overlap
    if not 0 < overlap < chunk:
        raise ValueError(bad_value("separate_long", "overlap", f"lie between 0 and the chunk of {chunk}", overlap))
    if waveform.ndim != 2:
        raise ValueError(bad_value("separate_long", "waveform", "have shape [batch, length]", tuple(waveform.shape)))
    done = waveform.new_empty(0)
    end = 0
    logits: list[Tensor] = []
    for start, stop in _pieces(waveform.shape[-1], chunk, chunk - overlap):
        piece = waveform[:, start:stop]
        hypotheses, score_logits = model(piece)
        hypotheses = _at_level_of(piece, hypotheses)
        if start == 0:
            done = hypotheses.new_zeros(*hypotheses.shape[:-1], waveform.shape[-1])
            done[..., :stop] = hypotheses
        else:
            order = _order_of(hypotheses[..., : end - start], done[..., start:end])
            hypotheses = order @ hypotheses
            score_logits = None if score_logits is None else (order @ score_logits.unsqueeze(-1)).squeeze(-1)
            fade = torch.linspace(0, 1, end - start + 2, device=hypotheses.device)[1:-1].to(hypotheses.dtype)
            done[..., start:end] = torch.lerp(done[..., start:end], hypotheses[..., : end - start], fade)
            done[..., end:stop] = hypotheses[..., end - start :]
        end = stop
        if score_logits is not None:
            logits.append(score_logits)
    return Predictions(done, torch.stack(logits).mean(dim=0) if logits else None)


def _pieces(length: int, chunk: int, hop: int) -> Iterator[tuple[int, int]]:
    """Return where the chunks begin and end; the last one is full too, and overlaps more."""
    for start in range(0, max(length - chunk, 0), hop):
        yield start, start + chunk
    yield max(length - chunk, 0), length


def _order_of(hypotheses: Tensor, before: Tensor) -> Tensor:
    """Return the permutation [batch, outputs, outputs] that puts `hypotheses` into the order of `before`."""
    cost = pairwise_neg_si_sdr(hypotheses=hypotheses, targets=before)
    return PIT()(cost).to(hypotheses.dtype)


def _at_level_of(mixture: Tensor, hypotheses: Tensor) -> Tensor:
    """Return each output times the number that brings it closest to the mixture."""
    mixture = mixture.unsqueeze(-2)
    energy = hypotheses.square().sum(dim=-1, keepdim=True)
    explained = (mixture * hypotheses).sum(dim=-1, keepdim=True)
    return hypotheses * torch.where(energy > 0, explained / energy.where(energy > 0, 1), 0)
