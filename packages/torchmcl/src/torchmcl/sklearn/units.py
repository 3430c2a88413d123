"""Identity of rows: hashes of their contents, copies, and units that a split keeps together."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from torchmcl.sklearn.copies import coincide_by_chance

__all__ = ["are_new", "hashed", "keys_of", "rows_and_units", "units_of"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Weights are numbers of rows if they are integers, or multiples of the smallest one divided by at most this; they stand
# for this many rows at most.
_MOST_PARTS, _ROUNDING, _MOST_ROWS = 10, 1e-6, 100_000


def units_of(inputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
    """Return the unit of each row, [rows]: equal numbers for copies only.

    Args:
        inputs: [rows, features]; NaN where a value is missing.
        targets: [rows, outputs] or [rows]
    """
    keys = hashed(inputs, targets, 0)
    order = np.argsort(keys, kind="stable")
    first = are_new(inputs, targets, keys, order)
    heads, cells = order[first], np.cumsum(first) - 1
    if len(heads) == len(order):
        return np.arange(len(order))
    apart = coincide_by_chance(_columns(inputs[heads], targets[heads]), np.bincount(cells))[cells]
    units = np.empty(len(order), dtype=np.int64)
    units[order] = np.where(apart, len(heads) + np.arange(len(order)), cells)
    return units


def _columns(inputs: NDArray[Any], targets: NDArray[Any]) -> list[NDArray[Any]]:
    return [*inputs.T, *(targets.T if targets.ndim == 2 else [targets])]


def are_new(
    inputs: NDArray[Any], targets: NDArray[Any], keys: NDArray[np.uint64], order: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which of the ordered rows differ from the row before."""
    first = np.ones(len(order), dtype=bool)
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]]) + 1  # equal hashes are almost always equal rows
    left, right = order[same - 1], order[same]
    columns = targets if targets.ndim == 2 else targets[:, None]
    first[same] = _differ(inputs[left], inputs[right]) | _differ(columns[left], columns[right])
    return first


def _differ(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where rows differ; two missing values (NaN) are the same."""
    differ = (left != right) & ((left == left) | (right == right))
    return np.asarray(differ.any(axis=1))


def rows_and_units(
    rows: tuple[NDArray[Any], NDArray[Any]],
    cells: NDArray[np.int64],
    weights: NDArray[np.float64],
    groups: NDArray[Any] | None,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return, for the rows of the table, the index of the distinct row, the weight, and the unit.

    Args:
        rows: inputs and targets of the different rows.
        cells: [copies], the row that each is a copy of, increasing.
        weights: [copies]
        groups: [copies], labels; None without any.
    """
    counts = _numbers_of_rows(weights)
    totals = np.bincount(cells, counts).astype(np.int64)
    by_chance = coincide_by_chance(_columns(*rows), totals // np.gcd.reduce(totals))
    unit_of = cells if groups is None else _joined_groups(cells, groups, by_chance)
    n_units = int(unit_of.max()) + 1
    pairs, place = np.unique(cells * n_units + unit_of, return_inverse=True)
    cell, unit = pairs // n_units, pairs % n_units
    merged, number = (np.bincount(place.ravel(), each) for each in (weights, counts))
    number = number.astype(np.int64)
    times = np.where(by_chance[cell], number // np.gcd.reduce(number), 1)  # a table that stands twice is one table
    cell, unit, merged = np.repeat(cell, times), np.repeat(unit, times), np.repeat(merged / times, times)
    return np.asarray(cell), np.asarray(merged), np.asarray(np.arange(len(cell)) if groups is None else unit)


def _numbers_of_rows(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of rows per weight: for integers and multiples of one number, the multiple; otherwise 1.

    Only the ratios of the numbers matter.
    """
    smallest = float(weights.min())
    for unit in (1.0, *(smallest / parts for parts in range(1, _MOST_PARTS + 1))):
        exact = weights / unit
        counts = np.rint(exact)
        if counts.min() >= 1 and counts.max() < 1 / _ROUNDING and (np.abs(exact - counts) <= _ROUNDING * exact).all():
            most = max(_MOST_ROWS, len(counts))
            return np.maximum(1, counts * min(1.0, most / counts.sum())).astype(np.int64)
    return np.ones(len(weights), dtype=np.int64)


def _joined_groups(cells: NDArray[np.int64], groups: NDArray[Any], by_chance: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the unit of each copy, [copies]: its group, with all groups that have copies of the same row."""
    labels, group = np.unique(groups, return_inverse=True)
    group = group.ravel()
    size = len(labels) + len(by_chance)
    linked = ~by_chance[cells]
    ends = group[linked], len(labels) + cells[linked]
    _, unit = connected_components(coo_array((np.ones(len(ends[0])), ends), shape=(size, size)), directed=False)
    return np.asarray(unit[: len(labels)][group], dtype=np.int64)


def keys_of(
    cell_keys: NDArray[np.uint64], weights: NDArray[np.float64], unit: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return a distinct hash for each row from its content, and for its unit from the content of all its rows.

    A sum of hashes is as likely to be small for a large unit as for a small one, so that each is held out as often.
    """
    sums, heavy = np.zeros(int(unit.max()) + 1, dtype=np.uint64), np.bincount(unit, weights)
    np.add.at(sums, unit, cell_keys)
    unit_keys = _told_apart(sums, heavy)[unit]
    if len(sums) == len(unit):
        return unit_keys, unit_keys
    return _told_apart(cell_keys, unit_keys), unit_keys


def _told_apart(keys: NDArray[np.uint64], ranks: NDArray[Any]) -> NDArray[np.uint64]:
    """Return new hashes for all but the first of equal ones, in the order of their ranks."""
    order = np.lexsort((ranks, keys))
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ordinal = np.arange(len(keys)) - np.repeat(starts, np.diff(np.r_[starts, len(keys)]))
    apart = np.empty_like(keys)
    with np.errstate(over="ignore"):
        apart[order] = np.where(ordinal == 0, ordered, _mixed(ordered + ordinal.astype(np.uint64) * _GOLDEN))
    return apart


def hashed(inputs: NDArray[Any], targets: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row, column by column so that memory stays small."""
    total = np.full(len(inputs), seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for number, column in enumerate(_columns(inputs, targets)):
            # One bit pattern for zero, and one for missing values.
            numbers = column.astype(np.float64) + 0.0
            numbers[np.isnan(numbers)] = np.nan
            bits = numbers.view(np.uint64)
            total = _mixed(total ^ _mixed(bits + np.uint64(number) * _GOLDEN + _GOLDEN)) + _GOLDEN
    return total


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 mix of integers."""
    with np.errstate(over="ignore"):
        number = (number ^ (number >> np.uint64(30))) * _MIX_1
        number = (number ^ (number >> np.uint64(27))) * _MIX_2
        return number ^ (number >> np.uint64(31))
