"""Encoder of the columns of a table as inputs of a network."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.estimators.rows import Rows

#: Standardized inputs are clipped to this many standard deviations: networks extrapolate, and sums of numbers that
#: differ by many orders of magnitude are inaccurate. Without sample weights, the distance of a training row from the
#: mean is at most the square root of the number of rows.
MOST_DEVIATIONS = 1e4
#: Defaults: tables with at least this many rows have one network without bins; number of bins for smaller tables whose
#: values repeat.
MANY_ROWS, N_BINS = 50_000, 32
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
    def fit(cls, rows: Rows, n_bins: int | None, default: int | None = None) -> "Encoder":
        """Fit an encoder to the inputs of rows.

        Args:
            rows: Training rows.
            n_bins: Number of bins of each column between its quantiles, or between all values if there are few; 0 for
                none. None for `default`.
            default: Default of the estimator; None for 32 bins if values repeat.
        """
        inputs, missing = rows.inputs, np.isnan(rows.inputs)
        means = _means(inputs, missing, rows.weights) if missing.any() else None
        if means is not None:
            inputs = filled(inputs, means)
        if n_bins is None:
            n_bins = default
            if n_bins is None:
                n_bins = N_BINS if len(rows) < MANY_ROWS and _values_repeat(inputs) else 0
            if n_bins and _n_not_binary(inputs) > _MAX_BINNED:
                n_bins = 0
        scaler = Scaler.fit(inputs, rows.weights)
        columns = inputs.T if n_bins else ()
        edges = [_edges(column.astype(np.float64), rows.weights, n_bins + 1) for column in columns]
        return cls(scaler, scaler.mean if means is None else means, np.flatnonzero(missing.any(axis=0)), edges)

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


def _values_repeat(rows: NDArray[Any]) -> bool:
    """Return whether at least half of the columns have at most half as many values as there are distinct rows."""
    repeat = [2 * len(np.unique(column)) <= len(rows) for column in rows.T]
    return 2 * sum(repeat) >= len(repeat)


def _n_not_binary(rows: NDArray[Any]) -> int:
    """Return the number of columns with more than two values, or of all columns if there are few."""
    if rows.shape[1] <= _MAX_BINNED:
        return rows.shape[1]
    low, high = rows.min(axis=0), rows.max(axis=0)
    return int(((rows > low) & (rows < high)).any(axis=0).sum())
