"""Answers of a fitted regressor: prediction methods, sets for single outputs, and joint regions for several."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from torchmcl import checks
from torchmcl.density import Mixture
from torchmcl.errors import bad_value
from torchmcl_tables.estimators.calibration import blocks
from torchmcl_tables.estimators.predictive import Hypotheses
from torchmcl_tables.estimators.preprocessing import Encoder
from torchmcl_tables.estimators.results import Framed, hypothesis_names
from torchmcl_tables.estimators.rows import Rows
from torchmcl_tables.estimators.tables import Targets

# Columns of each output in a data frame of sets.
_ENDS = ("lower", "upper", "pieces")
# Draws times kernels of the rows processed at a time.
_AT_ONCE = 2**24


class _Intervals(NamedTuple):
    lower: NDArray[Any]
    upper: NDArray[Any]


class PredictionIntervals(_Intervals, Framed):
    """Prediction sets as unions of intervals, one union for each row and output.

    Attributes:
        lower: [rows, pieces], or [rows, outputs, pieces] for several outputs; NaN where a row has fewer pieces.
        upper: the upper ends, in the same shape.
    """

    @property
    def hull(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """One interval for each row (and output), from the first lower end to the last upper end."""
        return np.nanmin(self.lower, axis=-1), np.nanmax(self.upper, axis=-1)

    @property
    def width(self) -> NDArray[Any]:
        """The total length of the pieces, [rows] or [rows, outputs]."""
        return np.nansum(self.upper - self.lower, axis=-1)

    @property
    def n_pieces(self) -> NDArray[Any]:
        """The number of pieces of each union, [rows] or [rows, outputs]."""
        return np.isfinite(self.lower).sum(axis=-1) + np.isinf(self.lower).sum(axis=-1)

    def to_frame(self) -> Any:
        """Return the ends of the hull and the number of pieces of each output as named columns.

        The frame is of the library of X, with its index, as for `Hypotheses.to_frame`.

        Example:
            >>> PredictionIntervals(np.array([[0.0, 2.0]]), np.array([[1.0, 3.0]])).to_frame().to_dict("records")
            [{'y_lower': 0.0, 'y_upper': 3.0, 'y_pieces': 2}]
        """
        n_rows = len(self.lower)
        parts = [part.reshape(n_rows, -1).T for part in (*self.hull, self.n_pieces)]
        ends = zip(self._targets(len(parts[0])), *parts, strict=True)
        named = {f"{name}_{end}": column for name, *columns in ends for end, column in zip(_ENDS, columns, strict=True)}
        return self._labels.frame(named)

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each target lies in its set; y is [rows] or [rows, outputs], any rows for a single set."""
        values, (n_rows, *outputs, _) = np.asarray(y, dtype=float), self.lower.shape
        n_values = len(values) if values.ndim and n_rows == 1 else n_rows
        if values.shape[:1] != (n_values,) or values.size != math.prod([n_values, *outputs]):
            rule = f"have the shape {(n_rows, *outputs)}"
            raise ValueError(bad_value("PredictionIntervals.contains", "y", rule, values.shape))
        values = values.reshape(n_values, *outputs, 1)  # else a column would be compared with the sets of all rows
        return np.asarray(((self.lower <= values) & (values <= self.upper)).any(axis=-1))


@dataclass(frozen=True, eq=False)
class PredictionRegions:
    """One region per row in the joint space of all outputs, of any shape and with any number of parts.

    All rows have the same level, which makes the regions as small as possible on average.

    Attributes:
        density: of each row, in the units of y.
        log_level: the minimum log density inside the region; minus infinity with too few calibration rows: the region
        is then the whole space.
    """

    density: Mixture
    log_level: float

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each row of y [rows, outputs] lies in its region, [rows]; y is [rows] for one output."""
        values = torch.from_numpy(np.array(y, dtype=np.float64))  # a copy: columns of a frame may be read-only
        values = values.unsqueeze(-1) if values.ndim == 1 else values
        shape = *self.density.batch_shape, self.density.dim
        if tuple(values.shape) != shape:
            raise ValueError(
                bad_value("PredictionRegions.contains", "y", f"have the shape {shape}", tuple(values.shape))
            )
        return (self.density.log_prob(values) >= self.log_level).numpy()

    def volume(self, n_samples: int = 1000, random_state: int = 0) -> NDArray[Any]:
        """Return the volume of each region, [rows], estimated from samples of the densities.

        Args:
            n_samples: draws for each row; the error falls with their square root.
            random_state: a seed.
        """
        checks.check_positive_int("PredictionRegions.volume", "n_samples", n_samples)
        if np.isinf(self.log_level):
            return np.full(tuple(self.density.batch_shape), np.inf)
        generator = torch.Generator().manual_seed(random_state)
        at_once = max(1, _AT_ONCE // (n_samples * self.density.probabilities.shape[-1]))
        parts = []
        for start in range(0, len(self.density.hypotheses), at_once):
            some = self.density.rows(slice(start, start + at_once))
            logs = some.log_prob(some.sample((n_samples,), generator))
            # A draw represents a volume of 1 / density (importance sampling).
            parts.append(torch.where(logs >= self.log_level, (-logs).exp(), 0.0).mean(dim=0))
        return torch.cat(parts).numpy()


# Networks with means this many standard deviations away have diverged, judged on this many rows.
_DIVERGED, _JUDGED_ROWS = 1e4, 256


@dataclass(frozen=True)
class Answers:
    """The fitted parts of a regressor.

    Attributes:
        predictive: `Predictive`, or an object with the same methods.
        calibrator: `Calibrator`, or an object with the same methods.
    """

    predictive: Any
    calibrator: Any

    @property
    def targets(self) -> Targets:
        """Names, units and bounds of the targets."""
        return self.predictive.targets

    @property
    def attributes(self) -> dict[str, Any]:
        """The fitted attributes of an estimator that describe its answers."""
        return {
            "_answers": self,
            "n_outputs_": self.targets.n_outputs,
            "target_names_": self.targets.names,
            "target_scale_": self.targets.scaler.scale,
            "n_answers_": self.predictive.n_answers,
            "n_calibrating_": len(self.calibrator.surprise),
        }


def check_converged(predictive: Any, encoder: Encoder, rows: Rows, learning_rate: Any) -> None:
    """Check that the means of training rows are finite and near the targets.

    Further rows may lie far from the rows of the first fit in their inputs or targets; that is not divergence.

    Raises:
        ValueError: if all networks diverged.
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


def _asked(estimator: Any, X: Any) -> tuple[Any, NDArray[Any]]:
    """Return the predictive on the estimator's current `device`, and X as numbers [rows, columns]."""
    check_is_fitted(estimator)
    return replace(estimator._answers.predictive, device=estimator.device), estimator._numbers(X)


def predict(self: Any, X: Any) -> NDArray[Any]:
    """Return the conditional mean of each row, [rows] or [rows, outputs]."""
    predictive, X = _asked(self, X)
    means: NDArray[Any] = np.concatenate([predictive.mean(rows) for rows in blocks(X)])
    return predictive.targets.like_y(means)


def predict_hypotheses(self: Any, X: Any, n_hypotheses: int | None = None) -> Hypotheses:
    """Return the answers for each row and their probabilities.

    Args:
        self: the estimator.
        X: [rows, features]
        n_hypotheses: the number of answers; by default that of the fit. One fit can return any number of points of a
            density, but a single network of `MCLRegressor` returns its own hypotheses. For a target of
            `DensityRegressor` with few different values, the answers are different values, at most all of them.
    """
    if n_hypotheses is not None:
        checks.check_positive_int(type(self).__name__, "n_hypotheses", n_hypotheses)
    predictive, numbers = _asked(self, X)
    parts = [predictive.hypotheses(rows, n_hypotheses) for rows in blocks(numbers)]
    whole = Hypotheses(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    return whole.labelled(X, predictive.targets.names)


def predict_distribution(self: Any, X: Any) -> Mixture:
    """Return the density of y for each row: a torch distribution with batch shape [rows] and event shape [outputs]."""
    predictive, X = _asked(self, X)
    return predictive.density(X)


def predict_interval(self: Any, X: Any, coverage: float = 0.9) -> PredictionIntervals:
    """Return sets that contain y with probability `coverage`, on average over rows.

    They are highest-density sets, calibrated by split conformal prediction on rows that were used for nothing
    else: unions of intervals if the density has several modes, separate for each output. With
    too few calibration rows (fewer than 1 / (1 - coverage) - 1) they are infinite; copies of a row count as one,
    and so do the rows of a group. After a weighted fit, coverage holds for rows drawn in proportion to the
    weights. A set is extended to the mean of its row if almost no mass lies between; otherwise the mean, for
    example of a skewed density, may lie outside.

    Args:
        self: the estimator.
        X: [rows, features]
        coverage: in (0, 1).
    """
    checks.check_interval(type(self).__name__, "coverage", coverage, "(0, 1)", "0.9 is for 90 % intervals.")
    predictive, numbers = _asked(self, X)
    ends = map(predictive.targets.like_y, self._answers.calibrator(predictive, numbers, coverage))
    return PredictionIntervals(*ends).labelled(X, predictive.targets.names)


def predict_region(self: Any, X: Any, coverage: float = 0.9) -> PredictionRegions:
    """Return regions that contain all outputs of a row together with probability `coverage`.

    They are level sets of the density, with a level calibrated as in `predict_interval`: for dependent outputs,
    regions are smaller than the product of the intervals.

    Args:
        self: the estimator.
        X: [rows, features]
        coverage: in (0, 1).
    """
    checks.check_interval(type(self).__name__, "coverage", coverage, "(0, 1)", "0.9 is for 90 % intervals.")
    predictive, X = _asked(self, X)
    in_units_of_y = float(np.log(predictive.targets.scaler.scale).sum())
    level = -self._answers.calibrator.surprise_at(coverage) - in_units_of_y
    return PredictionRegions(predictive.density(X), level)


def sample(self: Any, X: Any, n_samples: int = 1, random_state: Any = None) -> NDArray[Any]:
    """Return draws from the density of each row, [rows, samples] or [rows, samples, outputs]."""
    checks.check_positive_int(type(self).__name__, "n_samples", n_samples)
    predictive, X = _asked(self, X)
    generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
    samples: NDArray[Any] = predictive.sample(X, n_samples, generator)
    return samples[..., 0] if predictive.targets.is_flat else samples


def log_prob(self: Any, X: Any, y: Any) -> NDArray[Any]:
    """Return the log density of each row, evaluated at y, [rows]."""
    predictive, X = _asked(self, X)
    return predictive.density(X).log_prob(torch.from_numpy(predictive.targets.checked(y, len(X)))).numpy()


def distortion(self: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Return the mean squared distance from y to the nearest hypothesis, in the units of y."""
    values = predict_hypotheses(self, X).values
    targets = self._answers.targets.checked(y, len(values))
    nearest = ((values - targets[:, None]) ** 2).sum(axis=-1).min(axis=1)
    return float(np.average(nearest, weights=sample_weight))


def transform(self: Any, X: Any) -> NDArray[Any]:
    """Return hypotheses and probabilities as columns, [rows, hypotheses * outputs + hypotheses].

    The answers of several networks are sorted (one output) or unordered: columns are not comparable across rows.
    `get_feature_names_out` returns their names, and `set_output(transform="pandas")` yields a data frame.
    """
    values, probabilities = predict_hypotheses(self, X)
    return np.concatenate([values.reshape(len(values), -1), probabilities], axis=1)


def get_feature_names_out(self: Any, input_features: Any = None) -> NDArray[Any]:
    """Return the names of the columns of `transform`."""
    check_is_fitted(self)
    return np.array(hypothesis_names(self._answers.targets.names, self.n_answers_), dtype=object)
