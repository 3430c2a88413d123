"""Targets of a regressor: their names, checks, units and bounds."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_array
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.sklearn.bounds import bounds_of, unbounded, without_crossed
from torchmcl.sklearn.columns import checked_table, checked_weights
from torchmcl.sklearn.preprocessing import Scaler
from torchmcl.sklearn.rows import Rows

__all__ = ["RegressionTable", "Targets", "check_targets_vary", "checked_regression"]

# Squares of targets, and of the narrowest kernels, are numbers in double precision within these.
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
        """Check that all parts are of the same outputs: a file may have been written by others."""
        if self.bounds.shape != (2, self.n_outputs) or self.scaler.n_inputs != self.n_outputs:
            raise ValueError("the names, scales and bounds of targets are of different numbers of outputs")
        low, high = self.bounds
        if not ((low <= high) & (low < np.inf) & (high > -np.inf)).all():
            raise ValueError("the bounds of a target must be a lower and an upper one")

    @classmethod
    def fit(cls, owner: str, table: "RegressionTable", train: Rows, bounding: Rows | None) -> "Targets":
        """Return the targets of rows.

        Args:
            owner: the estimator.
            table: that the rows are from.
            train: rows that decide on the units.
            bounding: rows that decide on the bounds; None for no bounds. Rows that calibrate must not be among them,
                or sets would hold these more surely than others.
        """
        scaler = Scaler.fit(train.targets, train.weights)
        bounds = unbounded(len(table.names)) if bounding is None else bounds_of(bounding.targets, bounding.weights)
        return cls(owner, table.names, table.is_flat, scaler, bounds)

    @property
    def n_outputs(self) -> int:
        """The number of outputs."""
        return len(self.names)

    def standardised(self, y: NDArray[np.float64]) -> Tensor:
        """Return y [rows, outputs] in standardized units."""
        return torch.from_numpy(self.scaler(y, np.float64))

    def restored(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardized values [..., outputs] in the units of y, within the bounds.

        The bounds are kept in these units: moved back from standardized ones, a bound of 0 may become 1e-17.
        """
        return np.clip(self.scaler.inverse(values), *self.bounds)

    def bounded(self, values: Tensor) -> Tensor:
        """Return standardized values [..., outputs] within the bounds."""
        return values.clamp(*torch.from_numpy((self.bounds - self.scaler.mean) / self.scaler.scale))

    def like_y(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values [rows, outputs, ...] with the axes of y."""
        return values[:, 0] if self.is_flat else values

    def checked(self, y: Any, n_rows: int) -> NDArray[np.float64]:
        """Return y as [rows, outputs] after checking it."""
        values = check_array(y, ensure_2d=False, dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (n_rows, self.n_outputs):
            rule = f"have {n_rows} rows and {self.n_outputs} columns"
            raise ValueError(bad_value(self.owner, "y", rule, values.shape))
        return values

    def without_bounds_crossed_by(self, y: NDArray[np.float64]) -> "Targets":
        """Return the targets without bounds that are crossed by further targets [rows, outputs]."""
        return replace(self, bounds=without_crossed(self.bounds, y))


def _target_names(y: Any, n_outputs: int) -> NDArray[Any]:
    """Return the column names of a data frame or series, and default names for others."""
    if hasattr(y, "columns"):
        return np.array([str(name) for name in y.columns], dtype=object)
    name = getattr(y, "name", None)
    default = ["y"] if n_outputs == 1 else [f"y{i}" for i in range(n_outputs)]
    return np.array([name] if isinstance(name, str) and name else default, dtype=object)


def check_targets_vary(owner: str, table: "RegressionTable") -> None:
    """Check that all outputs vary, with finite squares."""
    for name, column in zip(table.names, table.y.T, strict=True):
        if (column == column[0]).all():
            got, advice = (
                f"the constant {column[0]:g} in column {name!r}",
                "There is nothing to learn; leave the column out.",
            )
            raise ValueError(bad_value(owner, "y", "vary", got, advice))
        spread = float(np.ptp(column / 2))  # half of it is a number however large the values are
        if not _LEAST_SPREAD < spread < _MOST_SPREAD:
            rule = f"differ by more than {_LEAST_SPREAD:g} and less than {_MOST_SPREAD:g}"
            got, advice = f"{2 * spread:g} in column {name!r}", "Its squares are not numbers; give it in other units."
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
    reset: bool | None = None,
) -> RegressionTable:
    """Return a table after checking it.

    Args:
        estimator: that is fitted.
        X: [rows, columns]
        y: [rows] or [rows, outputs]
        sample_weight: [rows] or None.
        targets: of an earlier fit, which the table must continue; None for a new fit.
        n_needed: rows at least.
        reset: whether X decides on the columns; by default in a new fit.
    """
    how = {"multi_output": True, "y_numeric": True, "ensure_min_samples": n_needed}
    given = y
    X, y, described = checked_table(estimator, X, y, reset=targets is None if reset is None else reset, **how)
    weights = checked_weights(sample_weight, X)
    y = np.asarray(y, dtype=np.float64)
    columns = y[:, None] if y.ndim == 1 else y
    if targets is not None and columns.shape[1] != targets.n_outputs:
        rule = f"have {targets.n_outputs} columns, as in the first fit"
        raise ValueError(bad_value(targets.owner, "y", rule, columns.shape[1]))
    return RegressionTable(X, columns, weights, _target_names(given, columns.shape[1]), y.ndim == 1, described)
