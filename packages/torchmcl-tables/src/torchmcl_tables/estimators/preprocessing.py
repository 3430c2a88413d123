"""Encoders that turn the columns of a table into inputs of a network."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.estimators.rows import Rows

#: Standardized inputs are clipped here: networks extrapolate, and sums of numbers that differ by many orders of
#: magnitude are not exact. Without sample weights, a training row is at most the square root of the number of rows
#: away.
MOST_DEVIATIONS = 1e4
#: Defaults: tables with at least this many rows have one network and no bins; smaller ones this many bins if values
#: repeat.
MANY_ROWS, N_BINS = 50_000, 32
# No bins by default if more than this many columns have more than two values: the network would have too many inputs.
_MAX_BINNED = 128


def check_numbers(name: str, numbers: Any, *, positive: bool = False) -> None:
    """Check that the numbers of a fitted part are finite, and optionally positive.

    Raises:
        ValueError: if not.
    """
    numbers = np.asarray(numbers, dtype=np.float64)
    if not np.isfinite(numbers).all() or (positive and not (numbers > 0).all()):
        raise ValueError(f"{name} must be finite{' and positive' if positive else ''}")


@dataclass(frozen=True)
class Scaler:
    """Mean and scale of each column; the scale of a constant column is 1. Missing values (NaN) become the mean."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    has_bins = False

    def __post_init__(self) -> None:
        """Check the numbers, because a file may come from an untrusted source."""
        check_numbers("the means of a scaler", self.mean)
        check_numbers("the scales of a scaler", self.scale, positive=True)
        if self.mean.shape != self.scale.shape:
            raise ValueError("the means and scales of a scaler have different lengths")

    @classmethod
    def fit(cls, rows: NDArray[Any], weights: NDArray[np.float64]) -> "Scaler":
        """Return the weighted statistics of rows [rows, columns], column by column to save memory."""
        shares = weights / weights.sum()
        mean, scale = np.array([_mean_and_scale(column.astype(np.float64), shares) for column in rows.T]).T
        return cls(mean, scale)

    @property
    def n_inputs(self) -> int:
        """The number of columns before they are encoded."""
        return len(self.mean)

    @property
    def n_columns(self) -> int:
        """The number of encoded columns."""
        return len(self.mean)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Return standardized rows, clipped, as inputs of a network."""
        return np.clip(self.standardised(rows), -MOST_DEVIATIONS, MOST_DEVIATIONS).astype(dtype)

    def standardised(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return standardized rows."""
        standardised: NDArray[np.float64] = (filled(rows, self.mean) - self.mean) / self.scale
        return standardised

    def inverse(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardized rows in the units of the columns."""
        return rows * self.scale + self.mean


def _mean_and_scale(column: NDArray[np.float64], shares: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and the standard deviation, computed relative to one of the values to avoid overflow."""
    offsets = column - column[0]
    unit = np.abs(offsets).max()
    if unit == 0:
        return float(column[0]), 1.0
    offsets /= unit
    mean = shares @ offsets
    deviation = np.sqrt(shares @ (offsets - mean) ** 2)
    return float(column[0] + unit * mean), float(unit * deviation) or 1.0


@dataclass(frozen=True)
class PiecewiseLinear:
    """Standardized columns and piecewise linear encodings of their bins: a network's slope can change at any edge.

    Attributes:
        scaler: of the columns.
        edges: of the bins of each column, increasing, in its units; columns with fewer than three edges have no bins.

    Reference:
        Gorishniy, Rubachev, Babenko: On embeddings for numerical features in tabular deep learning, 2022.
    """

    scaler: Scaler
    edges: list[NDArray[np.float64]]

    has_bins = True

    def __post_init__(self) -> None:
        """Check the edges."""
        for edges in self.edges:
            check_numbers("the edges of bins", edges)
            if edges.ndim != 1 or not len(edges) or not (np.diff(edges) > 0).all():
                raise ValueError("the edges of the bins of a column must increase")
        if len(self.edges) != self.scaler.n_inputs:
            raise ValueError("the bins and the scaler are of different numbers of columns")

    @property
    def n_inputs(self) -> int:
        """The number of columns before they are encoded."""
        return len(self.edges)

    @classmethod
    def fit(cls, scaler: Scaler, rows: NDArray[Any], weights: NDArray[np.float64], n_bins: int) -> "PiecewiseLinear":
        """Return bins between quantiles of weighted rows [rows, columns], or between all values if there are few."""
        return cls(scaler, [_edges(column.astype(np.float64), weights, n_bins + 1) for column in rows.T])

    @property
    def n_columns(self) -> int:
        """The number of encoded columns."""
        return len(self.edges) + sum(len(edges) - 1 for edges in self.edges if len(edges) > 2)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Return [rows, n_columns]: the standardized columns, then the bins of each."""
        rows = filled(rows, self.scaler.mean)
        out = np.empty((len(rows), self.n_columns), dtype=dtype)
        out[:, : len(self.edges)] = self.scaler(rows, dtype)
        start = len(self.edges)
        for column, edges in zip(rows.T, self.edges, strict=True):
            if len(edges) > 2:
                stop = start + len(edges) - 1
                passed = (column[:, None].astype(np.float64) - edges[:-1]) / np.diff(edges)
                np.clip(passed, 0.0, 1.0, out=out[:, start:stop], casting="same_kind")
                start = stop
        return out


def _edges(column: NDArray[np.float64], weights: NDArray[np.float64], n_edges: int) -> NDArray[np.float64]:
    values, places = np.unique(column, return_inverse=True)
    if len(values) <= n_edges:
        return values
    upto = np.cumsum(np.bincount(places.ravel(), weights))
    chosen = np.searchsorted(upto, np.linspace(0.0, upto[-1], n_edges))
    return values[np.unique(np.minimum(chosen, len(values) - 1))]


@dataclass(frozen=True)
class MissingIndicators:
    """Imputation of missing values (NaN) by the mean, and an indicator for each column with missing values.

    Attributes:
        means: of each column, 0 for one without values.
        columns: indices of columns with missing values in training; other columns are only imputed.
        encoder: of the filled columns.
    """

    means: NDArray[np.float64]
    columns: NDArray[np.int64]
    encoder: Scaler | PiecewiseLinear

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers("the means of columns with missing values", self.means)
        if self.means.shape != (self.encoder.n_inputs,):
            raise ValueError("the means and the encoder are of different numbers of columns")
        if not np.isin(self.columns, np.arange(self.n_inputs)).all() or self.columns.dtype.kind != "i":
            raise ValueError("the columns with missing values must be some of the columns")

    @property
    def n_inputs(self) -> int:
        """The number of columns before they are encoded."""
        return len(self.means)

    @property
    def has_bins(self) -> bool:
        """Whether columns are encoded with bins."""
        return self.encoder.has_bins

    @property
    def n_columns(self) -> int:
        """The number of encoded columns."""
        return self.encoder.n_columns + len(self.columns)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Return [rows, n_columns]."""
        return np.concatenate([self.indicators(rows, dtype), self.encoder(filled(rows, self.means), dtype)], axis=1)

    def indicators(self, rows: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Return indicators of missing values, [rows, columns with missing values]."""
        return np.isnan(rows[:, self.columns]).astype(dtype)


Encoder = Scaler | PiecewiseLinear | MissingIndicators


def fit_encoder(rows: Rows, n_bins: int | None, default: int | None = None) -> Encoder:
    """Return an encoder of the inputs of rows.

    Args:
        rows: to fit the encoder to.
        n_bins: of each column, 0 for none; None for `default`, and if that is None for 32 where values repeat.
        default: of the estimator.
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
    encoder = PiecewiseLinear.fit(scaler, inputs, rows.weights, n_bins) if n_bins else scaler
    return encoder if means is None else MissingIndicators(means, np.flatnonzero(missing.any(axis=0)), encoder)


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
