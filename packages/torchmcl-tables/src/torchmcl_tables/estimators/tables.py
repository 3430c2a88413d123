"""Tables passed to an estimator: scikit-learn's checks without side effects, and units and bounds of the targets."""

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
from torchmcl_tables.data.inference import infer_schema
from torchmcl_tables.data.schema import TableSchema
from torchmcl_tables.data.table import Table, TableError, as_polars, is_data_frame, is_number, speaking_for
from torchmcl_tables.estimators.preprocessing import Scaler
from torchmcl_tables.estimators.rows import Rows


def checked_table(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, **how: Any) -> tuple[Any, ...]:
    """Return X as numbers [rows, columns] (NaN where missing), y, and the attributes of the columns.

    Args:
        estimator: named in messages; its columns are compared with those of X.
        X: an array, or a data frame with columns of numbers.
        y: targets, checked according to `how`; None is returned for them by default.
        reset: whether X defines the columns; otherwise it must have those of the fit.
        **how: further arguments of scikit-learn's `validate_data`.
    """
    if (column := _first_other(X)) is not None:
        owner, rule = type(estimator).__name__, "have columns of numbers"
        advice = f"Put a TableEncoder before it in a Pipeline ({optional.install_command('torchmcl-tables')})."
        raise ValueError(bad_value(owner, "X", rule, f"the column {column}", advice))
    probe = copy.copy(estimator)  # receives the attributes, so that a failing fit changes nothing
    how = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan", **how}
    checked = validate_data(probe, X, y, reset=reset, **how)
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
    """Return non-negative weights [rows], or None."""
    if sample_weight is None:
        return None
    return np.asarray(
        _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=False)
    )


def checked_groups(owner: str, groups: Any, n_rows: int) -> NDArray[Any] | None:
    """Return labels of groups [rows], or None."""
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


# Within these limits, squares of targets and of the narrowest kernels neither overflow nor underflow in float64.
_LEAST_SPREAD, _MOST_SPREAD = 1e-120, 1e120


@dataclass(frozen=True)
class Targets:
    """The targets of a fit.

    Attributes:
        owner: the estimator, named in messages.
        names: of the outputs.
        is_flat: whether y was [rows] and not [rows, outputs].
        scaler: networks learn standardized targets.
        bounds: [2, outputs], the lowest and highest value of each output, in the units of y.
    """

    owner: str
    names: NDArray[Any]
    is_flat: bool
    scaler: Scaler
    bounds: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check that all parts have the same outputs, because a file may come from an untrusted source."""
        if self.bounds.shape != (2, self.n_outputs) or len(self.scaler.mean) != self.n_outputs:
            raise ValueError("the names, scales and bounds of targets are of different numbers of outputs")
        low, high = self.bounds
        if not ((low <= high) & (low < np.inf) & (high > -np.inf)).all():
            raise ValueError("the bounds of a target must be a lower and an upper one")

    @classmethod
    def fit(cls, owner: str, table: "RegressionTable", train: Rows, bounding: Rows | None) -> "Targets":
        """Return targets fitted to rows.

        Args:
            owner: the estimator.
            table: the source of the rows.
            train: rows that define the units.
            bounding: rows that define the bounds; None for no bounds. They must not include calibration rows, or sets
                would contain these more often than others.
        """
        scaler = Scaler.fit(train.targets, train.weights)
        bounds = unbounded(len(table.names)) if bounding is None else bounds_of(bounding.targets, bounding.weights)
        return cls(owner, table.names, table.is_flat, scaler, bounds)

    @property
    def n_outputs(self) -> int:
        """The number of outputs."""
        return len(self.names)

    def standardized(self, y: NDArray[np.float64]) -> Tensor:
        """Return y [rows, outputs] in standardized units."""
        return torch.from_numpy(self.scaler.standardized(y))

    def restored(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardized values [..., outputs] in the units of y, within the bounds.

        The bounds are stored in these units: converted from standardized units, a bound of 0 may become 1e-17.
        """
        return np.clip(self.scaler.inverse(values), *self.bounds)

    def bounded(self, values: Tensor) -> Tensor:
        """Return standardized values [..., outputs] within the bounds."""
        return values.clamp(*torch.from_numpy((self.bounds - self.scaler.mean) / self.scaler.scale))

    def like_y(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values [rows, outputs, ...], without the axis of outputs if y was [rows]."""
        return values[:, 0] if self.is_flat else values

    def checked(self, y: Any, n_rows: int) -> NDArray[np.float64]:
        """Return y as [rows, outputs] after checking it."""
        values = check_array(y, ensure_2d=False, dtype=np.float64, force_writeable=True)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (n_rows, self.n_outputs):
            rule = f"have {n_rows} rows and {self.n_outputs} columns"
            raise ValueError(bad_value(self.owner, "y", rule, values.shape))
        return values

    def without_bounds_crossed_by(self, y: NDArray[np.float64]) -> "Targets":
        """Return the targets without bounds that are crossed by further targets [rows, outputs]."""
        return replace(self, bounds=without_crossed(self.bounds, y))


def _target_names(y: Any, n_outputs: int) -> NDArray[Any]:
    """Return the column names of a data frame or series, or default names for other types."""
    if hasattr(y, "columns"):
        return np.array([str(name) for name in y.columns], dtype=object)
    name = getattr(y, "name", None)
    default = ["y"] if n_outputs == 1 else [f"y{i}" for i in range(n_outputs)]
    return np.array([name] if isinstance(name, str) and name else default, dtype=object)


def check_targets_vary(owner: str, table: "RegressionTable") -> None:
    """Check that all outputs vary, and that the squares of their differences do not overflow."""
    for name, column in zip(table.names, table.y.T, strict=True):
        if (column == column[0]).all():
            got, advice = (
                f"the constant {column[0]:g} in column {name!r}",
                "There is nothing to learn; leave the column out.",
            )
            raise ValueError(bad_value(owner, "y", "vary", got, advice))
        spread = float(np.ptp(column / 2))  # halved first, so that it cannot overflow
        if not _LEAST_SPREAD < spread < _MOST_SPREAD:
            rule = f"differ by more than {_LEAST_SPREAD:g} and less than {_MOST_SPREAD:g}"
            got, advice = f"{2 * spread:g} in column {name!r}", "Its squares overflow: use other units."
            raise ValueError(bad_value(owner, "y", rule, got, advice))


class RegressionTable(NamedTuple):
    """A checked table.

    Attributes:
        X: [rows, columns]
        y: [rows, outputs]
        weights: [rows] or None.
        names: of the outputs.
        is_flat: whether y was [rows].
        described: fitted attributes that describe the columns.
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
    """Return a table after checking it.

    Args:
        estimator: to be fitted.
        X: [rows, columns]
        y: [rows] or [rows, outputs]
        sample_weight: [rows] or None.
        targets: of an earlier fit, which the table must continue; None for a new fit.
        n_needed: minimum number of rows.
    """
    how = {"multi_output": True, "y_numeric": True, "ensure_min_samples": n_needed}
    given = y
    X, y, described = checked_table(estimator, X, y, reset=targets is None, **how)
    weights = checked_weights(sample_weight, X)
    y = np.asarray(y, dtype=np.float64)
    columns = y[:, None] if y.ndim == 1 else y
    if targets is not None and columns.shape[1] != targets.n_outputs:
        rule = f"have {targets.n_outputs} columns, as in the first fit"
        raise ValueError(bad_value(targets.owner, "y", rule, columns.shape[1]))
    return RegressionTable(X, columns, weights, _target_names(given, columns.shape[1]), y.ndim == 1, described)


# An extreme value is a bound if at least this share of the rows, and this many, are equal to it, and no value among the
# nearest rows, this share of all, is more than a third as common: rounded values repeat, too.
_PILED_UP, _MIN_ROWS, _BESIDE = 0.01, 5, 0.1


def bounds_of(targets: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lowest and highest possible value of each output, [2, outputs].

    A target that is never negative is bounded by 0, and so is one that is never positive. An extreme value that many
    targets share is a bound. Everything else is unbounded.

    Args:
        targets: [rows, outputs]
        weights: [rows]
    """
    shares = weights / weights.sum()
    found = []
    for column in targets.T:
        low, high = column.min(), column.max()
        lower = low if _piled_up(column - low, shares) else 0.0 if low >= 0 else -np.inf
        upper = high if _piled_up(high - column, shares) else 0.0 if high <= 0 else np.inf
        found.append((lower, upper))
    return np.array(found, dtype=np.float64).T


def without_crossed(bounds: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bounds [2, outputs] without those crossed by further targets [rows, outputs]."""
    crossed = np.stack([(targets < bounds[0]).any(axis=0), (targets > bounds[1]).any(axis=0)])
    return np.where(crossed, unbounded(bounds.shape[1]), bounds)


def _piled_up(distances: NDArray[np.float64], weights: NDArray[np.float64]) -> bool:
    """Return whether enough targets lie at an extreme value to treat it as a bound, given their distances from it."""
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
    """A checked table: X [rows, columns], labels [rows], weights [rows] or None, and attributes of the columns."""

    X: NDArray[Any]
    y: NDArray[Any]
    weights: NDArray[np.float64] | None
    described: dict[str, Any]


def checked_classes(estimator: Any, X: Any, y: Any, sample_weight: Any, *, reset: bool, n_needed: int) -> ClassTable:
    """Return a table with labels after checking it."""
    X, y, described = checked_table(estimator, X, y, reset=reset, ensure_min_samples=n_needed)
    check_classification_targets(y)
    return ClassTable(X, column_or_1d(y, warn=True), checked_weights(sample_weight, X), described)


def ids_and_factors(
    estimator: Any, table: ClassTable, classes: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Return the class index of each row, and the factor for its weight from `class_weight`; None if not given."""
    y, weights, given = table.y, table.weights, estimator.class_weight
    ids = np.minimum(np.searchsorted(classes, y), len(classes) - 1).astype(np.int64)
    counted = classes[ids] == y  # rows without weight may have other labels
    unknown = ~counted if weights is None else ~counted & (weights > 0)
    if unknown.any():
        rule = f"hold classes among {classes.tolist()}"
        raise ValueError(bad_value(type(estimator).__name__, "y", rule, repr(y[unknown][0])))
    if given is None:
        return ids, None
    present = np.unique(y[counted])
    counts = None if weights is None else weights[counted]
    given = dict(given) if isinstance(given, Mapping) else given
    found = compute_class_weight(given, classes=present, y=y[counted], sample_weight=counts)
    factor_of = dict(zip(present, found, strict=True))
    return ids, np.array([factor_of.get(label, 0.0) for label in classes])[ids]


# ---------------------------------------------------------------------------- data frames

_WAY_OUT = "Or make numbers of the columns first: sklearn.compose.ColumnTransformer with OneHotEncoder in a Pipeline."


@dataclass(frozen=True)
class FrameColumns:
    """The columns of a data frame.

    Attributes:
        schema: the kind of each column.
        names: of the columns of the frame.
    """

    schema: TableSchema
    names: NDArray[Any]

    @classmethod
    def fit(cls, owner: str, X: Any) -> "FrameColumns":
        """Return the columns of a data frame."""
        table = Table("X", as_polars(X))
        try:
            with speaking_for(owner):
                schema = infer_schema(table, [])
        except TableError as error:
            raise ValueError(f"{error}\n{_WAY_OUT}") from error
        return cls(schema, np.array(table.columns, dtype=object))

    @property
    def described(self) -> dict[str, Any]:
        """The attributes of an estimator that describe the columns."""
        return {"n_features_in_": len(self.names), "feature_names_in_": self.names}

    def __call__(self, owner: str, X: Any) -> NDArray[Any]:
        """Return a data frame as numbers [rows, columns], NaN for missing values."""
        with speaking_for(owner):
            return self.schema.encode(self.schema.values(Table("X", as_polars(X))))


def read_frame(owner: str, X: Any, frame: FrameColumns | None, *, reset: bool) -> tuple[FrameColumns | None, Any]:
    """Return the columns of X, None if they are numbers, and X as an array or frame of numbers.

    Args:
        owner: named in messages.
        X: an array or a data frame.
        frame: the columns of an earlier fit.
        reset: whether X determines the columns; otherwise it must have those of the fit.
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
        schema_: the kind of each column.

    Example:
        >>> import pandas
        >>> X = pandas.DataFrame({"size": [30.0, 50.0, None] * 4, "city": ["Ulm", "Bonn", "Ulm"] * 4})
        >>> TableEncoder().fit(X).get_feature_names_out().tolist()
        ['size', 'city = Ulm', 'city = Bonn']
    """

    def fit(self, X: Any, y: Any = None) -> "TableEncoder":
        """Determine the kind of each column of a data frame."""
        if not is_data_frame(X):
            raise TypeError(bad_value(type(self).__name__, "X", "be a data frame", type(X).__name__))
        columns = FrameColumns.fit(type(self).__name__, X)
        for name, value in {**columns.described, "_columns": columns, "schema_": columns.schema}.items():
            setattr(self, name, value)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Return a data frame as numbers, [rows, columns]; NaN for missing values."""
        check_is_fitted(self)
        return self._columns(type(self).__name__, X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns of `transform`."""
        check_is_fitted(self)
        return np.array(self._columns.schema.input_names, dtype=object)

    _columns: FrameColumns
