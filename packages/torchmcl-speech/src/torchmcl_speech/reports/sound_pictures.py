"""Pictures of sound without a drawing library: a waveform as SVG, a spectrogram as PNG."""

import struct
import zlib
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Sound", "decibels_over_time", "extremes_over_time", "spectrogram_png", "waveform_path"]

Array = npt.NDArray[np.float64]

# A page is not wider: more columns would not be visible.
_N_COLUMNS = 1000
# In a long recording the mean of this many frames represents a column.
_FRAMES_A_COLUMN = 8
# 32 ms tell the harmonics of most voices apart and still follow syllables.
_WINDOW_SECONDS = 0.032
# Speech that is quieter than the loudest moment by more than this is inaudible.
_RANGE_DB = 70.0
# From silent to loud, each lighter than the one before, so that it reads without colours too.
_SHADES = ("#0c1024", "#35215f", "#7b2a74", "#c8475f", "#f28c4f", "#fdf2c0")


class Sound(Protocol):
    """Samples that need not be in memory: a length, and slices."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, place: slice, /) -> npt.NDArray[np.floating]:
        """Return the samples of a slice without steps."""
        ...


def extremes_over_time(samples: Sound) -> Array:
    """Return the lowest and the highest sample of each column, [2, columns], at most 1000 columns.

    Example:
        >>> extremes_over_time(np.array([0.0, 1.0, -1.0])).tolist()
        [[0.0, 1.0, -1.0], [0.0, 1.0, -1.0]]
    """
    edges = np.linspace(0, len(samples), min(_N_COLUMNS, len(samples)) + 1).astype(int).tolist()
    pieces = [samples[start:stop] for start, stop in pairwise(edges)]
    return np.array([[piece.min() for piece in pieces], [piece.max() for piece in pieces]], dtype=np.float64)


def waveform_path(extremes: Array, peak: float) -> str:
    """Return the SVG path, 1000 wide and 100 high, of the area between the extremes.

    Args:
        extremes: [2, columns], from `extremes_over_time`.
        peak: the value drawn at the upper edge.

    Example:
        >>> waveform_path(extremes_over_time(np.array([0.0, 1.0, -1.0])), peak=1.0)
        'M0 50L500 0L1000 100L1000 100L500 0L0 50Z'
    """
    x = np.linspace(0, 1000, extremes.shape[-1])
    bottoms, tops = 50 - extremes * (50 / peak if peak > 0 else 0.0)
    there = [f"{a:.4g} {b:.4g}" for a, b in zip(x, tops, strict=True)]
    back = [f"{a:.4g} {b:.4g}" for a, b in zip(x[::-1], bottoms[::-1], strict=True)]
    return f"M{'L'.join([*there, *back])}Z"


def decibels_over_time(samples: Sound, sample_rate: int) -> Array:
    """Return the power at each frequency and time in decibels.

    Args:
        samples: [length], of any length.
        sample_rate: samples per second.

    Returns:
        Decibels [frequencies, columns], low frequencies first, at most 1000 columns; silence is -200.
    """
    size = max(2, round(_WINDOW_SECONDS * sample_rate))
    # Half a window of silence on both sides: the first and the last sample are in the middle of one.
    n_wanted = max(1, len(samples) // max(1, size // 4))
    per_column = min(_FRAMES_A_COLUMN, -(-n_wanted // _N_COLUMNS))
    n_columns = min(_N_COLUMNS, n_wanted)
    starts = np.linspace(0, len(samples), n_columns * per_column).astype(int) - size // 2
    window = np.hanning(size + 1)[:-1].astype(np.float32)
    columns = []
    for of_column in starts.reshape(n_columns, per_column):
        frames = np.stack([_frame(samples, int(start), size) for start in of_column]) * window
        columns.append((np.abs(np.fft.rfft(frames)) ** 2).mean(axis=0))
    return 10 * np.log10(np.maximum(np.stack(columns, axis=-1), 1e-20))


def _frame(samples: Sound, start: int, size: int) -> npt.NDArray[np.float32]:
    """Return some samples, with silence outside of the recording."""
    inside = np.asarray(samples[max(start, 0) : max(min(start + size, len(samples)), 0)], dtype=np.float32)
    before = max(-start, 0)
    return np.pad(inside, (before, size - before - len(inside)))


def spectrogram_png(decibels: Array, loudest: float) -> bytes:
    """Return a picture of `decibels_over_time`, low frequencies at the bottom, as PNG.

    Args:
        decibels: [frequencies, columns]
        loudest: the decibels of the lightest color; anything 70 below is black.
    """
    shade = np.clip((decibels - loudest) / _RANGE_DB + 1, 0, 1)
    rows = np.round(255 * shade[::-1]).astype(np.uint8)
    height, width = rows.shape
    stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in _SHADES], dtype=np.float64)
    places = np.linspace(0, len(stops) - 1, 256)
    palette = np.stack([np.interp(places, np.arange(len(stops)), stop) for stop in stops.T], axis=-1)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # each line begins with its filter, none
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _png_part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),  # 8 bits, by palette
            _png_part(b"PLTE", palette.round().astype(np.uint8).tobytes()),
            _png_part(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _png_part(b"IEND", b""),
        )
    )


def _png_part(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
