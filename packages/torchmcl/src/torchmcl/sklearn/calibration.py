"""The calibrator: split-conformal prediction sets of a predictive."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.density import KernelMixture
from torchmcl.postprocess.quantiles import effective_counts, quantile
from torchmcl.sklearn.conformal import conformity, joined, reaching, region, stacked, supported_fill
from torchmcl.sklearn.rows import Rows

__all__ = ["Calibrator", "blocks", "check_calibration", "effective_counts", "quantile", "supported_gaps"]

# With these the calibration adds a quarter of a point to the error of the coverage.
CALIBRATION_ROWS = 16_384
_GAP_ROWS = 4096
# Rows whose kernels are held at a time.
_ROWS_AT_ONCE = 32_768


def supported_gaps(predictive: Any, rows: Rows) -> NDArray[np.float64]:
    """Return how deep gaps in the sets of each output must be to stay open, [outputs], by rows that did not train."""
    rows = rows.head(_GAP_ROWS)
    fill = np.zeros(predictive.targets.n_outputs)
    if len(rows):
        density = predictive.standardised(rows.inputs.astype(np.float64))
        targets = predictive.targets.standardised(rows.targets)
        for i in range(len(fill)):
            fill[i] = supported_fill(density.marginal(i), targets[:, i : i + 1])
    return fill


def check_calibration(scores: NDArray[np.float64], counts: NDArray[np.float64]) -> None:
    """Check the scores and counts of calibrating rows.

    Raises:
        ValueError: for a score that is negative or NaN; or a count that is negative or not finite.
    """
    if not (scores >= -1e-6).all():  # rounding may put a 0 below
        raise ValueError("the scores of a calibration must not be negative or NaN")
    if not ((counts >= 0) & np.isfinite(counts)).all():
        raise ValueError("the counts of a calibration must be finite and not negative")


@dataclass(frozen=True)
class Calibrator:
    """Conformity scores of rows that were used for nothing else.

    Attributes:
        fill: [outputs], gaps of the sets that are less deep are closed.
        scores: [outputs, rows], the mass of the density above each target.
        surprise: [rows], minus the log density of all outputs together.
        counts: [rows], how much each row counts beside a fresh row, which counts 1.
    """

    fill: NDArray[np.float64]
    scores: NDArray[np.float64]
    surprise: NDArray[np.float64]
    counts: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check that all parts are of the same outputs and rows: a file may have been written by others."""
        n_outputs, n_rows = len(self.fill), len(self.counts)
        if self.scores.shape != (n_outputs, n_rows) or self.surprise.shape != (n_rows,):
            raise ValueError("the scores of a calibration are of different numbers of outputs or rows")
        check_calibration(self.scores, self.counts)
        if not ((self.fill >= 0) & (self.fill <= 1)).all():
            raise ValueError("the depths of gaps must lie in [0, 1]")

    @classmethod
    def fit(cls, predictive: Any, rows: Rows, fill: NDArray[np.float64]) -> "Calibrator":
        """Return the scores of rows that neither trained nor selected."""
        rows, counts = rows.head(CALIBRATION_ROWS), None
        counts = effective_counts(rows.weights, rows.units)
        if not len(rows):
            return cls(fill, np.zeros((len(fill), 0)), np.zeros(0), counts)
        density = predictive.standardised(rows.inputs.astype(np.float64))
        targets = predictive.targets.standardised(rows.targets)
        every = [conformity(density.marginal(i), targets[:, i : i + 1], depth).numpy() for i, depth in enumerate(fill)]
        # Values outside of the bounds are in no set, however likely the density makes them.
        low, high = predictive.targets.bounds
        outside = (rows.targets < low) | (rows.targets > high)
        scores = np.where(outside.T, np.inf, np.stack(every))
        return cls(fill, scores, -density.log_prob(targets).numpy(), counts)

    def surprise_at(self, coverage: float) -> float:
        """Return the surprise that a fresh row stays below with a probability."""
        return quantile(self.surprise, self.counts, 1 - coverage)

    def __call__(self, predictive: Any, X: NDArray[Any], coverage: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return lower and upper ends of the sets in the units of y, [rows, outputs, pieces]."""
        levels = [quantile(scores, self.counts, 1 - coverage) for scores in self.scores]
        every = []
        for rows in blocks(X):
            density, means = predictive.standardised(rows), predictive.means(rows)
            parts = []
            for i, how in enumerate(zip(levels, self.fill, strict=True)):
                marginal = density.marginal(i)
                parts.append(reaching(region(marginal, *how), means[:, i : i + 1], _mass_between(marginal)))
            every.append(parts)
        ends = joined([stacked(parts) for parts in zip(*every, strict=True)])
        lower, upper = (predictive.targets.restored(end.movedim(1, -1).numpy()) for end in ends)
        # A set that must hold everything ignores the bounds.
        lower, upper = np.where(np.isinf(levels), -np.inf, lower), np.where(np.isinf(levels), np.inf, upper)
        return np.moveaxis(lower, -1, 1), np.moveaxis(upper, -1, 1)


def _mass_between(density: KernelMixture) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda low, high: density.cdf(high) - density.cdf(low)


def blocks(X: NDArray[Any]) -> list[NDArray[Any]]:
    """Return blocks of rows, whose kernels fit into memory."""
    return [X[start : start + _ROWS_AT_ONCE] for start in range(0, max(1, len(X)), _ROWS_AT_ONCE)]
