"""Tables passed to an estimator: scikit-learn's checks without side effects, and the units and bounds of targets."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from torchmcl import optional
from torchmcl.errors import bad_value
from torchmcl_tables.data.kinds import infer_schema
from torchmcl_tables.data.table import Table, TableError, TableSchema, as_polars, is_data_frame, is_number, speaking_for
from torchmcl_tables.estimators.rows import Rows, Scaler


def checked_table(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, **options: Any) -> tuple[Any, ...]:
    """Check a table; return X as numbers, [rows, columns], y, and the column attributes. Missing values are NaN.

    Args:
        estimator: Estimator that is named in messages, and whose columns are compared with the columns of X.
        X: Array, or data frame with numeric columns.
        y: Targets; by default none, and None is returned for them.
        reset: Whether X defines the columns; otherwise it must have the columns of the fit.
        **options: Further arguments of scikit-learn's `validate_data`.
    """
    if (column := _first_other(X)) is not None:
        owner, rule = type(estimator).__name__, "have columns of numbers"
        advice = (
            f"Put a TableEncoder before the estimator in a Pipeline ({optional.install_command('torchmcl-tables')})."
        )
        raise ValueError(bad_value(owner, "X", rule, f"the column {column}", advice))
    for name, part in (("X", None if hasattr(X, "columns") else X), ("y", y if "y_numeric" in options else None)):
        if isinstance(part, np.ma.MaskedArray) or np.asarray(part).dtype.kind in "mM":
            got = f"{type(part).__name__} of type {np.asarray(part).dtype}"
            advice = "Convert dates to numbers, and replace masked values by NaN or omit their rows."
            raise ValueError(bad_value(type(estimator).__name__, name, "be numbers without a mask", got, advice))
    probe = copy.copy(estimator)  # receives the attributes, so that a failing fit changes nothing
    options = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan", **options}
    checked = validate_data(probe, X, y, reset=reset, **options)
    names = ("n_features_in_", "feature_names_in_")
    described = {name: getattr(probe, name) for name in names if hasattr(probe, name)}
    return (checked, None, described) if isinstance(y, str) and y == "no_validation" else (*checked, described)


def _first_other(X: Any) -> str | None:
    """Return the name and the type of the first non-numeric column of a pandas or polars data frame."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return None
    others = (
        f"{name!r} of type {dtype}" for name, dtype in zip(X.columns, X.dtypes, strict=True) if not is_number(dtype)
    )
    return next(others, None)


def checked_weights(sample_weight: Any, X: NDArray[Any]) -> NDArray[np.float64] | None:
    """Check nonnegative weights, [rows], or None."""
    if sample_weight is None:
        return None
    return np.asarray(
        _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=False)
    )


def checked_groups(owner: str, groups: Any, n_rows: int) -> NDArray[Any] | None:
    """Check group labels, [rows], or None."""
    if groups is None:
        return None
    labels: NDArray[Any] = check_array(groups, ensure_2d=False, dtype=None, input_name="groups")
    if labels.shape != (n_rows,):
        raise ValueError(bad_value(owner, "groups", f"have a label for each of {n_rows} rows", f"shape {labels.shape}"))
    return labels


def set_fitted(estimator: Any, attributes: dict[str, Any]) -> None:
    """Replace all fitted attributes of an estimator at once; scikit-learn's private ones are kept."""
    for name in [name for name in vars(estimator) if name.endswith("_")]:
        delattr(estimator, name)
    vars(estimator).update(attributes)


# Limits of the range of targets within which the squares of targets and of the narrowest kernels neither overflow nor
# underflow in float64.
_LEAST_SPREAD, _MOST_SPREAD = 1e-120, 1e120


@dataclass(frozen=True)
class Targets:
    """Names, units and bounds of the targets of a fit.

    Attributes:
        owner: Class name of the estimator, for messages.
        names: Names of the outputs.
        is_flat: Whether y had the shape [rows] instead of [rows, outputs].
        scaler: Standardization of the targets.
        bounds: Lowest and highest value of each output in the units of y, [2, outputs].
    """

    owner: str
    names: NDArray[Any]
    is_flat: bool
    scaler: Scaler
    bounds: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check that all fields have the same outputs, because a file may come from an untrusted source."""
        if self.bounds.shape != (2, self.n_outputs) or len(self.scaler.mean) != self.n_outputs:
            raise ValueError("the names, scales and bounds of targets differ in the number of outputs")
        low, high = self.bounds
        if not ((low <= high) & (low < np.inf) & (high > -np.inf)).all():
            raise ValueError("the bounds of a target must be a lower bound and a higher upper bound")

    @classmethod
    def fit(cls, owner: str, table: "RegressionTable", train: Rows, bounding: Rows | None) -> "Targets":
        """Fit the units and bounds of targets.

        Args:
            owner: Class name of the estimator.
            table: Table from which the rows were split.
            train: Rows that define the units.
            bounding: Rows that define the bounds; None for no bounds. They must not include calibration rows, because
                sets would contain these more often than new rows.
        """
        scaler = Scaler.fit(train.targets, train.weights)
        bounds = unbounded(len(table.names)) if bounding is None else bounds_of(bounding.targets, bounding.weights)
        return cls(owner, table.names, table.is_flat, scaler, bounds)

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return len(self.names)

    def standardized(self, y: NDArray[np.float64]) -> Tensor:
        """Standardize y, [rows, outputs]."""
        return torch.from_numpy(self.scaler.standardized(y))

    def restored(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert standardized values, [..., outputs], to the units of y, and clip them to the bounds.

        The bounds are stored in the units of y, because a standardized bound of 0 may be converted to 1e-17.
        """
        return np.clip(self.scaler.inverse(values), *self.bounds)

    def bounded(self, values: Tensor) -> Tensor:
        """Clip standardized values, [..., outputs], to the bounds."""
        return values.clamp(*torch.from_numpy((self.bounds - self.scaler.mean) / self.scaler.scale))

    def like_y(self, values: NDArray[Any]) -> NDArray[Any]:
        """Remove the axis of outputs from values, [rows, outputs, ...], if y had the shape [rows]."""
        return values[:, 0] if self.is_flat else values

    def checked(self, y: Any, n_rows: int) -> NDArray[np.float64]:
        """Check y, and return it with the shape [rows, outputs]."""
        values = check_array(y, ensure_2d=False, dtype=np.float64, force_writeable=True)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (n_rows, self.n_outputs):
            rule = f"have {n_rows} rows and {self.n_outputs} columns"
            raise ValueError(bad_value(self.owner, "y", rule, values.shape))
        return values

    def without_bounds_crossed_by(self, y: NDArray[np.float64]) -> "Targets":
        """Remove the bounds that are crossed by new targets, [rows, outputs]."""
        return replace(self, bounds=without_crossed(self.bounds, y))


def _target_names(y: Any, n_outputs: int) -> NDArray[Any]:
    """Return the column names of a data frame or series, or default names for other types of targets."""
    if hasattr(y, "columns"):
        return np.array([str(name) for name in y.columns], dtype=object)
    name = getattr(y, "name", None)
    default = ["y"] if n_outputs == 1 else [f"y{i}" for i in range(n_outputs)]
    return np.array([name] if isinstance(name, str) and name else default, dtype=object)


def check_targets_vary(owner: str, table: "RegressionTable") -> None:
    """Check that all outputs vary, and that the squares of their differences do not overflow."""
    for name, column in zip(table.names, table.y.T, strict=True):
        if (column == column[0]).all():
            got = f"the constant {column[0]:g} in column {name!r}"
            raise ValueError(bad_value(owner, "y", "vary", got, "There is nothing to learn. Omit the column."))
        spread = float(np.ptp(column / 2))  # halved first, so that it cannot overflow
        if not _LEAST_SPREAD < spread < _MOST_SPREAD:
            rule = f"differ by more than {_LEAST_SPREAD:g} and less than {_MOST_SPREAD:g}"
            got, advice = f"{2 * spread:g} in column {name!r}", "Its squares overflow: use other units."
            raise ValueError(bad_value(owner, "y", rule, got, advice))


class RegressionTable(NamedTuple):
    """Checked table with targets.

    Attributes:
        X: Inputs, [rows, columns].
        y: Targets, [rows, outputs].
        weights: Weight of each row, [rows], or None.
        names: Names of the outputs.
        is_flat: Whether y had the shape [rows].
        described: Fitted attributes that describe the columns.
    """

    X: NDArray[Any]
    y: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    names: NDArray[Any]
    is_flat: bool
    described: dict[str, Any]


def checked_regression(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    targets: Targets | None,
    n_needed: int,
) -> RegressionTable:
    """Check a table with targets.

    Args:
        estimator: Estimator to be fitted.
        X: Inputs, [rows, columns].
        y: Targets, [rows] or [rows, outputs].
        sample_weight: Weight of each row, [rows], or None.
        targets: Targets of an earlier fit that is continued; None for a new fit.
        n_needed: Minimum number of rows.
    """
    options = {"multi_output": True, "y_numeric": True, "ensure_min_samples": n_needed}
    original = y
    X, y, described = checked_table(estimator, X, y, reset=targets is None, **options)
    weights = checked_weights(sample_weight, X)
    y = np.asarray(y, dtype=np.float64)
    columns = y[:, None] if y.ndim == 1 else y
    if targets is not None and columns.shape[1] != targets.n_outputs:
        rule = f"have {targets.n_outputs} columns, as in the first fit"
        raise ValueError(bad_value(targets.owner, "y", rule, columns.shape[1]))
    return RegressionTable(X, columns, weights, _target_names(original, columns.shape[1]), y.ndim == 1, described)


# An extreme value is a bound if at least this fraction and this number of rows are equal to it. Because rounded values
# repeat too, no value among the nearest rows (the last number is their fraction) may be more than a third as common.
_PILED_UP, _MIN_ROWS, _BESIDE = 0.01, 5, 0.1


def bounds_of(targets: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Estimate the lowest and highest possible value of each output, [2, outputs].

    A target that is never negative, or never positive, is bounded by 0. An extreme value of many targets is a bound.
    Otherwise targets are unbounded.

    Args:
        targets: Targets, [rows, outputs].
        weights: Weight of each row, [rows].
    """
    fractions = weights / weights.sum()
    bounds = []
    for column in targets.T:
        low, high = column.min(), column.max()
        lower = low if _piled_up(column - low, fractions) else 0.0 if low >= 0 else -np.inf
        upper = high if _piled_up(high - column, fractions) else 0.0 if high <= 0 else np.inf
        bounds.append((lower, upper))
    return np.array(bounds, dtype=np.float64).T


def without_crossed(bounds: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove the bounds, [2, outputs], that are crossed by new targets, [rows, outputs]."""
    crossed = np.stack([(targets < bounds[0]).any(axis=0), (targets > bounds[1]).any(axis=0)])
    return np.where(crossed, unbounded(bounds.shape[1]), bounds)


def _piled_up(distances: NDArray[np.float64], weights: NDArray[np.float64]) -> bool:
    """Return whether an extreme value is a bound, from the distances and weights of the targets."""
    there = distances == 0
    if there.sum() < _MIN_ROWS or weights[there].sum() < _PILED_UP:
        return False
    beside = np.sort(distances[~there])[: max(1, round(_BESIDE * len(distances)))]
    most = np.unique(beside, return_counts=True)[1].max(initial=0)
    return bool(there.sum() >= 3 * most)


def unbounded(n_outputs: int) -> NDArray[np.float64]:
    """Return infinite bounds, [2, outputs]."""
    return np.stack([np.full(n_outputs, -np.inf), np.full(n_outputs, np.inf)])


class ClassTable(NamedTuple):
    """Checked table with class labels.

    Attributes:
        X: Inputs, [rows, columns].
        y: Class labels, [rows].
        weights: Weight of each row, [rows], or None.
        described: Fitted attributes that describe the columns.
    """

    X: NDArray[Any]
    y: NDArray[Any]
    weights: NDArray[np.float64] | None
    described: dict[str, Any]


def checked_classes(estimator: Any, X: Any, y: Any, sample_weight: Any, *, reset: bool, n_needed: int) -> ClassTable:
    """Check a table with class labels."""
    X, y, described = checked_table(estimator, X, y, reset=reset, ensure_min_samples=n_needed)
    check_classification_targets(y)
    return ClassTable(X, column_or_1d(y, warn=True), checked_weights(sample_weight, X), described)


def ids_and_factors(
    estimator: Any, table: ClassTable, classes: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Return the class index of each row, and the factors of the weights from `class_weight`, or None."""
    y, weights, class_weight = table.y, table.weights, estimator.class_weight
    ids = np.minimum(np.searchsorted(classes, y), len(classes) - 1).astype(np.int64)
    counted = classes[ids] == y  # rows without weight may have other labels
    unknown = ~counted if weights is None else ~counted & (weights > 0)
    if unknown.any():
        rule = f"contain only the classes {classes.tolist()}"
        raise ValueError(bad_value(type(estimator).__name__, "y", rule, repr(y[unknown][0])))
    if class_weight is None:
        return ids, None
    present = np.unique(y[counted])
    counts = None if weights is None else weights[counted]
    class_weight = dict(class_weight) if isinstance(class_weight, Mapping) else class_weight
    factors = compute_class_weight(class_weight, classes=present, y=y[counted], sample_weight=counts)
    factor_of = dict(zip(present, factors, strict=True))
    return ids, np.array([factor_of.get(label, 0.0) for label in classes])[ids]


# ---------------------------------------------------------------------------- data frames

_ADVICE = "Or encode the columns as numbers first: sklearn.compose.ColumnTransformer with OneHotEncoder in a Pipeline."


@dataclass(frozen=True)
class FrameColumns:
    """Columns of a data frame.

    Attributes:
        schema: Schema of the data frame.
        names: Names of all columns.
    """

    schema: TableSchema
    names: NDArray[Any]

    @classmethod
    def fit(cls, owner: str, X: Any) -> "FrameColumns":
        """Infer the schema of a data frame."""
        table = Table("X", as_polars(X))
        try:
            with speaking_for(owner):
                schema = infer_schema(table, [])
        except TableError as error:
            raise ValueError(f"{error}\n{_ADVICE}") from error
        return cls(schema, np.array(table.columns, dtype=object))

    @property
    def described(self) -> dict[str, Any]:
        """Fitted attributes of an estimator that describe the columns."""
        return {"n_features_in_": len(self.names), "feature_names_in_": self.names}

    def __call__(self, owner: str, X: Any) -> NDArray[Any]:
        """Convert a data frame to numbers, [rows, columns]; NaN for missing values."""
        with speaking_for(owner):
            return self.schema.encode(self.schema.values(Table("X", as_polars(X))))


def read_frame(owner: str, X: Any, frame: FrameColumns | None, *, reset: bool) -> tuple[FrameColumns | None, Any]:
    """Return the columns of X (None if all are numeric), and X as an array or data frame of numbers.

    Args:
        owner: Class name of the estimator, for messages.
        X: Array or data frame.
        frame: Columns of an earlier fit.
        reset: Whether X defines the columns; otherwise it must have the columns of the fit.
    """
    frame = None if reset else frame
    if is_data_frame(X):
        X = as_polars(X) if type(X).__module__.partition(".")[0] == "pyarrow" else X
        if reset and not all(map(is_number, X.dtypes)):
            frame = FrameColumns.fit(owner, X)
        return (None, X) if frame is None else (frame, frame(owner, X))
    if frame is not None:
        names = ", ".join(map(repr, frame.schema.features[:8])) + (" ..." if len(frame.schema.features) > 8 else "")
        raise ValueError(bad_value(owner, "X", f"be a data frame with the columns {names}", type(X).__name__))
    return None, X


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode numbers, dates and categories of a data frame as numbers, in a Pipeline with `MCLRegressor`.

    Attributes:
        schema_: Schema of the data frame.

    Example:
        >>> import pandas
        >>> X = pandas.DataFrame({"size": [30.0, 50.0, None] * 4, "city": ["Ulm", "Bonn", "Ulm"] * 4})
        >>> TableEncoder().fit(X).get_feature_names_out().tolist()
        ['size', 'city = Ulm', 'city = Bonn']
    """

    def fit(self, X: Any, y: Any = None) -> "TableEncoder":
        """Infer the kind of each column of a data frame."""
        if not is_data_frame(X):
            raise TypeError(bad_value(type(self).__name__, "X", "be a data frame", type(X).__name__))
        columns = FrameColumns.fit(type(self).__name__, X)
        for name, value in {**columns.described, "_columns": columns, "schema_": columns.schema}.items():
            setattr(self, name, value)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Convert a data frame to numbers, [rows, columns]; NaN for missing values."""
        check_is_fitted(self)
        return self._columns(type(self).__name__, X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the column names of `transform`."""
        check_is_fitted(self)
        return np.array(self._columns.schema.input_names, dtype=object)

    _columns: FrameColumns
