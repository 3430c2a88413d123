"""Answers of a fitted regressor: a predictive and its calibrator, in the units and the shape of y."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.density import HypothesisDensity, KernelMixture
from torchmcl.sklearn.calibration import blocks
from torchmcl.sklearn.parameters import check_coverage
from torchmcl.sklearn.predictive import Hypotheses
from torchmcl.sklearn.regions import PredictionIntervals, PredictionRegions
from torchmcl.sklearn.rows import Rows
from torchmcl.sklearn.targets import Targets

__all__ = ["Answers", "check_converged"]

# Means this many deviations away are those of networks that diverged, judged by this many rows.
_DIVERGED, _JUDGED_ROWS = 1e4, 256


@dataclass(frozen=True)
class Answers:
    """A fitted regressor without its parameters; X are checked numbers, [rows, columns].

    Attributes:
        predictive: `Predictive`, or an object with the same methods.
        calibrator: `Calibrator`, or an object with the same methods.
    """

    predictive: Any
    calibrator: Any

    @property
    def targets(self) -> Targets:
        """Names, units and bounds of the targets."""
        targets: Targets = self.predictive.targets
        return targets

    def on(self, device: str | torch.device) -> "Answers":
        """Return the same answers, computed on another device."""
        return replace(self, predictive=replace(self.predictive, device=device))

    def mean(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the mean of each row, like y."""
        return self.targets.like_y(np.concatenate([self.predictive.mean(rows) for rows in blocks(X)]))

    def hypotheses(self, X: NDArray[Any], n_hypotheses: int | None = None) -> Hypotheses:
        """Return several answers for each row."""
        if n_hypotheses is not None:
            check_positive_int(self.targets.owner, "n_hypotheses", n_hypotheses)
        parts = [self.predictive.hypotheses(rows, n_hypotheses) for rows in blocks(X)]
        return Hypotheses(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def density(self, X: NDArray[Any]) -> HypothesisDensity:
        """Return the density of each row."""
        density: HypothesisDensity = self.predictive.density(X)
        return density

    def intervals(self, X: NDArray[Any], coverage: float) -> PredictionIntervals:
        """Return calibrated sets of each output."""
        check_coverage(self.targets.owner, coverage)
        return PredictionIntervals(*map(self.targets.like_y, self.calibrator(self.predictive, X, coverage)))

    def regions(self, X: NDArray[Any], coverage: float) -> PredictionRegions:
        """Return calibrated regions of all outputs together."""
        check_coverage(self.targets.owner, coverage)
        density = self.predictive.density(X, KernelMixture)
        in_units_of_y = float(np.log(self.targets.scaler.scale).sum())
        return PredictionRegions(density, -self.calibrator.surprise_at(coverage) - in_units_of_y)

    def sample(self, X: NDArray[Any], n_samples: int, random_state: Any) -> NDArray[Any]:
        """Return draws from the density of each row."""
        check_positive_int(self.targets.owner, "n_samples", n_samples)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        samples: NDArray[Any] = self.predictive.sample(X, n_samples, generator)
        return samples[..., 0] if self.targets.is_flat else samples

    def log_prob(self, X: NDArray[Any], y: Any) -> NDArray[Any]:
        """Return the log density of y at each row."""
        return self.density(X).log_prob(torch.from_numpy(self.targets.checked(y, len(X)))).numpy()

    def distortion(self, X: NDArray[Any], y: Any, sample_weight: Any = None) -> float:
        """Return the mean squared distance of y to the nearest hypothesis."""
        values, targets = self.hypotheses(X).values, self.targets.checked(y, len(X))
        nearest = ((values - targets[:, None]) ** 2).sum(axis=-1).min(axis=1)
        return float(np.average(nearest, weights=sample_weight))

    def columns(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return hypotheses and probabilities as columns."""
        values, probabilities = self.hypotheses(X)
        return np.concatenate([values.reshape(len(values), -1), probabilities], axis=1)

    def column_names(self) -> NDArray[Any]:
        """Return the names of `columns`."""
        n_answers = self.predictive.n_answers
        names = [f"{target}_hypothesis{k}" for k in range(n_answers) for target in self.targets.names]
        return np.array([*names, *(f"probability{k}" for k in range(n_answers))], dtype=object)


def check_converged(predictive: Any, rows: Rows, learning_rate: Any) -> None:
    """Check that means of rows that trained are finite and near the targets.

    Raises:
        ValueError: if all networks diverged.
    """
    means = predictive.means(rows.head(_JUDGED_ROWS).inputs.astype(np.float64)).abs().median()
    if not means < _DIVERGED:
        rule, advice = "let the training converge", "All networks diverged; try 0.01."
        raise ValueError(bad_value(predictive.targets.owner, "learning_rate", rule, repr(learning_rate), advice))
