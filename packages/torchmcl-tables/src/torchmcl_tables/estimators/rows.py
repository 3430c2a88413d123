"""Rows of a table in a canonical order, and their split into training, selection and calibration rows.

Rows are ordered by a hash of their contents, and copies of a row become one row with a larger weight. The result of a
fit therefore depends neither on the order of the rows nor on whether a row occurs twice or has weight 2.

A split assigns *units*: a row with all its copies, or a group with all its rows. If networks were trained on copies of
calibration rows, the calibration would not be valid for new rows. The assignment of a unit is independent of its
weight, so that all units are equally likely to be used for calibration, as conformal prediction requires.

Equal rows of a coarse table are not copies (see `coincide_by_chance`): each of them is a unit. A row of weight 2 in
such a table counts as two rows, if all weights are multiples of one number.

An encoder, fitted to the training rows, converts rows to inputs of a network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Weights count as numbers of rows if they are integers, or multiples of the smallest weight divided by at most this
# number. Relative rounding error of weights, and maximum total number of rows.
_MOST_PARTS, _ROUNDING, _MOST_ROWS = 10, 1e-6, 100_000


def units_of(inputs: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
    """Return the unit of each row as an integer, [rows]; only copies of a row have the same unit.

    Args:
        inputs: Inputs of the rows, [rows, features]; NaN for missing values.
        targets: Targets of the rows, [rows, outputs] or [rows].
    """
    keys = hashed(inputs, targets, 0)
    order = np.argsort(keys, kind="stable")
    first = are_new(inputs, targets, keys, order)
    heads, cells = order[first], np.cumsum(first) - 1
    if len(heads) == len(order):
        return np.arange(len(order))
    if coincide_by_chance(_columns(inputs[heads], targets[heads]), np.bincount(cells)):
        return np.arange(len(order))
    units = np.empty(len(order), dtype=np.int64)
    units[order] = cells
    return units


def _columns(inputs: NDArray[Any], targets: NDArray[Any]) -> list[NDArray[Any]]:
    return [*inputs.T, *(targets.T if targets.ndim == 2 else [targets])]


# Average number of occurrences of distinct rows from which a table may be coarse, and from which it is always coarse.
_OFTEN, _VERY_OFTEN = 2, 10


def coincide_by_chance(columns: Sequence[NDArray[Any]], counts: NDArray[np.int64]) -> bool:
    """Return whether equal rows are separate observations that coincide by chance, instead of copies of one row.

    Copies add no information and belong to the same part of a split. Equal rows of a coarse table, such as passengers
    of the same class, age group and sex, are separate observations. A table is coarse if its rows recur often, and most
    values of each column occur in several distinct rows.

    Args:
        columns: Inputs and targets of the distinct rows, [rows] each; NaN for missing values.
        counts: Number of occurrences of each row, [rows].

    Example:
        >>> coarse, fine = [[0, 0, 1, 1], [0, 1, 0, 1]], [[0.2, 0.5, 0.9, 0.4], [0.8, 0.1, 0.3, 0.7]]
        >>> coincide_by_chance(coarse, np.full(4, 3)), coincide_by_chance(fine, np.full(4, 3))
        (True, False)
    """
    n_distinct = len(counts)
    if counts.sum() < _OFTEN * n_distinct:
        return False
    if counts.sum() >= _VERY_OFTEN * n_distinct:
        return True
    return all(2 * len(np.unique(column)) <= n_distinct for column in columns)


def are_new(
    inputs: NDArray[Any], targets: NDArray[Any], keys: NDArray[np.uint64], order: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return a mask of the ordered rows that differ from the previous row."""
    first = np.ones(len(order), dtype=bool)
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]]) + 1  # equal hashes almost always mean equal rows
    left, right = order[same - 1], order[same]
    columns = targets if targets.ndim == 2 else targets[:, None]
    first[same] = _differ(inputs[left], inputs[right]) | _differ(columns[left], columns[right])
    return first


def _differ(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of differing rows; two missing values (NaN) are equal."""
    differ = (left != right) & ((left == left) | (right == right))
    return np.asarray(differ.any(axis=1))


def rows_and_units(
    rows: tuple[NDArray[Any], NDArray[Any]],
    cells: NDArray[np.int64],
    weights: NDArray[np.float64],
    groups: NDArray[Any] | None,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Merge copies of rows; return the index of the distinct row, the weight, and the unit of each merged row.

    Args:
        rows: Inputs and targets of the distinct rows.
        cells: Index of the distinct row of each copy, increasing, [copies].
        weights: Weight of each copy, [copies].
        groups: Group label of each copy, [copies]; None without groups.
    """
    counts = _numbers_of_rows(weights)
    totals = np.bincount(cells, counts).astype(np.int64)
    by_chance = coincide_by_chance(_columns(*rows), totals // np.gcd.reduce(totals))
    unit_of = cells if groups is None else _joined_groups(cells, groups, by_chance)
    n_units = int(unit_of.max()) + 1
    pairs, place = np.unique(cells * n_units + unit_of, return_inverse=True)
    cell, unit = pairs // n_units, pairs % n_units
    merged, number = (np.bincount(place.ravel(), values) for values in (weights, counts))
    number = number.astype(np.int64)
    if by_chance:
        times = number // np.gcd.reduce(number)  # duplicating the whole table changes nothing
        cell, unit, merged = np.repeat(cell, times), np.repeat(unit, times), np.repeat(merged / times, times)
    return np.asarray(cell), np.asarray(merged), np.asarray(np.arange(len(cell)) if groups is None else unit)


def _numbers_of_rows(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of rows that each weight represents, up to a common factor.

    It is 1 for all rows unless all weights are multiples of one number.
    """
    smallest = float(weights.min())
    for unit in (1.0, *(smallest / parts for parts in range(1, _MOST_PARTS + 1))):
        exact = weights / unit
        counts = np.rint(exact)
        if counts.min() >= 1 and counts.max() < 1 / _ROUNDING and (np.abs(exact - counts) <= _ROUNDING * exact).all():
            most = max(_MOST_ROWS, len(counts))
            return np.maximum(1, counts * min(1.0, most / counts.sum())).astype(np.int64)
    return np.ones(len(weights), dtype=np.int64)


def _joined_groups(cells: NDArray[np.int64], groups: NDArray[Any], by_chance: bool) -> NDArray[np.int64]:
    """Return the unit of each copy, [copies]: its group, merged with all groups that contain copies of the same row."""
    labels, group = np.unique(groups, return_inverse=True)
    group = group.ravel()
    if by_chance:
        return group
    size = len(labels) + int(cells.max()) + 1
    ends = group, len(labels) + cells
    _, unit = connected_components(coo_array((np.ones(len(ends[0])), ends), shape=(size, size)), directed=False)
    return np.asarray(unit[: len(labels)][group], dtype=np.int64)


def keys_of(
    cell_keys: NDArray[np.uint64], weights: NDArray[np.float64], unit: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return a distinct hash of each row, and of its unit, which depends on the content of all rows of the unit.

    The hash of a unit is a sum of hashes. It is uniform for units of all sizes, so that all are held out equally often.
    """
    sums, heavy = np.zeros(int(unit.max()) + 1, dtype=np.uint64), np.bincount(unit, weights)
    np.add.at(sums, unit, cell_keys)
    unit_keys = _distinct_hashes(sums, heavy)[unit]
    if len(sums) == len(unit):
        return unit_keys, unit_keys
    return _distinct_hashes(cell_keys, unit_keys), unit_keys


def _distinct_hashes(keys: NDArray[np.uint64], ranks: NDArray[Any]) -> NDArray[np.uint64]:
    """Make hashes distinct: among equal hashes, all but the first in the order of `ranks` are replaced."""
    order = np.lexsort((ranks, keys))
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ordinal = np.arange(len(keys)) - np.repeat(starts, np.diff(np.r_[starts, len(keys)]))
    apart = np.empty_like(keys)
    with np.errstate(over="ignore"):
        apart[order] = np.where(ordinal == 0, ordered, _mixed(ordered + ordinal.astype(np.uint64) * _GOLDEN))
    return apart


def hashed(inputs: NDArray[Any], targets: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """Compute a 64-bit hash of each row, column by column to save memory."""
    total = np.full(len(inputs), seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for number, column in enumerate(_columns(inputs, targets)):
            # Zero and missing values have a unique bit pattern.
            numbers = column.astype(np.float64) + 0.0
            numbers[np.isnan(numbers)] = np.nan
            bits = numbers.view(np.uint64)
            total = _mixed(total ^ _mixed(bits + np.uint64(number) * _GOLDEN + _GOLDEN)) + _GOLDEN
    return total


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the SplitMix64 finalizer to integers."""
    with np.errstate(over="ignore"):
        number = (number ^ (number >> np.uint64(30))) * _MIX_1
        number = (number ^ (number >> np.uint64(27))) * _MIX_2
        return number ^ (number >> np.uint64(31))


# Maximum numbers of units: coverage is then known to half a percentage point, and distortion to about one percent.
_MAX_CALIBRATING, _MAX_SELECTING = 5_000, 10_000
# Minimum number of units for calibration, and the maximum fraction of a small table that it may take.
_MIN_CALIBRATING, _MOST_SPARED = 19, 1 / 6
# Number of selection rows, and of calibration rows, that are kept for partial_fit.
_HELD_OUT_ROWS = 4096


@dataclass(frozen=True)
class Rows:
    """Rows of a table.

    Attributes:
        inputs: Inputs, [rows, features].
        targets: Targets, [rows, outputs], or class ids, [rows].
        weights: Weight of each row, [rows].
        units: Unit of each row, [rows]; rows with the same unit belong to one group and are not independent.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    weights: NDArray[np.float64]
    units: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.weights)

    def take(self, chosen: Any) -> "Rows":
        """Return the rows selected by an index, a slice or a mask."""
        return Rows(*(column[chosen] for column in vars(self).values()))

    def head(self, n: int) -> "Rows":
        """Return the first n rows, which are a random sample because rows are ordered by a hash."""
        return self.take(slice(n))

    @property
    def in_groups(self) -> bool:
        """Whether any unit has several rows."""
        return len(np.unique(self.units)) < len(self)

    def latest(self) -> "Rows":
        """Return the latest rows, which are kept for `partial_fit`."""
        return self.take(slice(-_HELD_OUT_ROWS, None))

    def joined(self, other: "Rows") -> "Rows":
        """Return the rows followed by the rows of `other`."""
        return Rows(*map(np.concatenate, zip(vars(self).values(), vars(other).values(), strict=True)))


class Split(NamedTuple):
    """Three disjoint parts of the rows.

    Attributes:
        train: Rows for training the networks.
        selection: Rows for selecting the bandwidth, and optionally the epoch and the restart.
        calibration: Rows used only for calibrating the prediction sets.
        borders: Hashes below which a unit is used for calibration, and below which it is used for selection, [2].
        largest: Largest weight, by which the weights of all parts are divided.
    """

    train: Rows
    selection: Rows
    calibration: Rows
    borders: NDArray[np.uint64]
    largest: float

    @property
    def held_out(self) -> tuple[Rows, Rows]:
        """Rows for selection and calibration, with weights that are comparable across splits."""
        selection, calibration = (
            replace(rows, weights=rows.weights * self.largest) for rows in (self.selection, self.calibration)
        )
        return selection, calibration


def fixed_borders(*, selecting: float, calibrating: float) -> NDArray[np.uint64]:
    """Return fixed hashes that separate the parts, so that a row is always assigned to the same part."""
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
    """Split rows into training, selection and calibration rows.

    Args:
        inputs: Inputs of the rows, [rows, features]; NaN for missing values.
        targets: Targets of the rows, [rows, outputs] or [rows].
        weights: Nonnegative weights, [rows]; rows of weight 0 are excluded. Only the ratios matter: the largest weight
            becomes 1.
        seed: Seed of the hash that determines the split.
        selecting: Fraction of the units that is held out for selection, at most 10 000 units.
        calibrating: Fraction of the units that is held out for calibration, see `n_calibrating`.
        groups: Labels of rows that belong together and are assigned to the same part, [rows].
        factors: Factors of the weights, equal for equal rows, [rows]. They change the importance of a row, but not the
            number of observations that it represents.
        borders: Borders of another split, which assign the same rows to the same parts; they replace `selecting` and
            `calibrating`. The training part may then be empty.
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
    # Rounded, because the last digits may change if all weights are multiplied by a constant.
    relative = (merged / largest).astype(np.float32).astype(np.float64)
    rows = Rows(inputs[chosen], targets[chosen], relative, unit_keys.view(np.int64))
    if borders is None:
        borders = _borders(np.unique(unit_keys), selecting, calibrating)
    calibrates, selects = unit_keys < borders[0], (unit_keys >= borders[0]) & (unit_keys < borders[1])
    return Split(rows.take(~calibrates & ~selects), rows.take(selects), rows.take(calibrates), borders, largest)


def _borders(keys: NDArray[np.uint64], selecting: float, calibrating: float) -> NDArray[np.uint64]:
    """Return the hashes that separate the requested fractions of units; at least one unit remains for training."""
    n_units = len(keys)
    fractions = np.cumsum([n_calibrating(n_units, calibrating) / n_units, min(selecting, _MAX_SELECTING / n_units)])
    n_held_out = np.floor(n_units * (fractions + 1e-9)).astype(np.int64)  # the offset avoids rounding below an integer
    return keys[n_held_out] if n_held_out[1] < n_units else np.zeros(2, dtype=np.uint64)


def n_calibrating(n_units: int, fraction: float) -> int:
    """Return the number of calibration units for a fraction of all units: 9, 19, 29 ..., relatively more if few.

    The conformal level of n scores is a multiple of 1 / (n + 1). With these numbers, the expected coverage of 90 % sets
    is exactly 90 % instead of the next higher multiple. Numbers below 9 are not changed.
    """
    if fraction == 0:
        return 0
    wanted = max(fraction * n_units, min(_MIN_CALIBRATING, _MOST_SPARED * n_units))
    n = min(int(wanted + 1e-9), _MAX_CALIBRATING)
    return (n + 1) // 10 * 10 - 1 if n >= 9 else n


def _hash_at(fraction: float) -> int:
    return min(round(fraction * 2**64), 2**64 - 1)


#: Standardized inputs are clipped to this many standard deviations: networks extrapolate, and sums of numbers that
#: differ by many orders of magnitude are inaccurate. Without sample weights, the distance of a training row from the
#: mean is at most the square root of the number of rows.
MOST_DEVIATIONS = 1e4
#: Defaults: tables with at least this many rows have one network without bins; number of bins for smaller tables.
MANY_ROWS, _N_BINS = 50_000, 32
# No bins by default if more than this many columns have more than two values: the network would have too many inputs.
_MAX_BINNED = 128


def check_numbers(name: str, numbers: Any, *, positive: bool = False) -> None:
    """Check that fitted values are finite, and optionally positive.

    Raises:
        ValueError: If a value is not finite, or not positive.
    """
    numbers = np.asarray(numbers, dtype=np.float64)
    if not np.isfinite(numbers).all() or (positive and not (numbers > 0).all()):
        raise ValueError(f"{name} must be finite{' and positive' if positive else ''}")


_MOST_ANSWERS = 10_000


def check_n_answers(number: Any) -> None:
    """Check the number of hypotheses from a file, because the memory per row is proportional to it.

    Raises:
        ValueError: If the number is not an integer, or is implausibly large.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST_ANSWERS:
        raise ValueError(f"the number of hypotheses must be an integer from 1 to {_MOST_ANSWERS:,}, got {number!r}")


@dataclass(frozen=True)
class Scaler:
    """Standardization of columns; missing values (NaN) become the mean.

    Attributes:
        mean: Mean of each column, [columns].
        scale: Standard deviation of each column, [columns]; 1 for constant columns.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check the values, because a file may come from an untrusted source."""
        check_numbers("the means of a scaler", self.mean)
        check_numbers("the scales of a scaler", self.scale, positive=True)
        if self.mean.shape != self.scale.shape:
            raise ValueError("the means and scales of a scaler have different lengths")

    @classmethod
    def fit(cls, rows: NDArray[Any], weights: NDArray[np.float64]) -> "Scaler":
        """Compute the weighted statistics of rows, [rows, columns], column by column to save memory."""
        fractions = weights / weights.sum()
        mean, scale = np.array([_mean_and_scale(column.astype(np.float64), fractions) for column in rows.T]).T
        return cls(mean, scale)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Standardize and clip rows as inputs of a network."""
        return np.clip(self.standardized(rows), -MOST_DEVIATIONS, MOST_DEVIATIONS).astype(dtype)

    def standardized(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Standardize rows."""
        standardized: NDArray[np.float64] = (filled(rows, self.mean) - self.mean) / self.scale
        return standardized

    def inverse(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert standardized rows to the units of the columns."""
        return rows * self.scale + self.mean


def _mean_and_scale(column: NDArray[np.float64], fractions: NDArray[np.float64]) -> tuple[float, float]:
    """Compute the mean and the standard deviation, relative to one of the values to avoid overflow."""
    offsets = column - column[0]
    unit = np.abs(offsets).max()
    if unit == 0:
        return float(column[0]), 1.0
    offsets /= unit
    mean = fractions @ offsets
    deviation = np.sqrt(fractions @ (offsets - mean) ** 2)
    return float(column[0] + unit * mean), float(unit * deviation) or 1.0


@dataclass(frozen=True)
class Encoder:
    """Encoder of the columns of a table: imputation, standardization, and piecewise linear bins.

    The encoded columns are indicators of missing values, the standardized columns, and the bins of each column. The
    slope of a network can change at any edge of a bin.

    Attributes:
        scaler: Mean and scale of each column.
        filling: Values that replace missing values (NaN), [columns].
        indicated: Indices of the columns with missing values in training, which get an indicator.
        edges: Edges of the bins of each column, increasing, in its units; columns with fewer than three edges have no
            bins. The list is empty for an encoder without bins.

    Reference:
        Gorishniy, Rubachev, Babenko: On embeddings for numerical features in tabular deep learning, 2022.
    """

    scaler: Scaler
    filling: NDArray[np.float64]
    indicated: NDArray[np.int64]
    edges: list[NDArray[np.float64]]

    def __post_init__(self) -> None:
        """Check the values, because a file may come from an untrusted source."""
        check_numbers("the replacements of missing values", self.filling)
        if self.filling.shape != self.scaler.mean.shape or len(self.edges) not in (0, self.n_inputs):
            raise ValueError("the parts of an encoder have different numbers of columns")
        if self.indicated.dtype.kind != "i" or not np.isin(self.indicated, np.arange(self.n_inputs)).all():
            raise ValueError("the columns with missing values must be indices of columns")
        for edges in self.edges:
            check_numbers("the edges of bins", edges)
            if edges.ndim != 1 or not len(edges) or not (np.diff(edges) > 0).all():
                raise ValueError("the edges of the bins of a column must increase")

    @classmethod
    def fit(cls, rows: Rows, n_bins: int | None) -> "Encoder":
        """Fit an encoder to the inputs of rows.

        Args:
            rows: Training rows.
            n_bins: Number of bins of each column between its quantiles, or between all values if there are few; 0 for
                none. None for 32, or for none if more than 128 columns have more than two values.
        """
        inputs, missing = rows.inputs, np.isnan(rows.inputs)
        means = _means(inputs, missing, rows.weights) if missing.any() else None
        if means is not None:
            inputs = filled(inputs, means)
        if n_bins is None:
            varied = (inputs > inputs.min(axis=0)) & (inputs < inputs.max(axis=0))
            n_bins = _N_BINS if varied.any(axis=0).sum() <= _MAX_BINNED else 0
        scaler = Scaler.fit(inputs, rows.weights)
        columns = inputs.T if n_bins else ()
        edges = [_edges(column.astype(np.float64), rows.weights, n_bins + 1) for column in columns]
        return cls(scaler, scaler.mean if means is None else means, np.flatnonzero(missing.any(axis=0)), edges)

    @classmethod
    def candidates(cls, rows: Rows, n_bins: int | None) -> "list[Encoder]":
        """Fit an encoder with `n_bins` bins; by default, one without and one with bins (unless there are many rows)."""
        first = cls.fit(rows, n_bins or 0)
        if n_bins is not None or len(rows) >= MANY_ROWS:
            return [first]
        binned = cls.fit(rows, None)
        return [first, binned] if binned.run_lengths else [first]

    @property
    def has_bins(self) -> bool:
        """Whether columns are encoded with bins."""
        return bool(self.edges)

    @property
    def n_inputs(self) -> int:
        """Number of columns before they are encoded."""
        return len(self.filling)

    @property
    def run_lengths(self) -> tuple[int, ...]:
        """Number of bins of each column with bins."""
        return tuple(len(edges) - 1 for edges in self.edges if len(edges) > 2)

    @property
    def n_columns(self) -> int:
        """Number of encoded columns."""
        return len(self.indicated) + self.n_inputs + sum(self.run_lengths)

    def dense(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Encode rows without bins, [rows, inputs]."""
        indicators = np.isnan(rows[:, self.indicated]).astype(dtype)
        return np.concatenate([indicators, self.scaler(filled(rows, self.filling), dtype)], axis=1)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Encode rows, [rows, n_columns]."""
        dense = self.dense(rows, dtype)
        if not self.edges:
            return dense
        out = np.empty((len(rows), self.n_columns), dtype=dtype)
        start = dense.shape[1]
        out[:, :start] = dense
        for column, edges in zip(filled(rows, self.filling).T, self.edges, strict=True):
            if len(edges) > 2:
                stop = start + len(edges) - 1
                passed = (column[:, None].astype(np.float64) - edges[:-1]) / np.diff(edges)
                np.clip(passed, 0.0, 1.0, out=out[:, start:stop], casting="same_kind")
                start = stop
        return out

    def scaled(self, relevance: NDArray[np.float64]) -> "Encoder":
        """Return an encoder whose standardized columns are multiplied by their relevance."""
        return replace(self, scaler=replace(self.scaler, scale=self.scaler.scale / relevance))

    def repeated(self, relevance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the relevance of each encoded column: bins have the relevance of their column, indicators have 1."""
        n_bins = [len(edges) - 1 if len(edges) > 2 else 0 for edges in self.edges]
        of_bins = np.repeat(relevance, n_bins) if n_bins else relevance[:0]
        return np.concatenate([np.ones(len(self.indicated)), relevance, of_bins])


def _edges(column: NDArray[np.float64], weights: NDArray[np.float64], n_edges: int) -> NDArray[np.float64]:
    values, places = np.unique(column, return_inverse=True)
    if len(values) <= n_edges:
        return values
    upto = np.cumsum(np.bincount(places.ravel(), weights))
    chosen = np.searchsorted(upto, np.linspace(0.0, upto[-1], n_edges))
    return values[np.unique(np.minimum(chosen, len(values) - 1))]


def filled(rows: NDArray[Any], means: NDArray[np.float64]) -> NDArray[Any]:
    """Return rows [rows, columns] with each NaN replaced by a mean."""
    missing = np.isnan(rows)
    return np.where(missing, means.astype(rows.dtype), rows) if missing.any() else rows


def _means(rows: NDArray[Any], missing: NDArray[np.bool_], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    known = weights[:, None] * ~missing
    sums = (np.where(missing, 0.0, rows) * known).sum(axis=0, dtype=np.float64)
    return np.asarray(sums / np.maximum(known.sum(axis=0), 1e-300))
