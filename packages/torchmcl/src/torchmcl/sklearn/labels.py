"""Labels of classes: checks, indices and weights."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from torchmcl._checks import bad_value
from torchmcl.sklearn.columns import checked_table, checked_weights

__all__ = ["ClassTable", "checked_classes", "ids_and_factors"]


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
    """Return the class index of each row, and the factor of its weight by `class_weight`; None without."""
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
