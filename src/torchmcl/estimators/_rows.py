"""The rows of a table in an order of their own, and the split into what trains, what selects and what calibrates.

Rows are ordered by a hash of their content, and copies of a row become one row with a larger weight. So a fit
depends neither on the order of the rows nor on whether a row stands twice or has weight 2, to the last bit.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rows", "Split", "restored", "split_rows", "stored", "target_names"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Weights that add up to more copies than this many times the rows are taken as importance, not as counts.
_MAX_COPIES = 10
# More rows than these settle nothing further: coverage is known to half a point, distortion to a percent or so.
_MAX_CALIBRATING, _MAX_SELECTING = 5_000, 10_000
# So many held-out rows of each kind are kept for partial_fit.
_HELD_OUT_ROWS = 4096
_COLUMNS = ("inputs", "targets", "weights")


@dataclass(frozen=True)
class Rows:
    """Inputs [rows, features], targets [rows, outputs] (or class ids [rows]) and weights [rows]."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.weights)

    def head(self, n: int) -> "Rows":
        """Return the first n rows; they are in the order of a hash, so any n are a fair sample."""
        return Rows(self.inputs[:n], self.targets[:n], self.weights[:n])

    def joined(self, other: "Rows") -> "Rows":
        """Return these rows and then the others."""
        return Rows(
            np.concatenate([self.inputs, other.inputs]),
            np.concatenate([self.targets, other.targets]),
            np.concatenate([self.weights, other.weights]),
        )


class Split(NamedTuple):
    """Three disjoint shares of the rows.

    Attributes:
        train: what the networks are trained on.
        selection: picks the bandwidth, and the epoch and the restart where those are picked.
        calibration: touched by nothing but the calibration of intervals.
    """

    train: Rows
    selection: Rows
    calibration: Rows


def stored(selection: Rows, calibration: Rows) -> dict[str, NDArray[Any]]:
    """Return the latest held-out rows as plain arrays, which can be saved."""
    return {
        f"{name}_{column}": getattr(rows, column)[-_HELD_OUT_ROWS:]
        for name, rows in (("selection", selection), ("calibration", calibration))
        for column in _COLUMNS
    }


def restored(held_out: dict[str, NDArray[Any]]) -> tuple[Rows, Rows]:
    """Return the selecting and the calibrating rows of `stored`."""
    selection, calibration = (
        Rows(*(held_out[f"{name}_{column}"] for column in _COLUMNS)) for name in ("selection", "calibration")
    )
    return selection, calibration


def split_rows(
    inputs: NDArray[Any],
    targets: NDArray[Any],
    weights: NDArray[np.float64] | None,
    *,
    selecting: float,
    calibrating: float,
    seed: int,
    strata: NDArray[Any] | None = None,
) -> Split:
    """Return the shares.

    Args:
        inputs: [rows, features], finite.
        targets: [rows, outputs] or [rows]
        weights: [rows], >= 0; rows of weight 0 are left out.
        selecting: share of the weight that is held out to select, at most 10 000 rows.
        calibrating: share of the weight that is held out to calibrate, at most 5 000 rows.
        seed: another seed gives another split.
        strata: [rows], groups that are split alike (classes); shares too small for a whole row stay in training.
    """
    n_given = len(inputs)
    weights = np.ones(n_given) if weights is None else weights
    keys = _hashed(inputs, targets, seed)
    order = np.argsort(keys, kind="stable")
    order = order[weights[order] > 0]
    keys = keys[order]
    first = np.ones(len(order), dtype=bool)
    for same in np.flatnonzero(keys[1:] == keys[:-1]) + 1:  # equal hashes are almost always equal rows
        left, right = order[same - 1], order[same]
        alike = np.array_equal(inputs[left], inputs[right]) and np.array_equal(targets[left], targets[right])
        first[same] = not alike
    group = np.cumsum(first) - 1
    merged = np.bincount(group, weights[order]).astype(np.float64)
    order, keys = order[first], keys[first]
    rows = Rows(inputs[order], targets[order], merged)
    groups = np.zeros(len(order), dtype=np.int64) if strata is None else strata[order]
    shares = _shares(keys, merged, groups, selecting, calibrating, n_given)
    return Split(*(_part(rows, share) for share in shares))


def _shares(
    keys: NDArray[np.uint64],
    weights: NDArray[np.float64],
    groups: NDArray[Any],
    selecting: float,
    calibrating: float,
    n_given: int,
) -> list[NDArray[np.float64]]:
    """Return the weight of each row in each share; the copies of a row are dealt one by one."""
    n_copies = np.ceil(weights).astype(np.int64)
    row, mass = np.arange(len(keys)), weights
    if weights.max() > 1 and n_copies.sum() <= _MAX_COPIES * n_given:
        row = np.repeat(row, n_copies)
        copy = np.arange(len(row)) - np.repeat(np.cumsum(n_copies) - n_copies, n_copies)
        mass = np.minimum(weights[row] - copy, 1.0)
        keys = _mixed(keys[row] + copy.astype(np.uint64) * _GOLDEN)
        groups = groups[row]
    held_out = np.array([calibrating, selecting])
    bounds = np.cumsum(np.minimum(held_out, [_MAX_CALIBRATING / len(row), _MAX_SELECTING / len(row)]))
    order = np.lexsort((keys, groups))
    sums = np.cumsum(mass[order])
    new = np.flatnonzero(np.r_[True, groups[order][1:] != groups[order][:-1]])
    lengths = np.diff(np.r_[new, len(order)])
    before = np.repeat(np.r_[0.0, sums][new], lengths)
    total = np.repeat(sums[np.r_[new[1:], len(order)] - 1] - np.r_[0.0, sums][new], lengths)
    place = (sums - before) / total  # where a copy ends, as a share of its group
    tiny = 1e-9  # a share of exactly one row counts
    share = np.where(place <= bounds[0] + tiny, 2, np.where(place <= bounds[1] + tiny, 1, 0))
    if not (share == 0).any():
        share[:] = 0
    return [
        np.bincount(row[order], mass[order] * (share == part), minlength=len(weights)).astype(np.float64)
        for part in range(3)
    ]


def _part(rows: Rows, weights: NDArray[np.float64]) -> Rows:
    taken = weights > 0
    if taken.all():
        return replace(rows, weights=weights)
    return Rows(rows.inputs[taken], rows.targets[taken], weights[taken])


def _hashed(inputs: NDArray[Any], targets: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row, column by column so that memory stays small."""
    total = np.full(len(inputs), seed, dtype=np.uint64)
    columns = [*inputs.T, *(targets.T if targets.ndim == 2 else [targets])]
    with np.errstate(over="ignore"):
        for number, column in enumerate(columns):
            bits = (column.astype(np.float64) + 0.0).view(np.uint64)  # + 0.0: one bit pattern for zero
            total = _mixed(total ^ _mixed(bits + np.uint64(number) * _GOLDEN + _GOLDEN)) + _GOLDEN
    return total


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 mix of whole numbers."""
    with np.errstate(over="ignore"):
        number = (number ^ (number >> np.uint64(30))) * _MIX_1
        number = (number ^ (number >> np.uint64(27))) * _MIX_2
        return number ^ (number >> np.uint64(31))


def target_names(y: Any) -> list[str] | None:
    """Return the column names of a data frame or series, None where there are none."""
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    name = getattr(y, "name", None)
    return [name] if isinstance(name, str) and name else None
