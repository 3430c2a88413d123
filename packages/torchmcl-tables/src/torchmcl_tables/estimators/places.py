"""Encoded columns in a compact form: bins of a column by the position of its value."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl.sklearn.preprocessing import Encoder, MissingIndicators, PiecewiseLinear, filled

__all__ = ["Places", "dense_inputs", "places", "run_lengths"]


class Places(NamedTuple):
    """Encoded columns; the bins of each column, 1 up to a position and then 0, by that position.

    Attributes:
        dense: [rows, inputs], those without bins.
        lower: [rows, runs], the place on the table of all runs (each has one row more than inputs) below the value.
        between: [rows, runs], how far the value is towards the next place, in [0, 1].
    """

    dense: NDArray[np.float32]
    lower: NDArray[np.int64]
    between: NDArray[np.float32]


def run_lengths(encoder: Encoder) -> tuple[int, ...]:
    """Return the number of bins of each binned column."""
    inner = encoder.encoder if isinstance(encoder, MissingIndicators) else encoder
    if not isinstance(inner, PiecewiseLinear):
        return ()
    return tuple(len(edges) - 1 for edges in inner.edges if len(edges) > 2)


def dense_inputs(encoder: Encoder, rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return the encoded columns without bins."""
    if isinstance(encoder, MissingIndicators):
        inner = dense_inputs(encoder.encoder, filled(rows, encoder.means))
        return np.concatenate([encoder.indicators(rows, np.float32), inner], axis=1)
    scaler = encoder.scaler if isinstance(encoder, PiecewiseLinear) else encoder
    return np.asarray(scaler(rows), dtype=np.float32)


def places(encoder: Encoder, rows: NDArray[Any]) -> Places:
    """Return rows in the compact form."""
    dense = dense_inputs(encoder, rows)
    if isinstance(encoder, MissingIndicators):
        rows, encoder = filled(rows, encoder.means), encoder.encoder
    if not isinstance(encoder, PiecewiseLinear):
        return Places(dense, np.zeros((len(rows), 0), dtype=np.int64), np.zeros((len(rows), 0), dtype=np.float32))
    rows = filled(rows, encoder.scaler.mean)
    binned = [(column, edges) for column, edges in zip(rows.T, encoder.edges, strict=True) if len(edges) > 2]
    lower = np.empty((len(rows), len(binned)), dtype=np.int64)
    between = np.empty((len(rows), len(binned)), dtype=np.float32)
    start = 0
    for run, (column, edges) in enumerate(binned):
        values = column.astype(np.float64)
        place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        between[:, run] = np.clip((values - edges[place]) / np.diff(edges)[place], 0.0, 1.0)
        lower[:, run] = start + place
        start += len(edges)
    return Places(dense, lower, between)
