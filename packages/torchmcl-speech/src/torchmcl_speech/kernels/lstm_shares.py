"""Partition of the steps of the recurrences in `lstm_hopper` among the multiprocessors.

The steps of a tile of sequences run one after another, so whole tiles use the last round badly: 2.1 rounds take as
long as 3. Here, the steps of all tiles are concatenated and divided into equal shares, each at least as long as a tile.
If a boundary divides a tile, the share after the boundary processes the first steps of the tile before all other work,
and the share before the boundary processes the remaining steps after all other work. The first steps are finished long
before the remaining steps begin, and only the state is passed on.
"""

import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from torchmcl_speech.kernels.lstm_layouts import barrier

__all__ = ["Shares", "first_tile", "hand_over", "handed_over", "last_tile", "shares_of", "steps_of", "take_over"]


class Shares(NamedTuple):
    """Numbers of programs and tiles per direction, and number of steps per program."""

    n_programs: int
    n_tiles: int
    n_steps: int


@functools.cache
def shares_of(n_sequences: int, n_steps: int, tile: int, device: torch.device) -> Shares:
    """Return the shares of a recurrence in both directions.

    Args:
        n_sequences: Number of sequences.
        n_steps: Number of steps per sequence.
        tile: Number of sequences per tile.
        device: Device of the recurrence.
    """
    n_tiles = triton.cdiv(n_sequences, tile)
    n_at_once = max(1, torch.cuda.get_device_properties(device).multi_processor_count // 2)
    n_programs = min(n_tiles, n_at_once)
    return Shares(n_programs, n_tiles, max(n_steps, triton.cdiv(n_tiles * n_steps, n_programs)))


def handed_over(shares: Shares, tile: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Allocate memory for the states that are passed between shares, and for their flags."""
    states = torch.empty(2, shares.n_programs, 2, 128, tile, dtype=torch.float32, device=device)
    return states, torch.zeros(2, shares.n_programs, dtype=torch.int32, device=device)


@gluon.jit
def first_tile(share, each, n_steps):  # type: ignore[no-untyped-def]
    """Return the index of the first tile that contains steps of a share."""
    return share * each // n_steps


@gluon.jit
def last_tile(share, each, n_steps, n_tiles):  # type: ignore[no-untyped-def]
    """Return the index after the last tile that contains steps of a share."""
    return (gl.minimum((share + 1) * each, n_tiles * n_steps) + n_steps - 1) // n_steps


@gluon.jit
def steps_of(tile, share, each, n_steps):  # type: ignore[no-untyped-def]
    """Return the first step and the end of the half-open range of steps of a share in a tile."""
    start = gl.maximum(tile * n_steps, share * each)
    n = gl.minimum((tile + 1) * n_steps, (share + 1) * each) - start
    first = gl.where(start > tile * n_steps, 0, n_steps - n)
    return first, first + n


@gluon.jit
def _place(states, slot, N: gl.constexpr, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    row = gl.arange(0, 128, layout=gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, N, layout=gl.SliceLayout(0, layout))[None, :]
    return states + slot * (2 * 128 * N) + row * N + column


@gluon.jit
def hand_over(states, flags, slot, one, other, N: gl.constexpr, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """Pass the state of a tile to the share that continues it."""
    place = _place(states, slot, N, layout)
    gl.store(place, one)
    gl.store(place + 128 * N, other)
    barrier()
    gl.atomic_xchg(flags + slot, 1, sem="release")


@gluon.jit
def take_over(states, flags, slot, N: gl.constexpr, layout: gl.constexpr):  # type: ignore[no-untyped-def]
    """Wait for the state of a tile and return it."""
    while gl.atomic_cas(flags + slot, 1, 0, sem="acquire") == 0:
        pass
    barrier()
    place = _place(states, slot, N, layout)
    # Read from the cache that all multiprocessors share.
    return gl.load(place, cache_modifier=".cg"), gl.load(place + 128 * N, cache_modifier=".cg")
