"""The calibrator of discrete targets: sets begin and end with their values."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.sklearn.calibration import (
    CALIBRATION_ROWS,
    Calibrator,
    blocks,
    check_calibration,
    effective_counts,
    quantile,
)
from torchmcl.sklearn.calibration import supported_gaps as gaps_of_density
from torchmcl.sklearn.conformal import reaching, stacked
from torchmcl.sklearn.rows import Rows
from torchmcl_tables.estimators.atoms import masses_above, pieces_of_atoms
from torchmcl_tables.estimators.blend import Blend

__all__ = ["AtomCalibrator", "calibrated", "supported_gaps"]


@dataclass(frozen=True)
class AtomCalibrator:
    """Conformity scores of calibration rows, as in `Calibrator`.

    Attributes:
        fill: [1], unused: there is nothing between the values.
        scores: [rows], the mass of more probable values.
        surprise: [rows], minus the log density.
        counts: [rows], how much each row counts beside a fresh row, which counts 1.
    """

    fill: NDArray[np.float64]
    scores: NDArray[np.float64]
    surprise: NDArray[np.float64]
    counts: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check that all parts are of the same rows: a file may have been written by others."""
        if not self.scores.shape == self.surprise.shape == self.counts.shape == (len(self.counts),):
            raise ValueError("the scores of a calibration are of different numbers of rows")
        check_calibration(self.scores, self.counts)

    @classmethod
    def fit(cls, blend: Blend, rows: Rows) -> "AtomCalibrator":
        """Return the scores of rows used for neither training nor selection."""
        rows = rows.head(CALIBRATION_ROWS)
        counts = effective_counts(rows.weights, rows.units)
        if not len(rows):
            return cls(np.zeros(1), np.zeros(0), np.zeros(0), counts)
        inputs, y = rows.inputs.astype(np.float64), rows.targets[:, 0]
        surprise = -blend.standardised(inputs).log_prob(blend.targets.standardised(rows.targets)).numpy()
        assert blend.values is not None
        place = np.searchsorted(blend.values, y).clip(max=len(blend.values) - 1)
        scores = masses_above(blend.masses(inputs)).numpy()[np.arange(len(y)), place]
        # Another value is in no set.
        return cls(np.zeros(1), np.where(blend.values[place] == y, scores, np.inf), surprise, counts)

    def surprise_at(self, coverage: float) -> float:
        """Return the quantile of the conformity score of a new row at a probability."""
        return quantile(self.surprise, self.counts, 1 - coverage)

    def __call__(self, blend: Blend, X: NDArray[Any], coverage: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return lower and upper ends of the sets, [rows, 1, pieces]."""
        level = quantile(self.scores, self.counts, 1 - coverage)
        if np.isinf(level):
            ends = np.full((len(X), 1, 1), np.inf)
            return -ends, ends
        lower, upper = stacked([_sets(blend, rows, level) for rows in blocks(X)])
        return lower.unsqueeze(1).numpy(), upper.unsqueeze(1).numpy()


def _sets(blend: Blend, X: NDArray[Any], level: float) -> tuple[Tensor, Tensor]:
    assert blend.values is not None
    masses, values = blend.masses(X), torch.from_numpy(blend.values)
    means = blend.masses(X, knowing=True) @ values

    def between(low: Tensor, high: Tensor) -> Tensor:
        return (masses * ((low < values) & (values < high))).sum(dim=1)

    return reaching(pieces_of_atoms(masses_above(masses) <= level, blend.values), means.unsqueeze(1), between)


def supported_gaps(blend: Blend, rows: Rows) -> NDArray[np.float64]:
    """Return the minimum depth of open gaps in the sets, [outputs]."""
    return np.zeros(1) if blend.values is not None else gaps_of_density(blend, rows)


def calibrated(blend: Blend, rows: Rows, fill: NDArray[np.float64]) -> Calibrator | AtomCalibrator:
    """Return the calibrator of a blend."""
    return Calibrator.fit(blend, rows, fill) if blend.values is None else AtomCalibrator.fit(blend, rows)
