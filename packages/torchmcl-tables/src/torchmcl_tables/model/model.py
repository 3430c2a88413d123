"""A model of a table: a regressor with everything needed to answer for the rows of a file."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.sklearn import MCLRegressor, PredictionIntervals
from torchmcl_tables.data import ColumnEncoder, TableSchema
from torchmcl_tables.estimators import DensityRegressor
from torchmcl_tables.model.answering import Answering, word_for_probability

__all__ = ["TableModel"]

# Digits of the deviation of a target, decimals at most, and those of probabilities.
_DIGITS, _MOST_DECIMALS, _PROBABILITY_DIGITS = 6, 300, 8


@dataclass(frozen=True)
class TableModel(Answering):
    """A regressor with everything needed to answer for the rows of a file.

    The columns of its answers are, for each target, `<target>_mean` and `<target>_1`, `<target>_2` ..., then
    `probability_1`, `probability_2` ... (`answer_probability_1` ... for a target that is itself named probability);
    with an interval also `<target>_low`, `<target>_high` and `<target>_set`, the set itself, which has several pieces
    where the answers lie apart.

    Attributes:
        schema: the columns.
        encoder: turns them into numbers.
        regressor: gives the answers.
        source: the name of the file that was learned from.
        metrics: how the fit went, as JSON can hold it.
        evaluation: records of the set-apart rows for the report; None where none were set apart.
    """

    schema: TableSchema
    encoder: ColumnEncoder
    regressor: DensityRegressor | MCLRegressor
    source: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None

    @property
    def estimator(self) -> DensityRegressor | MCLRegressor:
        """The estimator of the answers."""
        return self.regressor

    @property
    def n_answers(self) -> int:
        """The number of answers per row: fewer than requested if the target has fewer values."""
        return self.regressor.n_answers_

    def means(
        self, inputs: NDArray[np.float32], values: NDArray[np.float64], probabilities: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the mean of each row, [rows, targets]: that of its answers, except for discrete targets."""
        if getattr(self.regressor, "target_values_", None) is not None:
            return self.regressor.predict(inputs).reshape(len(values), -1)
        return np.einsum("rk,rko->ro", probabilities, values)

    def _answers(self, inputs: NDArray[np.float32], interval: float | None) -> dict[str, Any]:
        values, probabilities = self.regressor.predict_hypotheses(inputs)
        means = self.means(inputs, values, probabilities)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        probabilities = np.take_along_axis(probabilities, order, axis=1)
        probabilities = probabilities.round(_PROBABILITY_DIGITS)
        made: dict[str, Any] = {}
        sets = None if interval is None else self.regressor.predict_interval(inputs, coverage=interval)
        for place, target in enumerate(self.schema.targets):
            scale = float(self.regressor.target_scale_[place])
            own = rounded(np.take_along_axis(values[..., place], order, axis=1), scale)
            made[f"{target}_mean"] = rounded(means[:, place], scale)
            made |= {f"{target}_{k + 1}": own[:, k] for k in range(own.shape[1])}
            if sets is not None:
                lower, upper = (side.reshape(len(values), values.shape[-1], -1)[:, place] for side in sets)
                ends = PredictionIntervals(lower, upper).hull
                made[f"{target}_low"], made[f"{target}_high"] = _outwards(*ends, scale)
                made[f"{target}_set"] = _set_texts(lower, upper, scale)
        word = word_for_probability(self.schema.targets)
        return made | {f"{word}_{k + 1}": probabilities[:, k] for k in range(probabilities.shape[1])}

    def _notices(self, answers: Any, interval: float) -> list[str]:
        n_rows = self.regressor.n_calibrating_
        notices = []
        for target in self.schema.targets:
            ends = (answers.get_column(f"{target}_{end}").is_infinite() for end in ("low", "high"))
            n_infinite = int((next(ends) | next(ends)).sum())
            if n_infinite and interval > n_rows / (n_rows + 1):
                notices.append(
                    f"{target}: {n_infinite:,} of {answers.height:,} sets are infinite, as {n_rows:,} rows calibrate "
                    f"them: enough for --interval {math.floor(1000 * n_rows / (n_rows + 1)) / 1000:g} at most"
                )
        return notices


def rounded(values: NDArray[Any], scale: float) -> NDArray[np.float64]:
    """Return numbers with six digits relative to the deviation of the target; further digits are noise.

    Example:
        >>> rounded(np.array([1.23456789, 100.0]), 1.0), rounded(np.array([1234567.891]), 5000.0)
        (array([  1.23457, 100.     ]), array([1234567.89]))
    """
    return np.asarray(np.round(np.asarray(values, dtype=np.float64), _decimals(scale)))


def _decimals(scale: float) -> int:
    return int(np.clip(_DIGITS - 1 - np.floor(np.log10(scale)), 0, _MOST_DECIMALS))


def _outwards(low: NDArray[Any], high: NDArray[Any], scale: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ends of sets with the same number of digits, rounded outwards."""
    step = 10.0 ** _decimals(scale)
    # A bound that has few digits stays as it is.
    ends = [
        np.where(rounded(end, scale) == end, end, whole(end * step) / step)
        for end, whole in ((low, np.floor), (high, np.ceil))
    ]
    return ends[0], ends[1]


def _set_texts(lower: NDArray[Any], upper: NDArray[Any], scale: float) -> list[str]:
    """Return sets as text, with the ends of `_outwards`: a piece holds what it held before it was written.

    Example:
        >>> _set_texts(np.array([[0.1234567, 2.0]]), np.array([[0.7654321, np.inf]]), 1.0)
        ['[0.12345, 0.76544] or [2, inf]']
    """
    lower, upper = _outwards(lower, upper, scale)
    return [
        " or ".join(f"[{a:.15g}, {b:.15g}]" for a, b in zip(low, high, strict=True) if not np.isnan(a))
        for low, high in zip(lower.tolist(), upper.tolist(), strict=True)
    ]
