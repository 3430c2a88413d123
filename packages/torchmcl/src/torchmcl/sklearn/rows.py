"""Rows of a table in a canonical order, and their split into training, selection and calibration.

Rows are ordered by a hash of their contents, and copies of a row become one row with a larger weight. So a fit
depends neither on the order of the rows nor on whether a row stands twice or has weight 2, to the last bit.

A split deals *units*: a row with all its copies, or a group with all its rows. Calibration is uninformative about fresh
rows if copies of its rows were trained on. Units are dealt by their number and not by their weight, so that each is as
likely as any other to calibrate, as conformal prediction requires.

Equal rows of a coarse table are not copies (see `copies`): each of them is a unit. There a row of weight 2 is two
rows, if all weights are multiples of one number.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl.sklearn.units import are_new, hashed, keys_of, rows_and_units

__all__ = ["Rows", "Split", "fixed_borders", "n_calibrating", "split_rows"]

# More units than these add nothing: coverage is known to half a point, distortion to a percent or so.
_MAX_CALIBRATING, _MAX_SELECTING = 5_000, 10_000
# If the table is large enough, at least this many units calibrate.
_MIN_CALIBRATING, _MOST_SPARED = 19, 1 / 6
# Held-out rows of each kind that are kept for partial_fit.
_HELD_OUT_ROWS = 4096


@dataclass(frozen=True)
class Rows:
    """Inputs [rows, features], targets [rows, outputs] (or class ids [rows]), weights [rows] and units [rows].

    Rows with the same unit are not independent of each other: they belong to one group.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    weights: NDArray[np.float64]
    units: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.weights)

    def take(self, chosen: Any) -> "Rows":
        """Return the rows of an index, a slice or a mask."""
        return Rows(*(column[chosen] for column in vars(self).values()))

    def head(self, n: int) -> "Rows":
        """Return the first n rows, a fair sample because rows are ordered by a hash."""
        return self.take(slice(n))

    @property
    def in_groups(self) -> bool:
        """Whether some rows form a unit."""
        return len(np.unique(self.units)) < len(self)

    def latest(self) -> "Rows":
        """Return the rows to keep for partial_fit."""
        return self.take(slice(-_HELD_OUT_ROWS, None))

    def joined(self, other: "Rows") -> "Rows":
        """Return these rows followed by the others."""
        return Rows(*map(np.concatenate, zip(vars(self).values(), vars(other).values(), strict=True)))


class Split(NamedTuple):
    """Three disjoint shares of the rows.

    Attributes:
        train: rows that the networks are trained on.
        selection: rows that select the bandwidth, and the epoch and the restart where those are selected.
        calibration: used by nothing but the calibration of intervals.
        borders: [2], the hashes below which a unit calibrates, and below which it selects.
        largest: the weight that the weights of the shares are relative to.
    """

    train: Rows
    selection: Rows
    calibration: Rows
    borders: NDArray[np.uint64]
    largest: float

    @property
    def held_out(self) -> tuple[Rows, Rows]:
        """The rows for selection and calibration, with weights comparable across splits."""
        selection, calibration = (
            replace(rows, weights=rows.weights * self.largest) for rows in (self.selection, self.calibration)
        )
        return selection, calibration


def fixed_borders(*, selecting: float, calibrating: float) -> NDArray[np.uint64]:
    """Return borders for shares of all hashes: the same row is always in the same share."""
    return np.array([_hash_at(calibrating), _hash_at(calibrating + selecting)], dtype=np.uint64)


def split_rows(
    inputs: NDArray[Any],
    targets: NDArray[Any],
    weights: NDArray[np.float64] | None,
    *,
    seed: int,
    selecting: float = 0.0,
    calibrating: float = 0.0,
    groups: NDArray[Any] | None = None,
    factors: NDArray[np.float64] | None = None,
    borders: NDArray[np.uint64] | None = None,
) -> Split:
    """Return the shares.

    Args:
        inputs: [rows, features]; NaN where a value is missing.
        targets: [rows, outputs] or [rows]
        weights: [rows], >= 0; rows of weight 0 are left out. Only their ratios matter: the largest becomes 1.
        seed: another seed gives another split.
        selecting: share of the units that is held out to select, at most 10 000.
        calibrating: share of the units that is held out to calibrate, see `n_calibrating`.
        groups: [rows], labels of rows that belong together, and so into the same share.
        factors: [rows], of the weights, the same for equal rows: how much a row counts, not how often it occurs.
        borders: of another split, to put the same rows into the same shares again, instead of `selecting` and
            `calibrating`. There may be nothing left to train on then.
    """
    weights = np.ones(len(inputs)) if weights is None else weights
    keys = hashed(inputs, targets, seed)
    order = np.argsort(keys, kind="stable")
    order = order[(weights if factors is None else weights * factors)[order] > 0]
    first = are_new(inputs, targets, keys, order)
    heads = order[first]
    cell, merged, unit = rows_and_units(
        (inputs[heads], targets[heads]), np.cumsum(first) - 1, weights[order], None if groups is None else groups[order]
    )
    row_keys, unit_keys = keys_of(keys[heads][cell], merged, unit)
    place = np.argsort(row_keys, kind="stable")
    chosen, merged, unit_keys = heads[cell[place]], merged[place], unit_keys[place]
    merged = merged if factors is None else merged * factors[chosen]
    largest = float(merged.max())
    # Rounded: the last digits differ where all weights were multiplied by a constant before.
    relative = (merged / largest).astype(np.float32).astype(np.float64)
    rows = Rows(inputs[chosen], targets[chosen], relative, unit_keys.view(np.int64))
    if borders is None:
        borders = _borders(np.unique(unit_keys), selecting, calibrating)
    calibrates, selects = unit_keys < borders[0], (unit_keys >= borders[0]) & (unit_keys < borders[1])
    return Split(rows.take(~calibrates & ~selects), rows.take(selects), rows.take(calibrates), borders, largest)


def _borders(keys: NDArray[np.uint64], selecting: float, calibrating: float) -> NDArray[np.uint64]:
    """Return the borders of units for the requested shares; at least one unit is for training."""
    n_units = len(keys)
    shares = np.cumsum([n_calibrating(n_units, calibrating) / n_units, min(selecting, _MAX_SELECTING / n_units)])
    n_held_out = np.floor(n_units * (shares + 1e-9)).astype(np.int64)  # a share of exactly one unit counts
    return keys[n_held_out] if n_held_out[1] < n_units else np.zeros(2, dtype=np.uint64)


def n_calibrating(n_units: int, share: float) -> int:
    """Return the number of calibration units: 9, 19, 29 ... for a share of all, and a few more in a small table.

    The quantile of n scores stands at a multiple of 1 / (n + 1): with these numbers 90 % sets hold 90 %, and not the
    next multiple above. With fewer than 9 there are none.
    """
    if share == 0:
        return 0
    wanted = max(share * n_units, min(_MIN_CALIBRATING, _MOST_SPARED * n_units))
    n = min(int(wanted + 1e-9), _MAX_CALIBRATING)
    return (n + 1) // 10 * 10 - 1 if n >= 9 else n


def _hash_at(share: float) -> int:
    return min(round(share * 2**64), 2**64 - 1)
