"""Base class of the regressors: predictions from a fitted density, and the split of the rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from torchmcl import checks
from torchmcl.density import Mixture
from torchmcl.errors import bad_value
from torchmcl_tables.estimators import tables
from torchmcl_tables.estimators.calibration import FittedDensity, blocks
from torchmcl_tables.estimators.preprocessing import Encoder
from torchmcl_tables.estimators.results import Hypotheses, PredictionIntervals, PredictionRegions, hypothesis_names
from torchmcl_tables.estimators.rows import Rows, Split, split_rows
from torchmcl_tables.estimators.saving import SavedEstimator


class DensityEstimator(RegressorMixin, TransformerMixin, SavedEstimator):
    """Base class of regressors that predict a density for each row."""

    device: str | torch.device
    _fitted: FittedDensity

    def __sklearn_tags__(self) -> Any:
        """Return the capabilities of the estimator."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64"]  # hypotheses are in the units of y, not of X
        return tags

    @property
    def n_outputs_(self) -> int:
        """Number of columns of y."""
        return self._fitted.targets.n_outputs

    @property
    def target_names_(self) -> NDArray[Any]:
        """Names of the columns of y."""
        return self._fitted.targets.names

    @property
    def target_scale_(self) -> NDArray[np.float64]:
        """Standard deviation of each column of y."""
        return self._fitted.targets.scaler.scale

    @property
    def n_answers_(self) -> int:
        """Number of hypotheses per row."""
        return int(self._fitted.predictive.n_answers)

    @property
    def n_calibrating_(self) -> int:
        """Number of calibration rows of the prediction sets."""
        return len(self._fitted.calibrator.surprise)

    def _numbers(self, X: Any) -> NDArray[Any]:
        """Check a table and convert it to numbers, [rows, columns]."""
        return tables.checked_table(self, X, reset=False)[0]

    def _predictive(self, X: Any) -> tuple[Any, NDArray[Any]]:
        """Return the predictive distribution on the current `device`, and X as numbers, [rows, columns]."""
        check_is_fitted(self)
        return replace(self._fitted.predictive, device=self.device), self._numbers(X)

    @property
    def _exported(self) -> Any:
        return self._fitted.predictive

    def _first_predictions(self) -> list[NDArray[Any]]:
        predictive = replace(self._fitted.predictive, device="cpu")
        row = np.zeros((1, predictive.encoder.n_inputs))
        return [predictive.mean(row), predictive.standardized(row).mean.numpy(), *predictive.hypotheses(row)]

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the conditional mean of each row, [rows] or [rows, outputs]."""
        predictive, X = self._predictive(X)
        means: NDArray[Any] = np.concatenate([predictive.mean(rows) for rows in blocks(X)])
        return predictive.targets.like_y(means)

    def predict_hypotheses(self, X: Any, n_hypotheses: int | None = None) -> Hypotheses:
        """Predict the hypotheses of each row and their probabilities.

        Args:
            X: Rows of a table, [rows, features].
            n_hypotheses: Number of hypotheses; by default the parameter of the estimator. A density can be represented
                by any number of points, but a single network of `MCLRegressor` has a fixed number of hypotheses. For
                a discrete target of `DensityRegressor`, the hypotheses are different values, at most all of them.
        """
        if n_hypotheses is not None:
            checks.check_positive_int(type(self).__name__, "n_hypotheses", n_hypotheses)
        predictive, numbers = self._predictive(X)
        parts = [predictive.hypotheses(rows, n_hypotheses) for rows in blocks(numbers)]
        whole = Hypotheses(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        return whole.labeled(X, predictive.targets.names)

    def predict_distribution(self, X: Any) -> Mixture:
        """Predict the density of y for each row, with batch shape [rows] and event shape [outputs]."""
        predictive, X = self._predictive(X)
        return predictive.density(X)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> PredictionIntervals:
        """Predict sets that contain y with probability `coverage`, on average over rows.

        The sets are highest-density sets, calibrated by split conformal prediction on rows that are used for nothing
        else. There is one set for each output; it is a union of intervals if the density has several modes. With fewer
        than 1 / (1 - coverage) - 1 calibration rows, the sets are infinite; copies of a row count as one row, and so do
        the rows of a group. After a weighted fit, the coverage holds for rows drawn in proportion to the weights. A set
        is extended to the mean of its row if almost no mass lies in between; otherwise the mean, for example of a
        skewed density, may lie outside the set.

        Args:
            X: Rows of a table, [rows, features].
            coverage: Probability in (0, 1).
        """
        checks.check_interval(type(self).__name__, "coverage", coverage, "(0, 1)", "0.9 is for 90 % intervals.")
        predictive, numbers = self._predictive(X)
        ends = map(predictive.targets.like_y, self._fitted.calibrator(predictive, numbers, coverage))
        return PredictionIntervals(*ends).labeled(X, predictive.targets.names)

    def predict_region(self, X: Any, coverage: float = 0.9) -> PredictionRegions:
        """Predict regions that contain all outputs of a row jointly with probability `coverage`.

        The regions are level sets of the density, with a level calibrated as in `predict_interval`. For dependent
        outputs, they are smaller than the product of the intervals.

        Args:
            X: Rows of a table, [rows, features].
            coverage: Probability in (0, 1).
        """
        checks.check_interval(type(self).__name__, "coverage", coverage, "(0, 1)", "0.9 is for 90 % intervals.")
        predictive, X = self._predictive(X)
        in_units_of_y = float(np.log(predictive.targets.scaler.scale).sum())
        level = -self._fitted.calibrator.surprise_at(coverage) - in_units_of_y
        return PredictionRegions(predictive.density(X), level)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> NDArray[Any]:
        """Draw samples from the density of each row, [rows, samples] or [rows, samples, outputs]."""
        checks.check_positive_int(type(self).__name__, "n_samples", n_samples)
        predictive, X = self._predictive(X)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        samples: NDArray[Any] = predictive.sample(X, n_samples, generator)
        return samples[..., 0] if predictive.targets.is_flat else samples

    def log_prob(self, X: Any, y: Any) -> NDArray[Any]:
        """Compute the log density of each row at y, [rows]."""
        predictive, X = self._predictive(X)
        return predictive.density(X).log_prob(torch.from_numpy(predictive.targets.checked(y, len(X)))).numpy()

    def distortion(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the mean squared distance from y to the nearest hypothesis, in the units of y."""
        values = self.predict_hypotheses(X).values
        targets = self._fitted.targets.checked(y, len(values))
        nearest = ((values - targets[:, None]) ** 2).sum(axis=-1).min(axis=1)
        return float(np.average(nearest, weights=sample_weight))

    def transform(self, X: Any) -> NDArray[Any]:
        """Compute hypotheses and probabilities as columns, [rows, hypotheses * outputs + hypotheses].

        The hypotheses of several networks are sorted (one output) or unordered: columns are not comparable across rows.
        `get_feature_names_out` returns the column names, and `set_output(transform="pandas")` yields a data frame.
        """
        values, probabilities = self.predict_hypotheses(X)
        return np.concatenate([values.reshape(len(values), -1), probabilities], axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the column names of `transform`."""
        check_is_fitted(self)
        return np.array(hypothesis_names(list(self._fitted.targets.names), self.n_answers_), dtype=object)


# Networks whose means are this many standard deviations away have diverged; number of rows for this check.
_DIVERGED, _JUDGED_ROWS = 1e4, 256


def check_converged(predictive: Any, encoder: Encoder, rows: Rows, learning_rate: Any) -> None:
    """Check that the means of training rows are finite and near the targets.

    Rows of later calls may lie far from the rows of the first fit in their inputs or targets; this is not divergence.

    Raises:
        ValueError: If all networks diverged.
    """
    rows = rows.head(_JUDGED_ROWS)
    if not len(rows):
        return
    inputs = rows.inputs.astype(np.float64)
    far_inputs = float(np.median(np.abs(encoder(inputs)).max(axis=1)))
    far_targets = float(predictive.targets.standardized(rows.targets).abs().median())
    if not predictive.means(inputs).abs().median() < _DIVERGED * max(1.0, far_inputs, far_targets):
        rule, advice = "let the training converge", "All networks diverged; try 0.01."
        raise ValueError(bad_value(predictive.targets.owner, "learning_rate", rule, repr(learning_rate), advice))


def first_split(estimator: Any, table: tables.RegressionTable, groups: Any, seed: int) -> tuple[Split, tables.Targets]:
    """Split a table, and fit the targets, with bounds from all rows except the calibration rows."""
    owner = type(estimator).__name__
    tables.check_targets_vary(owner, table)
    together = tables.checked_groups(owner, groups, len(table.X))
    fractions = held_out_fractions(estimator.validation_fraction)
    split = split_rows(table.X, table.y, table.weights, seed=seed, groups=together, **fractions)
    return split, tables.Targets.fit(owner, table, split.train, split.train.joined(split.selection))


def held_out_fractions(fraction: float) -> dict[str, Any]:
    """Return the fractions of the rows for selection and for calibration."""
    third = float(fraction) / 3
    return {"selecting": 2 * third, "calibrating": third}
