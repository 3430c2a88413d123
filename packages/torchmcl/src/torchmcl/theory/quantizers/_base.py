"""The base class of the quantisers: the interface of a scikit-learn clusterer, without scikit-learn."""

import inspect
import sys
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.costs import pairwise_sq_euclidean

__all__ = ["Quantizer", "distortion_of", "lloyd_steps"]


class Quantizer(ABC):
    """Places `n_hypotheses` points among samples so that the squared distance to the nearest is small.

    A subclass stores its parameters in `__init__` under their own names and writes `_place`.

    Attributes:
        cluster_centers_: array [hypotheses, dim], the points.
        labels_: array [samples], the nearest point of each sample.
        distortion_: the mean squared distance to the nearest point.
        inertia_: the sum of the squared distances, as scikit-learn's KMeans counts.
        n_iter_: how many updates of the points were made.
        n_features_in_: dim.
    """

    n_hypotheses: int
    cluster_centers_: np.ndarray
    labels_: np.ndarray
    distortion_: float
    inertia_: float
    n_iter_: int
    n_features_in_: int

    @abstractmethod
    def _place(self, samples: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
        """Return points [hypotheses, dim] for samples [samples, dim], and the number of updates."""

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Place the points.

        Args:
            X: samples [samples, dim], an array or a tensor; at least as many as points.
            y: ignored, there so that pipelines can pass it.
        """
        samples = self._samples(X)
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
        self.n_features_in_ = samples.shape[1]
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the index of the nearest point for each sample, [samples]."""
        return self._cost(X).argmin(dim=-1).cpu().numpy()

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the distance of each sample to each point, [samples, hypotheses]."""
        return self._cost(X).sqrt().cpu().numpy()

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: N803
        """Place the points and return the nearest of each sample."""
        return self.fit(X, y).labels_

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:  # noqa: N803
        """Place the points and return the distances to them."""
        return self.fit(X, y).transform(X)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """Return minus the sum of squared distances to the nearest point: higher is better."""
        return -float(self._cost(X).amin(dim=-1).sum())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {
            name: getattr(self, name) for name in inspect.signature(type(self).__init__).parameters if name != "self"
        }

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        known = self.get_params()
        if unknown := sorted(params.keys() - known.keys()):
            raise ValueError(f"{type(self).__name__}: unknown option {unknown}; known options are {sorted(known)}.")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn, which alone calls this, what kind of estimator it is."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="clusterer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether `fit` was called."""
        return hasattr(self, "cluster_centers_")

    def __repr__(self) -> str:
        """Return the call that makes this object."""
        inside = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({inside})"

    def _cost(self, X: Any) -> Tensor:  # noqa: N803
        owner = type(self).__name__
        if not hasattr(self, "cluster_centers_"):
            raise _not_fitted(f"{owner}: call `fit` before `predict`, `transform` or `score`.")
        samples = self._samples(X)
        n, n_fitted = samples.shape[1], self.n_features_in_
        if n != n_fitted:
            advice = f"X has {n} features, but {owner} is expecting {n_fitted} features as input."
            raise ValueError(bad_value(owner, "X", "have the columns it was fitted with", n, advice))
        return pairwise_sq_euclidean(hypotheses=torch.from_numpy(self.cluster_centers_).to(samples), targets=samples)

    def _samples(self, X: Any) -> Tensor:  # noqa: N803
        """Return the samples as float64 [samples, dim], on the device they come on.

        The messages contain the words that scikit-learn's own checks look for.
        """
        owner = type(self).__name__
        if hasattr(X, "toarray"):
            raise TypeError(bad_value(owner, "X", "be dense", "a sparse container", "Use X.toarray()."))
        values = X.detach() if isinstance(X, Tensor) else np.asarray(X)
        if values.dtype in (torch.complex64, torch.complex128, np.complex64, np.complex128):
            raise ValueError(bad_value(owner, "X", "be real", values.dtype, "Complex data not supported."))
        samples = values.double() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, np.float64))
        if samples.ndim != 2:
            advice = "Reshape your data: X.reshape(-1, 1) is a single column."
            raise ValueError(bad_value(owner, "X", "have shape [samples, dim]", tuple(samples.shape), advice))
        for axis, what in enumerate(("sample(s)", "feature(s)")):
            if samples.shape[axis] == 0:
                got = f"0 {what} (shape={tuple(samples.shape)}) while a minimum of 1 is required"
                raise ValueError(bad_value(owner, "X", "not be empty", got))
        if not bool(samples.isfinite().all()):
            raise ValueError(bad_value(owner, "X", "be finite", "NaN or infinity", "Remove or impute such rows."))
        return samples

    def _generator(self) -> torch.Generator:
        state = getattr(self, "random_state", None)
        generator = torch.Generator()
        if state is None:
            generator.seed()
            return generator
        if isinstance(state, np.random.RandomState):
            return generator.manual_seed(int(state.randint(2**31 - 1)))
        if isinstance(state, bool) or not isinstance(state, int | np.integer):
            raise TypeError(bad_value(type(self).__name__, "random_state", "be None or an integer", repr(state)))
        return generator.manual_seed(int(state))


def _not_fitted(message: str) -> Exception:
    """Return scikit-learn's NotFittedError where scikit-learn is in use, an AttributeError elsewhere."""
    exceptions = sys.modules.get("sklearn.exceptions")
    return AttributeError(message) if exceptions is None else exceptions.NotFittedError(message)


def distortion_of(samples: Tensor, points: Tensor) -> Tensor:
    """Return the mean squared distance of samples to their nearest point."""
    return pairwise_sq_euclidean(hypotheses=points, targets=samples).amin(dim=-1).mean()


def lloyd_steps(samples: Tensor, points: Tensor, n_steps: int, tolerance: float) -> tuple[Tensor, int]:
    """Return points after steps of Lloyd (winner-takes-all, T = 0), and how many; starved points stay.

    Args:
        samples: [samples, dim]
        points: [hypotheses, dim]
        n_steps: maximum number of steps.
        tolerance: stop when no point moves further.
    """
    for step in range(n_steps):
        winners = pairwise_sq_euclidean(hypotheses=points, targets=samples).argmin(dim=-1)
        sums = torch.zeros_like(points).index_add_(0, winners, samples)
        counts = torch.bincount(winners, minlength=len(points)).to(points).unsqueeze(-1)
        moved = torch.where(counts > 0, sums / counts.clamp_min(1), points)
        far = float((moved - points).norm(dim=-1).max())
        points = moved
        if far <= tolerance:
            return points, step + 1
    return points, n_steps
