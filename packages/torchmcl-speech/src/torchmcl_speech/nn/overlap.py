"""Splitting a sequence into overlapping segments, and overlap-add.

The encoder, the two paths and the decoder of `DPRNN` all need it, with different sizes. Segments
are made of whole hops, so both directions are a few shifted views and no gather.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchmcl._checks import bad_value, check_positive_int

__all__ = ["overlap_add", "segment"]


def segment(frames: Tensor, size: int, hop: int) -> Tensor:
    """Return the segments of a sequence that ends with a full segment.

    Args:
        frames: [..., time, features], with time = size + hop * (any integer >= 0).
        size: length of a segment, a multiple of `hop`.
        hop: distance between the beginnings of two segments.

    Returns:
        Segments [..., segments, size, features], contiguous.

    Example:
        >>> segment(torch.arange(8.0).unsqueeze(-1), size=4, hop=2).squeeze(-1)
        tensor([[0., 1., 2., 3.],
                [2., 3., 4., 5.],
                [4., 5., 6., 7.]])
    """
    n_hops = hops_in("segment", size, hop)
    time = frames.shape[-2]
    if time < size or (time - size) % hop:
        rule = f"have {size} + {hop} * n frames on the axis before the last"
        raise ValueError(bad_value("segment", "frames", rule, tuple(frames.shape), "Pad it first."))
    hops = frames.unflatten(-2, (-1, hop))  # [..., hops, hop, features]
    n_segments = hops.shape[-3] - n_hops + 1
    return torch.cat([hops.narrow(-3, shift, n_segments) for shift in range(n_hops)], dim=-2)


def overlap_add(segments: Tensor, hop: int) -> Tensor:
    """Return the overlap-add of segments; the adjoint of `segment`.

    Args:
        segments: [..., segments, size, features]
        hop: distance between the beginnings of two segments; `size` is a multiple of it.

    Returns:
        [..., time, features] with time = size + hop * (segments - 1). A frame in the middle is the
        sum of size / hop segments.

    Example:
        >>> overlap_add(torch.ones(3, 4, 1), hop=2).squeeze(-1)
        tensor([1., 1., 2., 2., 2., 2., 1., 1.])
    """
    n_hops = hops_in("overlap_add", segments.shape[-2], hop)
    parts = segments.unflatten(-2, (n_hops, hop)).unbind(-3)  # each [..., segments, hop, features]
    shifted = [F.pad(part, (0, 0, 0, 0, shift, n_hops - 1 - shift)) for shift, part in enumerate(parts)]
    total = shifted[0]
    for part in shifted[1:]:
        total = total + part
    return total.flatten(-3, -2)


def hops_in(owner: str, size: int, hop: int) -> int:
    """Return the number of hops per segment, after a check that it divides evenly."""
    check_positive_int(owner, "size", size)
    check_positive_int(owner, "hop", hop)
    if size % hop:
        raise ValueError(bad_value(owner, "size", f"be a multiple of the hop {hop}", size))
    return size // hop
