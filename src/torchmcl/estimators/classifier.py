"""MCLClassifier: the original multiple-choice setting, several guesses at the class of each row."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from torchmcl._checks import bad_value
from torchmcl.costs import pairwise_cross_entropy
from torchmcl.estimators._base import MCLEstimator
from torchmcl.estimators._rows import Rows, split_rows

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
    parameters and attributes are those of `MCLRegressor`, with other defaults: the best epoch of one network, a
    learning rate of 0.01, a weight decay of 0.4, no final fit on all rows, no knots. Nothing is calibrated, so that all
    of `validation_fraction` (by default a tenth of the rows of each class, at most 10 000 rows) selects. In addition
    there is

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

    _cost_fn = staticmethod(pairwise_cross_entropy)

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, checkpoint: str | Path | None = None
    ) -> "MCLClassifier":
        """Train on a table.

        Args:
            X: [rows, features], an array or a data frame of numbers without missing values.
            y: [rows], class labels.
            sample_weight: [rows], how often each row occurs relative to the others; only the ratios matter.
            groups: [rows], labels of rows that belong together (of one patient, one place, one scene): they are held
                out together, in every split.
            checkpoint: folder to save the training to on the way; the same call resumes from there after a kill.
        """
        self._check_parameters()
        X, y, weights = self._validated(X, y, sample_weight, reset=True)
        self.classes_ = np.unique(y if weights is None else y[weights > 0])
        ids = self._class_ids(y, weights)
        seed = self._seed()
        together = self._checked_groups(groups, X)
        share = float(self.validation_fraction)
        split = split_rows(X, ids, weights, selecting=share, seed=seed, groups=together, strata=ids)
        self._inputs = self._encoder(split.train)
        training = self._train(split.train, split.selection, seed, checkpoint)
        if self.final_fit_on_all_rows and len(split.selection):
            self._train_on_all(training, split.train.joined(split.selection))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "MCLClassifier":
        """Train for one epoch on some more rows, from where the last call (or `fit`) ended.

        Args:
            X: [rows, features]
            y: [rows], class labels.
            classes: all classes that will ever come; needed in the first call.
            sample_weight: [rows], how much each row counts.

        Raises:
            ValueError: if the first call has no `classes`, or a label is not among them.
        """
        first = not hasattr(self, "modules_")
        self._check_parameters()
        X, y, weights = self._validated(X, y, sample_weight, reset=first, n_needed=1)
        if first:
            if classes is None:
                advice = "For example classes=np.unique(all_labels)."
                raise ValueError(bad_value("MCLClassifier", "classes", "be given in the first call", None, advice))
            self.classes_ = np.unique(classes)
            self._state_seed, self._moments, self._annealing = self._seed(), None, None
        ids = self._class_ids(y, weights)
        rows = split_rows(X, ids, weights, seed=self._state_seed).train
        if first:
            self._inputs = self._encoder(rows, default=0)
        self._train_more(rows)
        return self

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, n_needed: int = 2
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32], ensure_min_samples=n_needed)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True), self._checked_weights(sample_weight, X)

    def _class_ids(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> NDArray[np.int64]:
        ids = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        counts = np.ones(len(y), dtype=bool) if weights is None else weights > 0
        if (unknown := counts & (self.classes_[ids] != y)).any():
            rule = f"hold classes among {self.classes_.tolist()}"
            raise ValueError(bad_value("MCLClassifier", "y", rule, repr(y[unknown][0])))
        return ids.astype(np.int64)

    @property
    def _out_features(self) -> int:
        return len(self.classes_)

    def _encoded_targets(self, rows: Rows) -> NDArray[Any]:
        return rows.targets

    def predict_hypotheses(self, X: Any) -> Guesses:
        """Return the guesses for each row and their probabilities."""
        logits, probabilities = self._all_answers(self._checked_inputs(X))
        shares = logits.softmax(dim=-1).numpy()
        return Guesses(self.classes_[shares.argmax(axis=-1)], probabilities.numpy(), shares)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, the guesses mixed by their scores, [rows, classes]."""
        _, probabilities, shares = self.predict_hypotheses(X)
        mixed = (probabilities[..., None] * shares).sum(axis=1)
        return mixed / mixed.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of each row under `predict_proba`, [rows]."""
        probabilities = self.predict_proba(X)  # first: it checks that there are classes
        chosen: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return chosen

    def oracle_score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows for which at least one guess is right."""
        values = self.predict_hypotheses(X).values
        truth = column_or_1d(y)
        if len(truth) != len(values):
            raise ValueError(bad_value("MCLClassifier", "y", f"have {len(values)} rows", len(truth)))
        right = (values == truth[:, None]).any(axis=1)
        return float(np.average(right, weights=sample_weight))
