"""Checks of tables, weights and groups as scikit-learn makes them, without a change to the estimator."""

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data

from torchmcl._checks import bad_value

__all__ = ["checked_groups", "checked_table", "checked_weights", "set_fitted"]


def checked_table(estimator: Any, X: Any, y: Any = "no_validation", *, reset: bool, **how: Any) -> tuple[Any, ...]:
    """Return X as numbers [rows, columns] with NaN for missing values, y, and the attributes of the columns.

    Args:
        estimator: named in messages; its columns are compared with those of X.
        X: an array, or a data frame with columns of numbers.
        y: targets, checked according to `how`; None is returned for them by default.
        reset: whether X decides on the columns; otherwise it must have those of the fit.
        **how: further arguments of scikit-learn's `validate_data`.
    """
    if (column := _first_other(X)) is not None:
        owner, rule = type(estimator).__name__, "have columns of numbers"
        advice = (
            "pip install torchmcl-tables: its TableEncoder makes numbers of text, categories and dates, in a Pipeline."
        )
        raise ValueError(bad_value(owner, "X", rule, f"the column {column}", advice))
    probe = copy.copy(estimator)  # gets the attributes, so that a failing fit changes nothing
    how = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan", **how}
    checked = validate_data(probe, X, y, reset=reset, **how)
    names = ("n_features_in_", "feature_names_in_")
    described = {name: getattr(probe, name) for name in names if hasattr(probe, name)}
    return (checked, None, described) if isinstance(y, str) and y == "no_validation" else (*checked, described)


def _first_other(X: Any) -> str | None:
    """Return the name of the first non-numeric column of a pandas or polars data frame."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return None
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        is_number = (
            dtype.is_numeric() or str(dtype) == "Boolean"
            if hasattr(dtype, "is_numeric")
            else getattr(dtype, "kind", "O") in "biuf" and str(dtype) != "category"
        )
        if not is_number:
            return f"{name!r} of type {dtype}"
    return None


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
    """Replace all fitted attributes of an estimator at once; private ones of scikit-learn stay."""
    for name in [name for name in vars(estimator) if name.endswith("_")]:
        delattr(estimator, name)
    vars(estimator).update(attributes)
