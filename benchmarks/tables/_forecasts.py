"""Predictions of the methods of the table benchmark, and their measures."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr

from torchmcl_tables import PredictionIntervals

N_POINTS = 5
# Five quantiles in the middles of five equal shares: what a user would take for five answers.
MID_LEVELS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
# Enough quantiles to stand for a whole distribution.
FINE_LEVELS = (np.arange(99) + 0.5) / 99


class Mixture(NamedTuple):
    """Normal kernels for each row; those with standard deviation 0 are atoms.

    Attributes:
        weights: Weights of the kernels, [rows, kernels], summing to 1.
        means: Means of the kernels, [rows, kernels].
        deviations: Standard deviations of the kernels, [rows, kernels].
    """

    weights: np.ndarray
    means: np.ndarray
    deviations: np.ndarray

    @classmethod
    def of_atoms(cls, values: np.ndarray, weights: np.ndarray | None = None) -> "Mixture":
        """Return atoms at values [rows, atoms], of equal weights by default."""
        shares = (
            np.full(values.shape, 1 / values.shape[1]) if weights is None else np.broadcast_to(weights, values.shape)
        )
        return cls(shares, values, np.zeros_like(values))

    @property
    def mean(self) -> np.ndarray:
        """The mean of each row."""
        return (self.weights * self.means).sum(axis=1)

    def rows(self, chosen: slice) -> "Mixture":
        """Return some of the rows."""
        return Mixture(*(part[chosen] for part in self))

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the distribution function at values [rows, values]; for kernels of positive deviation."""
        steps = (values[:, None] - self.means[..., None]) / self.deviations[..., None]
        return (self.weights[..., None] * ndtr(steps)).sum(axis=1)

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return quantiles [rows, levels] by bisection; for kernels of positive deviation."""
        reach = 9 * self.deviations
        low = np.repeat((self.means - reach).min(axis=1)[:, None], len(levels), axis=1)
        high = np.repeat((self.means + reach).max(axis=1)[:, None], len(levels), axis=1)
        for _ in range(50):
            middle = (low + high) / 2
            below = self.cdf(middle) < levels
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def log_likelihood(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the log density of targets [rows]; None where there are atoms."""
        if (self.deviations == 0).any():
            return None
        steps = (targets[:, None] - self.means) / self.deviations
        logs = -0.5 * steps**2 - np.log(self.deviations) - 0.5 * math.log(2 * math.pi)
        return logsumexp(logs, axis=1, b=self.weights)

    def crps(self, targets: np.ndarray) -> np.ndarray:
        """Return the continuous ranked probability score E|Y - y| - E|Y - Y'| / 2 in closed form, [rows]."""
        near = (self.weights * _mean_distance(targets[:, None] - self.means, self.deviations)).sum(axis=1)
        spread = np.hypot(self.deviations[:, :, None], self.deviations[:, None, :])
        pairs = _mean_distance(self.means[:, :, None] - self.means[:, None, :], spread)
        return near - 0.5 * np.einsum("ri,rj,rij->r", self.weights, self.weights, pairs)


def _mean_distance(offsets: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Return E|offset + deviation * Z| for a standard normal Z."""
    safe = np.where(deviations > 0, deviations, 1.0)
    z = offsets / safe
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    smooth = offsets * (2 * ndtr(z) - 1) + 2 * safe * density
    return np.where(deviations > 0, smooth, np.abs(offsets))


class Forecast(NamedTuple):
    """Predictions of a method.

    Attributes:
        points: Five point predictions, [rows, 5].
        best_points: Five points with the lowest distortion under the predicted distribution, [rows, 5]; `points` for
            methods without a distribution.
        mean: Predicted means, [rows].
        mixture: Predicted distribution.
        intervals: Prediction sets with 90 % coverage.
    """

    points: np.ndarray
    best_points: np.ndarray
    mean: np.ndarray
    mixture: Mixture
    intervals: PredictionIntervals
    fine: np.ndarray | None = None  # its quantiles at FINE_LEVELS, where the mixture does not give them
    points_of: Callable[[int], np.ndarray] | None = None  # the best k points, where a method has a way of its own


#: A fitted method: rows of inputs in, its answers out.
Predict = Callable[[np.ndarray], Forecast]


def one_interval(lower: np.ndarray, upper: np.ndarray) -> PredictionIntervals:
    """Return plain intervals, one for each row."""
    return PredictionIntervals(lower[:, None], upper[:, None])


def best_points(quantiles: np.ndarray, n_points: int = N_POINTS, n_rounds: int = 60) -> np.ndarray:
    """Return the points [rows, points] with the lowest distortion for each row's sorted quantiles [rows, levels].

    Lloyd's algorithm on the line, started at the middles of equal shares.
    """
    n = quantiles.shape[1]
    sums = np.concatenate([np.zeros((len(quantiles), 1)), quantiles.cumsum(axis=1)], axis=1)
    starts = ((np.arange(n_points) + 0.5) * n / n_points).astype(int)
    points = quantiles[:, starts]
    for _ in range(n_rounds):
        borders = (points[:, 1:] + points[:, :-1]) / 2
        inner = (quantiles[:, :, None] <= borders[:, None, :]).sum(axis=1)
        ends = np.concatenate([np.zeros((len(inner), 1), int), inner, np.full((len(inner), 1), n)], axis=1)
        counts = np.diff(ends, axis=1)
        totals = np.diff(np.take_along_axis(sums, ends, axis=1), axis=1)
        points = np.where(counts > 0, totals / np.maximum(counts, 1), points)
    return points


def of_density(mixture: Mixture) -> Forecast:
    """Return the forecast of a method that is a density: its quantiles are its points."""
    fine = mixture.quantiles(FINE_LEVELS)
    ends = mixture.quantiles(np.array([0.05, 0.95]))
    interval = one_interval(ends[:, 0], ends[:, 1])
    return Forecast(mixture.quantiles(MID_LEVELS), best_points(fine), mixture.mean, mixture, interval, fine)


def measures(forecast: Forecast, targets: np.ndarray, unit: float) -> dict[str, float | None]:
    """Return the measures of a forecast; `unit` is the deviation by which the targets [rows] were divided."""

    def distortion(points: np.ndarray) -> float:
        return float(((points - targets[:, None]) ** 2).min(axis=1).mean()) * unit**2

    logs = forecast.mixture.log_likelihood(targets)
    return {
        "distortion": distortion(forecast.points),
        "distortion_best_points": distortion(forecast.best_points),
        "crps": float(forecast.mixture.crps(targets).mean()) * unit,
        "log_likelihood": None if logs is None else float(logs.mean()) - math.log(unit),
        "rmse": float(np.sqrt(((forecast.mean - targets) ** 2).mean())) * unit,
        "coverage": float(forecast.intervals.contains(targets).mean()),
        "width": float(forecast.intervals.width.mean()) * unit,
    }
