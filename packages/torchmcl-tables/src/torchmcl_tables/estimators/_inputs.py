"""How the columns of a table become the inputs of a network."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bends", "Gaps", "Places", "Scaler", "values_repeat"]

# Deviations from the mean that networks in single precision are told of at most: the square of what they make of more
# would not be a number.
_FAR = 1e12


class Places(NamedTuple):
    """Inputs in a short form: those behind knots, of which each run is 1 up to a place and then 0, by that place.

    Attributes:
        dense: [rows, inputs], those without knots.
        lower: [rows, runs], the place on the table of all runs (each has one row more than inputs) below the value.
        between: [rows, runs], how far the value is towards the next place, in [0, 1].
    """

    dense: NDArray[np.float32]
    lower: NDArray[np.int64]
    between: NDArray[np.float32]


@dataclass(frozen=True)
class Scaler:
    """Mean and scale of each column; a column without spread is left at scale 1. A missing value (NaN) is a mean one.

    `Gaps` has more to say of missing values, where the training had any.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    has_knots = False

    @classmethod
    def of(cls, rows: NDArray[Any], weights: NDArray[np.float64]) -> "Scaler":
        """Return the weighted statistics of rows [rows, columns], column by column to spare memory."""
        shares = weights / weights.sum()
        statistics = [_mean_and_scale(column.astype(np.float64), shares) for column in rows.T]
        mean, scale = np.array(statistics).T
        return cls(mean, scale)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Return standardised rows."""
        standardised = (_filled(rows, self.mean) - self.mean) / self.scale
        return (np.clip(standardised, -_FAR, _FAR) if dtype == np.float32 else standardised).astype(dtype)

    def inverse(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardised rows in the units of the columns."""
        return rows * self.scale + self.mean

    @property
    def n_columns(self) -> int:
        """How many columns come out."""
        return len(self.mean)

    run_lengths: ClassVar[tuple[int, ...]] = ()

    def places(self, rows: NDArray[Any]) -> Places:
        """Return the same inputs in the short form."""
        return Places(self(rows), np.zeros((len(rows), 0), dtype=np.int64), np.zeros((len(rows), 0), dtype=np.float32))


def _mean_and_scale(column: NDArray[np.float64], shares: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation, exact however far from zero the column lies and however narrow it is.

    Measured from one of the values, in units of the largest difference, nothing cancels and no square leaves the range.
    """
    offsets = column - column[0]
    unit = np.abs(offsets).max()
    if unit == 0:
        return float(column[0]), 1.0
    offsets /= unit
    mean = shares @ offsets
    deviation = np.sqrt(shares @ (offsets - mean) ** 2)
    return float(column[0] + unit * mean), float(unit * deviation) or 1.0


@dataclass(frozen=True)
class Bends:
    """Standardised columns, and beside each how far a value has come between knots: 1 behind it, 0 before it.

    A network is smooth in its inputs. With these it can turn at any knot without large weights, as trees do.

    Attributes:
        scaler: of the columns.
        knots: of each column, increasing, in its own units; fewer than three add nothing to the column itself.
    """

    scaler: Scaler
    knots: list[NDArray[np.float64]]

    has_knots = True

    @classmethod
    def of(cls, scaler: Scaler, rows: NDArray[Any], weights: NDArray[np.float64], n_knots: int) -> "Bends":
        """Return knots at the quantiles of weighted rows [rows, columns], or at all values where those are as few."""
        return cls(scaler, [_knots(column.astype(np.float64), weights, n_knots) for column in rows.T])

    @property
    def n_columns(self) -> int:
        """How many columns come out."""
        return len(self.knots) + sum(len(knots) - 1 for knots in self.knots if len(knots) > 2)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Return [rows, n_columns]."""
        rows = _filled(rows, self.scaler.mean)
        out = np.empty((len(rows), self.n_columns), dtype=dtype)
        out[:, : len(self.knots)] = self.scaler(rows, dtype)
        start = len(self.knots)
        for column, knots in zip(rows.T, self.knots, strict=True):
            if len(knots) > 2:
                stop = start + len(knots) - 1
                come = (column[:, None].astype(np.float64) - knots[:-1]) / np.diff(knots)
                np.clip(come, 0.0, 1.0, out=out[:, start:stop], casting="same_kind")
                start = stop
        return out

    @property
    def run_lengths(self) -> tuple[int, ...]:
        """How many inputs each run has."""
        return tuple(len(knots) - 1 for knots in self.knots if len(knots) > 2)

    def places(self, rows: NDArray[Any]) -> Places:
        """Return the same inputs in the short form."""
        rows = _filled(rows, self.scaler.mean)
        bent = [(column, knots) for column, knots in zip(rows.T, self.knots, strict=True) if len(knots) > 2]
        lower = np.empty((len(rows), len(bent)), dtype=np.int64)
        between = np.empty((len(rows), len(bent)), dtype=np.float32)
        start = 0
        for run, (column, knots) in enumerate(bent):
            values = column.astype(np.float64)
            place = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(knots) - 2)
            between[:, run] = np.clip((values - knots[place]) / np.diff(knots)[place], 0.0, 1.0)
            lower[:, run] = start + place
            start += len(knots)
        return Places(self.scaler(rows), lower, between)


@dataclass(frozen=True)
class Gaps:
    """Missing values (NaN): the mean in their place, and beside the columns an input that says so for each with any.

    Attributes:
        means: of each column, 0 for one without values.
        columns: that had missing values in the training; elsewhere the mean alone stands for one.
        encoder: of the columns without gaps.
    """

    means: NDArray[np.float64]
    columns: NDArray[np.int64]
    encoder: "Scaler | Bends | None" = None

    @classmethod
    def filled(cls, rows: NDArray[Any], weights: NDArray[np.float64]) -> "tuple[NDArray[Any], Gaps | None]":
        """Return rows [rows, columns] without gaps, and what fills those of others; None if there are none."""
        missing = np.isnan(rows)
        if not missing.any():
            return rows, None
        known = weights[:, None] * ~missing
        sums = np.where(missing, 0.0, rows) * known
        means = sums.sum(axis=0, dtype=np.float64) / np.maximum(known.sum(axis=0), 1e-300)
        gaps = cls(means, np.flatnonzero(missing.any(axis=0)))
        return gaps.fill(rows), gaps

    def before(self, encoder: "Scaler | Bends") -> "Gaps":
        """Return the same, followed by an encoder."""
        return Gaps(self.means, self.columns, encoder)

    def fill(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows without gaps."""
        return _filled(rows, self.means)

    @property
    def has_knots(self) -> bool:
        """Whether columns come with their place between knots."""
        return self.encoder is not None and self.encoder.has_knots

    @property
    def n_columns(self) -> int:
        """How many columns come out."""
        assert self.encoder is not None
        return self.encoder.n_columns + len(self.columns)

    def __call__(self, rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
        """Return [rows, n_columns]."""
        assert self.encoder is not None
        return np.concatenate([self._flags(rows, dtype), self.encoder(self.fill(rows), dtype)], axis=1)

    @property
    def run_lengths(self) -> tuple[int, ...]:
        """How many inputs each run has."""
        assert self.encoder is not None
        return self.encoder.run_lengths

    def places(self, rows: NDArray[Any]) -> Places:
        """Return the same inputs in the short form."""
        assert self.encoder is not None
        inner = self.encoder.places(self.fill(rows))
        return inner._replace(dense=np.concatenate([self._flags(rows, np.float32), inner.dense], axis=1))

    def _flags(self, rows: NDArray[Any], dtype: Any) -> NDArray[Any]:
        return np.isnan(rows[:, self.columns]).astype(dtype)


def _filled(rows: NDArray[Any], means: NDArray[np.float64]) -> NDArray[Any]:
    """Return rows [rows, columns] with a mean in the place of each NaN."""
    missing = np.isnan(rows)
    return np.where(missing, means.astype(rows.dtype), rows) if missing.any() else rows


def _knots(column: NDArray[np.float64], weights: NDArray[np.float64], n_knots: int) -> NDArray[np.float64]:
    values, places = np.unique(column, return_inverse=True)
    if len(values) <= n_knots:
        return values
    upto = np.cumsum(np.bincount(places.ravel(), weights))
    chosen = np.searchsorted(upto, np.linspace(0.0, upto[-1], n_knots))
    return values[np.unique(np.minimum(chosen, len(values) - 1))]


def values_repeat(rows: NDArray[Any]) -> bool:
    """Return whether at least half of the columns have at most half as many values as there are rows.

    Copies of a row are one row with a larger weight by then, so that they do not count.
    """
    repeat = [2 * len(np.unique(column)) <= len(rows) for column in rows.T]
    return 2 * sum(repeat) >= len(repeat)
