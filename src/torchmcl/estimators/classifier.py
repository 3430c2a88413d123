"""MCLClassifier: the original multiple-choice setting, several guesses at the class of each row."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.costs import pairwise_cross_entropy
from torchmcl.estimators._base import MCLEstimator
from torchmcl.estimators._networks import Scaler, answers
from torchmcl.estimators._rows import Rows, split_rows
from torchmcl.estimators.saving import load_estimator, save_estimator

__all__ = ["Guesses", "MCLClassifier"]


class Guesses(NamedTuple):
    """Several guesses for each row.

    Attributes:
        values: [rows, hypotheses], the most likely class of each guess.
        probabilities: [rows, hypotheses], how likely each guess is to be the one to trust, summing to 1.
        class_probabilities: [rows, hypotheses, classes], what each guess says of all classes.
    """

    values: NDArray[Any]
    probabilities: NDArray[Any]
    class_probabilities: NDArray[Any]


class MCLClassifier(ClassifierMixin, MCLEstimator):
    """Several guesses at the class of each row, trained so that one of them is right.

    Each guess is a distribution over the classes, and its cost the cross-entropy. The guesses become specialists;
    `predict` and `predict_proba` mix them by their scores, `oracle_score` asks whether any of them is right. The
    parameters and attributes are those of `MCLRegressor`; in addition there is

    Attributes:
        classes_: the classes, sorted.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2))
        >>> y = np.where(rng.uniform(size=300) < 0.5, "up", np.where(X[:, 0] > 0, "right", "left"))
        >>> model = MCLClassifier(n_hypotheses=2, n_epochs=100, random_state=0).fit(X, y)
        >>> model.oracle_score(X, y) > 0.9 > model.score(X, y)
        True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MCLClassifier":
        """Train on a table.

        Args:
            X: [rows, features], an array or a data frame of numbers without missing values.
            y: [rows], class labels.
            sample_weight: [rows], how much each row counts.
        """
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weights = self._checked_weights(sample_weight, X)
        counted = y if weights is None else y[weights > 0]
        self.classes_ = np.unique(counted)
        ids = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        seed = self._seed()
        held_out = float(self.validation_fraction) / 2  # nothing is calibrated: only the selecting half is held out
        split = split_rows(X, ids, weights, held_out=2 * held_out, seed=seed, strata=ids)
        train = _joined(split.train, split.calibration)
        self._inputs = Scaler.of(train.inputs, train.weights)
        self._train(train, split.selection, seed, len(self.classes_), self._tensors, pairwise_cross_entropy)
        return self

    def _tensors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self._inputs(rows.inputs)), torch.from_numpy(rows.targets).unsqueeze(1)

    def predict_hypotheses(self, X: Any) -> Guesses:
        """Return the guesses for each row and their probabilities."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        logits, probabilities = answers(self.modules_, torch.from_numpy(self._inputs(X, X.dtype)), self.device)
        shares = logits.softmax(dim=-1).numpy()
        return Guesses(self.classes_[shares.argmax(axis=-1)], probabilities.numpy(), shares)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, the guesses mixed by their scores, [rows, classes]."""
        _, probabilities, shares = self.predict_hypotheses(X)
        mixed = (probabilities[..., None] * shares).sum(axis=1)
        return mixed / mixed.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of each row under `predict_proba`, [rows]."""
        chosen: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)] if self._fitted() else np.zeros(0)
        return chosen

    def oracle_score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows for which at least one guess is right."""
        values = self.predict_hypotheses(X).values
        truth = column_or_1d(y)
        if len(truth) != len(values):
            raise ValueError(bad_value("MCLClassifier", "y", f"have {len(values)} rows", len(truth)))
        right = (values == truth[:, None]).any(axis=1)
        return float(np.average(right, weights=sample_weight))

    def _fitted(self) -> bool:
        check_is_fitted(self)
        return True

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder, as `MCLRegressor.save` does."""
        check_is_fitted(self)
        save_estimator(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> "MCLClassifier":
        """Return the estimator that `save` wrote."""
        loaded: MCLClassifier = load_estimator(Path(folder), cls)
        return loaded


def _joined(left: Rows, right: Rows) -> Rows:
    return Rows(
        np.concatenate([left.inputs, right.inputs]),
        np.concatenate([left.targets, right.targets]),
        np.concatenate([left.weights, right.weights]),
    )
