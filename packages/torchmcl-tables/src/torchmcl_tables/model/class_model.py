"""A model of a table with classes: a classifier with everything needed to answer for the rows of a file."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.sklearn import MCLClassifier
from torchmcl_tables.data import ColumnEncoder, TableSchema
from torchmcl_tables.model.answering import Answering, word_for_probability

__all__ = ["ClassModel", "likely_sets"]


@dataclass(frozen=True)
class ClassModel(Answering):
    """A classifier with everything needed to answer for the rows of a file.

    The columns of its answers are `<target>_1`, `<target>_2` ..., the most probable classes, then `probability_1`,
    `probability_2` ...; with an interval also `<target>_set`, the fewest classes that together have that probability.

    Attributes:
        schema: the columns.
        encoder: turns them into numbers.
        classifier: gives the answers.
        source: the name of the file that was learned from.
        metrics: how the fit went, as JSON can hold it.
        evaluation: records of the set-apart rows for the report; None where none were set apart.
    """

    schema: TableSchema
    encoder: ColumnEncoder
    classifier: MCLClassifier
    source: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None

    @property
    def estimator(self) -> MCLClassifier:
        """The estimator of the answers."""
        return self.classifier

    @property
    def n_answers(self) -> int:
        """The number of predicted classes per row."""
        return self.classifier.n_answers_

    def _answers(self, inputs: NDArray[np.float32], interval: float | None) -> dict[str, Any]:
        probabilities = self.classifier.predict_proba(inputs)
        n_guesses = self.n_answers
        order = np.argsort(-probabilities, axis=1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, axis=1)
        names = self.classifier.classes_[order]
        target = self.schema.targets[0]
        made: dict[str, Any] = {f"{target}_{k + 1}": names[:, k].tolist() for k in range(n_guesses)}
        if interval is not None:
            counts = likely_sets(ranked, interval)
            made[f"{target}_set"] = [" or ".join(row[:n]) for row, n in zip(names.tolist(), counts, strict=True)]
        word = word_for_probability(self.schema.targets)
        return made | {f"{word}_{k + 1}": ranked[:, k].round(8) for k in range(n_guesses)}


def likely_sets(ranked: NDArray[np.float64], level: float) -> NDArray[np.int64]:
    """Return the number of most probable classes that reach this probability together, [rows].

    Example:
        >>> likely_sets(np.array([[0.6, 0.3, 0.1], [0.95, 0.03, 0.02]]), 0.9)
        array([2, 1])
    """
    enough = ranked.cumsum(axis=1) < level - 1e-9
    return np.minimum(enough.sum(axis=1) + 1, ranked.shape[1])
