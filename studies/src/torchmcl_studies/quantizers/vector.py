"""Quantizers of samples: Lloyd's algorithm, deterministic annealing and simulated annealing."""

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torchmcl.checks import check_interval, check_positive, check_positive_int
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.errors import bad_value
from torchmcl.theory import (
    Trajectory,
    boltzmann_weights,
    lloyd,
    local_critical_temperature,
    max_distortion,
    soft_barycenters,
)

__all__ = ["DeterministicAnnealing", "Lloyd", "Quantizer", "SimulatedAnnealing"]


class Quantizer(TransformerMixin, ClusterMixin, BaseEstimator, ABC):
    """Base class of quantizers: `n_hypotheses` points with a small squared distance from samples to the nearest point.

    A subclass stores its parameters in `__init__` under the same names and implements `_place`.

    Attributes:
        cluster_centers_: Points, array [hypotheses, dim].
        labels_: Index of the nearest point of each sample, array [samples].
        distortion_: Mean squared distance to the nearest point.
        inertia_: Sum of the squared distances, as in KMeans of scikit-learn.
        n_iter_: Number of updates of the points.
        n_features_in_: Number of dimensions.
    """

    n_hypotheses: int
    cluster_centers_: np.ndarray
    labels_: np.ndarray
    distortion_: float
    inertia_: float
    n_iter_: int

    @abstractmethod
    def _place(self, samples: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        """Return points [hypotheses, dim] for samples [samples, dim], and the number of updates."""

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Compute the codebook from samples.

        Args:
            X: Samples, an array or a tensor [samples, dim] with at least as many samples as points.
            y: Ignored; accepted for use in pipelines.
        """
        samples = self._samples(X, reset=True)
        owner = type(self).__name__
        check_positive_int(owner, "n_hypotheses", self.n_hypotheses)
        if len(samples) < self.n_hypotheses:
            rule = f"be at most the number of samples (n_samples={len(samples)})"
            raise ValueError(bad_value(owner, "n_hypotheses", rule, self.n_hypotheses))
        points, self.n_iter_ = self._place(samples, self._generator())
        squares, labels = pairwise_sq_euclidean(hypotheses=points, targets=samples).min(dim=-1)
        self.cluster_centers_ = points.cpu().numpy()
        self.labels_ = labels.cpu().numpy()
        self.inertia_ = float(squares.sum())
        self.distortion_ = self.inertia_ / len(samples)
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the index of the nearest point for each sample, [samples]."""
        return self._cost(X).argmin(dim=-1).cpu().numpy()

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the distance of each sample to each point, [samples, hypotheses]."""
        return self._cost(X).sqrt().cpu().numpy()

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """Return the negative sum of squared distances to the nearest point; higher is better."""
        return -float(self._cost(X).amin(dim=-1).sum())

    def _cost(self, X: Any) -> Tensor:  # noqa: N803
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        return pairwise_sq_euclidean(hypotheses=torch.from_numpy(self.cluster_centers_).to(samples), targets=samples)

    def _samples(self, X: Any, *, reset: bool) -> Tensor:  # noqa: N803
        """Return the samples as a float64 tensor [samples, dim] on their device."""
        device = X.device if isinstance(X, Tensor) else None
        values = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        return torch.from_numpy(validate_data(self, values, dtype=np.float64, copy=True, reset=reset)).to(device)

    def _generator(self) -> torch.Generator:
        state = getattr(self, "random_state", None)
        seed = state if isinstance(state, Integral) else check_random_state(state).randint(2**31 - 1)
        return torch.Generator().manual_seed(int(seed))


# Tolerance of Lloyd's algorithm, relative to the spread of the data.
_AT_REST = 1e-7
_MAX_LLOYD_STEPS = 1000
# With fixed weights the free energy is bounded by a parabola around the barycenter, so any factor below 2 lowers it,
# and one close to 2 is nearly twice as fast where points converge slowly: near critical temperatures, and for many
# points.
_OVERSHOOT = 1.8


@dataclass(eq=False, repr=False)  # scikit-learn compares and prints estimators in its own way
class Lloyd(Quantizer):
    """Lloyd's algorithm with careful initialization: KMeans of scikit-learn with the interface of the other quantizers.

    KMeans moves unused points to better positions; `DeterministicAnnealing` does not need to.

    Args:
        n_hypotheses: Number of points.
        init: Initialization: "k-means++", "random" or initial points [hypotheses, dim].
        n_init: Number of runs, the best of which is kept; a single run with initial points.
        max_iter: Maximum number of updates.
        random_state: None or an integer.

    Example:
        >>> Lloyd(2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]]).distortion_
        0.25

    Reference:
        Lloyd (1982); Arthur and Vassilvitskii (2007) for the initialization.
    """

    n_hypotheses: int = 8
    _: KW_ONLY
    init: Any = "k-means++"
    n_init: int = 10
    max_iter: int = 300
    random_state: Any = None

    def _place(self, samples: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        has_points = not isinstance(self.init, str)
        kmeans = KMeans(
            self.n_hypotheses,
            init=self.init.cpu().numpy() if isinstance(self.init, Tensor) else self.init,
            n_init=1 if has_points else self.n_init,
            max_iter=self.max_iter,
            tol=0.0,
            random_state=int(torch.randint(2**31 - 1, (), generator=generator)),
        )
        kmeans.fit(samples.cpu().numpy())
        return torch.from_numpy(kmeans.cluster_centers_).to(samples), int(kmeans.n_iter_)


@dataclass(eq=False, repr=False)  # scikit-learn compares and prints estimators in its own way
class DeterministicAnnealing(Quantizer):
    """Deterministic annealing: the fixed points of the free energy, from high to low temperature.

    At each temperature the points move to the soft barycenters of the Boltzmann weights until they converge; then the
    temperature is lowered. All points start at the mean, and small random perturbations make them separate at each
    critical temperature. The last stage is Lloyd's algorithm, T = 0. This is annealed MCL with free points instead of a
    network.

    Args:
        n_hypotheses: Number of points.
        hottest: First temperature, relative to the local critical temperature of the samples.
        coldest: Last temperature before 0, relative to the same. By default 0.1 n^(-2 / dim): a tenth of the squared
            distance at which n points distinguish samples.
        decay: Ratio of each temperature to the previous one, in (0, 1).
        n_updates: Maximum number of updates at each temperature.
        tolerance: Largest movement of converged points, relative to the square root of T.
        push: Size of the random perturbation before each temperature, relative to the square root of T.
        random_state: None or an integer.

    Attributes:
        trajectory_: `Trajectory` of the cooling, for `observed_transitions`.

    Example:
        >>> annealing = DeterministicAnnealing(2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> round(annealing.distortion_, 6)
        0.25

    Reference:
        Rose, Gurewitz and Fox (1990, 1992); Prop. 1 and 2 for one input x.
    """

    n_hypotheses: int = 8
    _: KW_ONLY
    hottest: float = 1.2
    coldest: float | None = None
    decay: float = 0.9
    n_updates: int = 100
    tolerance: float = 1e-3
    push: float = 1e-3
    random_state: Any = None

    def _place(self, samples: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        temperatures = self._temperatures(samples)
        points = samples.mean(dim=0).expand(self.n_hypotheses, -1)
        records, n_done = [], 0
        for temperature in temperatures:
            scale = math.sqrt(temperature)
            noise = torch.randn(points.shape, generator=generator, dtype=torch.float64).to(points)
            points, n_steps = self._rest(samples, points + self.push * scale * noise, temperature)
            n_done += n_steps
            records.append(points)
        if records:
            self.trajectory_ = Trajectory(samples.new_tensor(temperatures), torch.stack(records))
        else:  # all samples are equal: there is nothing to cool
            self.trajectory_ = Trajectory(samples.new_zeros(1), points.unsqueeze(0))
        points, n_steps = lloyd(samples, points, _MAX_LLOYD_STEPS, _AT_REST * _spread(samples))
        return points, n_done + n_steps

    def _rest(self, samples: Tensor, points: Tensor, temperature: float) -> tuple[Tensor, int]:
        """Return the equilibrium points at a temperature, and the number of updates."""
        still = self.tolerance * math.sqrt(temperature)
        for step in range(self.n_updates):
            weights = boltzmann_weights(pairwise_sq_euclidean(hypotheses=points, targets=samples), temperature)
            moved = soft_barycenters(samples, weights, otherwise=points)
            far = float((moved - points).norm(dim=-1).max())
            points = points + _OVERSHOOT * (moved - points)
            # A perturbation may grow slowly: allow enough updates for it to become visible.
            if far <= still and step >= self.n_updates // 10:
                return points, step + 1
        return points, self.n_updates

    def _temperatures(self, samples: Tensor) -> list[float]:
        owner = type(self).__name__
        check_positive(owner, "hottest", self.hottest)
        check_positive_int(owner, "n_updates", self.n_updates)
        check_positive(owner, "tolerance", self.tolerance)
        check_positive(owner, "push", self.push, "Without perturbations, equal points never separate.")
        check_interval(owner, "decay", self.decay, "(0, 1)")
        coldest = 0.1 * self.n_hypotheses ** (-2 / samples.shape[1]) if self.coldest is None else self.coldest
        check_positive(owner, "coldest", coldest, "The last stage is T = 0 in any case.")
        critical = float(local_critical_temperature(samples))
        if critical <= torch.finfo(samples.dtype).tiny:
            return []
        n_steps = max(0, math.ceil(math.log(self.hottest / coldest) / -math.log(self.decay)))
        return [critical * self.hottest * self.decay**step for step in range(n_steps + 1)]


@dataclass(eq=False, repr=False)  # scikit-learn compares and prints estimators in its own way
class SimulatedAnnealing(Quantizer):
    """Simulated annealing of the points, coupled with Lloyd's algorithm.

    Each step adds Gaussian noise to all points, applies one Lloyd step, and keeps the result if it is better, or with
    probability exp(-n (increase of the distortion) / T) if it is worse. T falls from D_max n^(-2 / dim) to 0 with the
    cube of the remaining time and is the mean square of the noise, which initially is about the distance between
    points. The best points are kept and refined with Lloyd's algorithm.

    Args:
        n_hypotheses: Number of points.
        n_steps: Number of steps.
        always_accept: Whether to keep every result: the cheaper stochastic relaxation of the same authors.
        random_state: None or an integer.

    Example:
        >>> annealing = SimulatedAnnealing(2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> round(annealing.distortion_, 6)
        0.25

    Reference:
        Zeger, Vaisey and Gersho (1992); the paper's discussion of stochastic simulated annealing.
    """

    n_hypotheses: int = 8
    _: KW_ONLY
    n_steps: int = 500
    always_accept: bool = False
    random_state: Any = None

    def _place(self, samples: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        check_positive_int("SimulatedAnnealing", "n_steps", self.n_steps)
        n = self.n_hypotheses
        start = torch.randperm(len(samples), generator=generator)[:n]
        points = best = samples[start.to(samples.device)]
        current = lowest = float(_distortion_of(samples, points))
        widest = float(max_distortion(samples)) * n ** (-2 / samples.shape[1])
        for step in range(self.n_steps if widest > 0 else 0):
            temperature = widest * (1 - step / self.n_steps) ** 3
            noise = torch.randn(points.shape, generator=generator, dtype=torch.float64).to(points)
            shaken = points + math.sqrt(temperature / points.shape[1]) * noise
            proposal, _ = lloyd(samples, shaken, 1, 0.0)
            proposed = float(_distortion_of(samples, proposal))
            draw = float(torch.rand((), generator=generator))
            if self.always_accept or proposed <= current or draw < math.exp(-n * (proposed - current) / temperature):
                points, current = proposal, proposed
                if current < lowest:
                    best, lowest = points, current
        points, n_last = lloyd(samples, best, _MAX_LLOYD_STEPS, _AT_REST * _spread(samples))
        return points, self.n_steps + n_last


def _distortion_of(samples: Tensor, points: Tensor) -> Tensor:
    """Return the mean squared distance of samples to the nearest point, []."""
    return pairwise_sq_euclidean(hypotheses=points, targets=samples).amin(dim=-1).mean(dim=-1)


def _spread(samples: Tensor) -> float:
    return math.sqrt(float(max_distortion(samples)))
