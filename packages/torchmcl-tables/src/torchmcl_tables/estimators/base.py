"""Base classes of the estimators: saving and loading in folders without pickle, and predictions from a density."""

from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from torchmcl import AutoAnnealing, MultiHypothesisMLP, checks, density, io, rules, schedules
from torchmcl.density import Mixture
from torchmcl.errors import bad_value
from torchmcl_fleet import Candidate, FleetSearch
from torchmcl_tables.data.table import RECORDS
from torchmcl_tables.estimators import tables
from torchmcl_tables.estimators.blend import AtomCalibrator, Blend
from torchmcl_tables.estimators.calibration import Calibrator, FittedDensity, blocks
from torchmcl_tables.estimators.classes import ClassMixture
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.predictive import Predictive
from torchmcl_tables.estimators.results import Hypotheses, PredictionIntervals, PredictionRegions, hypothesis_names
from torchmcl_tables.estimators.rows import Encoder, Rows, Scaler, Split, check_n_answers, split_rows
from torchmcl_tables.estimators.tables import FrameColumns, Targets
from torchmcl_tables.estimators.training import Continuation, Cooling

__all__ = ["CODEC", "SavedEstimator", "estimator_codec", "from_state", "read_estimator", "to_state"]

_KIND = "torchmcl estimator"
# Classes and functions that are saved by name: rules, schedules, and the dataclasses of densities.
_KNOWN: dict[str, Any] = {
    name: getattr(module, name) for module in (rules, schedules, density) for name in module.__all__
}


def estimator_codec(*records: type[Any]) -> io.Codec:
    """Return the codec of fitted estimators, including additional dataclasses."""
    known = [kind for kind in _KNOWN.values() if is_dataclass(kind) or hasattr(kind, "_fields")]
    fitted = (AutoAnnealing, Calibrator, Candidate, ClassMixture, Continuation, Cooling, FittedDensity, FleetSearch)
    parts = (Encoder, Predictive, Rows, Scaler, Targets)
    network = io.Form("network", _encode_network, _decode_network)
    forms = {MultiHypothesisMLP: network, type: _BY_NAME, FunctionType: _BY_NAME}
    return io.Codec(*known, *fitted, *parts, *records, forms=forms)


def to_state(estimator: Any) -> tuple[Any, dict[str, Tensor]]:
    """Convert a fitted estimator to JSON values and named tensors.

    Raises:
        ValueError: If a parameter contains anything except plain values and rules and schedules of torchmcl.
    """
    kind = type(estimator).__name__
    # A random generator cannot be stored, and a fitted estimator does not need it.
    parameters = {
        name: None if isinstance(value, (np.random.RandomState, np.random.Generator)) else value
        for name, value in estimator.get_params(deep=False).items()
    }
    fitted = {
        name: value
        for name, value in sorted(vars(estimator).items())
        if name not in parameters and not name.startswith("_sklearn")
    }
    try:
        return CODEC.encode({"estimator": kind, "parameters": parameters, "fitted": fitted})
    except TypeError as error:
        rule = "have parameters that consist of numbers, strings and torchmcl's own rules and schedules"
        advice = "Pickle supports other parameters, but load pickles only from trusted sources."
        raise ValueError(bad_value(f"{kind}.save", "self", rule, str(error).rstrip("."), advice)) from error


def from_state(state: Any, tensors: dict[str, Tensor], kinds: Sequence[type[Any]]) -> Any:
    """Restore an estimator from the result of `to_state`; it must be an instance of one of the classes `kinds`."""
    content = CODEC.decode(state, tensors)
    estimator = {kind.__name__: kind for kind in kinds}[content["estimator"]](**content["parameters"])
    check_n_answers(estimator.n_hypotheses)
    for name, value in content["fitted"].items():
        if name.startswith("__") or hasattr(type(estimator), name):  # data must not replace a method
            raise ValueError(f"{name!r} is not a fitted attribute")
        setattr(estimator, name, value)
    _rehearse(estimator)
    return estimator


def _rehearse(estimator: Any) -> None:
    """Predict one row with a loaded model to detect inconsistent contents early.

    Raises:
        Exception: If contents are inconsistent (any type of exception), or a prediction is not finite (ValueError).
    """
    torch.device(estimator.device)
    checks.check_positive_int(type(estimator).__name__, "n_features_in_", estimator.n_features_in_)
    predictions = estimator._first_predictions()
    if not all(np.isfinite(prediction).all() for prediction in predictions):
        raise ValueError("the predictions of the model are not finite")


class SavedEstimator(io.Shareable, BaseEstimator):
    """Base class of estimators that can be saved to a folder and exported."""

    def __sklearn_tags__(self) -> Any:
        """Return the capabilities of the estimator."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def _exported(self) -> Any:
        """Predictive distribution that `export` writes: a `Predictive`, `Blend` or `ClassMixture`."""
        raise NotImplementedError

    def _first_predictions(self) -> list[NDArray[Any]]:
        """Return predictions for one row, which are used to check a loaded model."""
        raise NotImplementedError

    def without_rows(self) -> Self:
        """Return a copy that contains no rows of the table."""
        return self

    def save(self, folder: str | Path, *, private: bool = False) -> None:
        """Write the fitted estimator to `model.safetensors` in a folder.

        Args:
            folder: Folder that is new or empty, or contains a saved model, which is replaced atomically.
            private: Whether to exclude rows of the table: held-out rows for `partial_fit`, and targets in the leaves of
                a forest, which are averaged. Means, quantiles, bounds and categories remain.

        Raises:
            ValueError: If the folder contains other files, or a parameter cannot be saved.
        """
        check_is_fitted(self)
        folder = Path(folder)
        io.check_free(f"{type(self).__name__}.save", folder, "`save`")
        state, tensors = to_state(self.without_rows() if private else self)
        io.write_checkpoint(folder / io.MODEL_FILE, _KIND, state=state, tensors=tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load an estimator that was written by `save`; a folder without an estimator raises a ValueError."""
        return read_estimator(f"{cls.__name__}.load", Path(folder), [cls])

    def export(self, path: str | Path) -> Path:
        """Write an ONNX file, which requires only onnxruntime and NumPy.

        The file computes the "mean" of each row, or the class "probabilities" of an `MCLClassifier`; the metadata entry
        "classes" is the JSON list of labels. A single network of `MCLRegressor` also has the outputs "hypotheses" and
        "probabilities".

        A model fitted to an array has the input "X", [rows, columns] in double precision, with NaN for missing values.
        A model fitted to a data frame has one input [rows] for each column: numbers in double precision; dates as days
        since 1970 in double precision; categories as text, with "" for missing values. The metadata entry "dates" is
        the JSON list of the date columns.

        Args:
            path: Path that ends with ".onnx".

        Returns:
            The path.

        Raises:
            ImportError: If the packages of the extra `export` are missing.
            ValueError: If the path has another suffix.
        """
        from torchmcl_tables.estimators.exporting import export

        return export(self, path)


def read_estimator(owner: str, folder: Path, kinds: Sequence[Any]) -> Any:
    """Read the estimator in a folder; it must be an instance of one of the classes `kinds`.

    Raises:
        ValueError: If the folder contains no such model, or the model is damaged or has an unsupported version.
    """
    checkpoint = io.saved_contents(owner, folder, _KIND, "`save`", io.read_checkpoint)
    name = checkpoint.state.get("estimator") if isinstance(checkpoint.state, dict) else None
    names = [kind.__name__ for kind in kinds]
    if name not in names:
        advice = f"Use {name}.load." if isinstance(name, str) else ""
        raise ValueError(bad_value(owner, "folder", f"hold a saved {' or '.join(names)}", repr(name), advice))
    with io.as_written(owner, "folder", "`save`"):
        return from_state(checkpoint.state, checkpoint.tensors, kinds)


def _encode_network(module: MultiHypothesisMLP, part: Any) -> Any:
    linear = [layer for layer in module.trunk if isinstance(layer, torch.nn.Linear)]
    head = module.head
    sizes = {
        "in_features": linear[0].in_features if linear else head.in_features,
        "out_features": head.out_features,
        "n_hypotheses": head.n_hypotheses,
        "hidden": [layer.out_features for layer in linear],
        "detach_scores": head.detach_scores,
        "scales": head.scales,
    }
    weights = dict(module.state_dict())
    return {"sizes": sizes, "weights": {name: part(name, value) for name, value in weights.items()}}


def _decode_network(contents: Any, part: Any) -> MultiHypothesisMLP:
    sizes, weights = contents["sizes"], part(contents["weights"])
    with torch.device("meta"):  # shapes only: a small file must not cause a large allocation
        expected = {name: value.shape for name, value in MultiHypothesisMLP(**sizes).state_dict().items()}
    if expected != {name: value.shape for name, value in weights.items()}:
        raise ValueError("the shapes of the weights of a network differ from its description")
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise ValueError("the weights of a network are not finite")
    module = MultiHypothesisMLP(**sizes).float()
    module.load_state_dict(weights)
    return module.eval()


def _encode_known(value: Any, part: Any) -> Any:
    name: str = value.__name__
    return name if _KNOWN.get(name) is value else NotImplemented


_BY_NAME = io.Form("known", _encode_known, lambda contents, part: _KNOWN[contents])
#: Codec of all estimators of tables.
CODEC = estimator_codec(AtomCalibrator, Blend, Forest, FrameColumns, *RECORDS)


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
        """Draw samples from the density of each row, [rows, samples] or [rows, samples, outputs].

        Samples respect the bounds of the target, like hypotheses: those below zero of a price become zero.
        """
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
