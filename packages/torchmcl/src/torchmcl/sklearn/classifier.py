"""MCLClassifier: the original multiple-choice setting, several guesses of the class of each row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import nn

from torchmcl._checks import bad_value
from torchmcl.fleet import FleetSearch
from torchmcl.nn import MultiHypothesisHead
from torchmcl.schedules import Schedule
from torchmcl.sklearn.class_mixture import ClassMixture
from torchmcl.sklearn.classification import classifier_by_rule, classifier_further
from torchmcl.sklearn.columns import checked_table, set_fitted
from torchmcl.sklearn.saving import read_estimator, save_estimator

__all__ = ["MCLClassifier", "TopClasses"]


class TopClasses(NamedTuple):
    """Several classes for each row, the most probable first.

    Attributes:
        values: [rows, classes], different classes.
        probabilities: [rows, classes], of each of them; the rest to 1 is that of all other classes.
    """

    values: NDArray[Any]
    probabilities: NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn compares and prints estimators in its own way
class MCLClassifier(ClassifierMixin, BaseEstimator):
    """Several guesses of the class of each row, with calibrated probabilities.

    A network gives `n_hypotheses` distributions over the classes and a score for each, and is trained by multiple
    choice learning with the cost -log(score p(class)). Below 50 000 rows there are five networks, each of which holds
    out another fifth of the rows. The epoch with the lowest log-loss on all held-out rows is kept, and the temperature
    that makes the probabilities fit those rows. Order, weights and copies of rows count as for `MCLRegressor`.

    The parameters and attributes are those of `MCLRegressor`, except for these:

    Args:
        n_hypotheses: distributions that a network mixes, and classes that `predict_hypotheses` returns (at most all).
        rule: `AutoAnnealing()` by default. With `Cooling(5.0, 1.0, share=0.5, linear=True)` the training ends with the
            likelihood of the mixture: at a temperature of 1 hypotheses share a row as they explain it. Below, a winner
            takes each row.
        n_bins: none by default.
        n_epochs: by default 90 for small tables, and about 1500 optimizer steps and a twentieth of the rows for others.
        batch_size: by default three times the square root of the rows, between 200 and 1024.
        weight_decay: by default 0.05, and more for fewer than 1300 rows: up to 2 for 200; by the noise per row with
            `AutoAnnealing`.
        keep_best: true by default.
        validation_fraction: share of the rows that each network holds out, rounded to 1/2, 1/3, 1/4 ...; at most
            10 000 rows. At 0 the last epoch is kept and nothing is calibrated.
        patience: by default a fifth of the epochs, at least 20.
        final_fit_on_all_rows: false by default.
        class_weight: weights of the classes by label, or "balanced" for the same weight of all classes.

    Attributes:
        classes_: the classes, sorted.
        temperature_: of the probabilities of each network, 1 where nothing is held out.
        validation_losses_: log-loss of each network on the rows that it held out.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2))
        >>> y = np.where(rng.uniform(size=300) < 0.5, "up", np.where(X[:, 0] > 0, "right", "left"))
        >>> model = MCLClassifier(n_hypotheses=2, n_epochs=100, random_state=0).fit(X, y)
        >>> model.oracle_score(X, y) > 0.9 > model.score(X, y)
        True
    """

    n_hypotheses: int = 5
    rule: Any = None
    hidden: Any = (64, 64)
    n_bins: int | None = 0
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | Schedule = 0.02
    weight_decay: float | None = None
    keep_best: bool = True
    validation_fraction: float = 0.2
    patience: int | None = None
    n_restarts: int | None = None
    ensemble: bool = True
    final_fit_on_all_rows: bool = False
    search: FleetSearch | None = None
    device: str | torch.device = "cpu"
    random_state: Any = None
    progress: bool = False
    class_weight: Mapping[Any, float] | str | None = None

    def __sklearn_tags__(self) -> Any:
        """Return the capabilities of the estimator."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, checkpoint: str | Path | None = None
    ) -> "MCLClassifier":
        """Train on a table. A failing fit leaves the estimator unchanged.

        Args:
            X: [rows, features], an array or data frame of numbers; NaN where one is missing.
            y: [rows], class labels.
            sample_weight: [rows], how often each row occurs relative to the others; only the ratios matter.
            groups: [rows], labels of rows that belong together (of one patient, one place, one scene): they are held
                out together, in every split.
            checkpoint: folder to save the training to on the way; the same call resumes from there after a kill.
        """
        set_fitted(self, classifier_by_rule(self, X, y, sample_weight, groups, checkpoint))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "MCLClassifier":
        """Train for one more epoch on further rows, after the last call (or `fit`).

        One network is trained, or `n_restarts` of them where that is given; after `fit` those that it kept. Nothing is
        held out, so that the probabilities stay as they were calibrated, if they were.

        Args:
            X: [rows, features]
            y: [rows], class labels.
            classes: all classes that will ever come; needed in the first call.
            sample_weight: [rows], how much each row counts.

        Raises:
            ValueError: if the first call has no `classes`, or a label is not among them.
        """
        set_fitted(self, classifier_further(self, X, y, classes, sample_weight))
        return self

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, [rows, classes]."""
        check_is_fitted(self)
        return self._mixture.on(self.device)(checked_table(self, X, reset=False)[0])

    def predict_hypotheses(self, X: Any) -> TopClasses:
        """Return the `n_hypotheses` most probable classes of each row, or all if there are fewer."""
        probabilities = self.predict_proba(X)
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.n_answers_]
        return TopClasses(self.classes_[order], np.take_along_axis(probabilities, order, axis=1))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of each row, [rows]."""
        probabilities = self.predict_proba(X)  # first: it checks that there are classes
        chosen: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return chosen

    def oracle_score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows for which at least one guess is right."""
        values = self.predict_hypotheses(X).values
        truth = column_or_1d(y)
        if len(truth) != len(values):
            raise ValueError(bad_value(type(self).__name__, "y", f"have {len(values)} rows", len(truth)))
        right = (values == truth[:, None]).any(axis=1)
        return float(np.average(right, weights=sample_weight))

    classes_: NDArray[Any] = field(init=False)
    _mixture: ClassMixture = field(init=False)

    @property
    def modules_(self) -> list[nn.Module]:
        """The networks that were kept."""
        return self._mixture.modules

    @property
    def temperature_(self) -> float:
        """The temperature of the probabilities of each network."""
        return self._mixture.temperature

    @property
    def n_answers_(self) -> int:
        """The number of predicted classes per row."""
        head: MultiHypothesisHead = self.modules_[0].head  # type: ignore[assignment]
        return min(head.n_hypotheses, len(self.classes_))

    def save(self, folder: str | Path, *, private: bool = False) -> None:
        """Write the fitted estimator to a folder, as `MCLRegressor.save` does; it never contains rows."""
        check_is_fitted(self)
        save_estimator(self, Path(folder), private=private)

    @classmethod
    def load(cls, folder: str | Path) -> "MCLClassifier":
        """Return the estimator written by `save`; a folder without one raises a ValueError."""
        loaded: MCLClassifier = read_estimator(f"{cls.__name__}.load", Path(folder), [cls])
        return loaded
