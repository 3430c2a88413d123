"""The base class of the quantizers: a scikit-learn clusterer."""

from abc import ABC, abstractmethod
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.costs import pairwise_sq_euclidean

__all__ = ["Quantizer"]


class Quantizer(TransformerMixin, ClusterMixin, BaseEstimator, ABC):
    """Places `n_hypotheses` points among samples with a small squared distance to the nearest point.

    A subclass stores its parameters in `__init__` under their own names and writes `_place`.

    Attributes:
        cluster_centers_: array [hypotheses, dim], the points.
        labels_: array [samples], the nearest point of each sample.
        distortion_: the mean squared distance to the nearest point.
        inertia_: the sum of the squared distances, as scikit-learn's KMeans counts.
        n_iter_: number of updates of the points.
        n_features_in_: dim.
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
        """Place the points.

        Args:
            X: samples [samples, dim], an array or a tensor; at least as many as points.
            y: ignored, there so that pipelines can pass it.
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
        """Return minus the sum of squared distances to the nearest point: higher is better."""
        return -float(self._cost(X).amin(dim=-1).sum())

    def _cost(self, X: Any) -> Tensor:  # noqa: N803
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        return pairwise_sq_euclidean(hypotheses=torch.from_numpy(self.cluster_centers_).to(samples), targets=samples)

    def _samples(self, X: Any, *, reset: bool) -> Tensor:  # noqa: N803
        """Return the samples as float64 [samples, dim], on their device."""
        device = X.device if isinstance(X, Tensor) else None
        values = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        return torch.from_numpy(validate_data(self, values, dtype=np.float64, copy=True, reset=reset)).to(device)

    def _generator(self) -> torch.Generator:
        state = getattr(self, "random_state", None)
        seed = state if isinstance(state, Integral) else check_random_state(state).randint(2**31 - 1)
        return torch.Generator().manual_seed(int(seed))
