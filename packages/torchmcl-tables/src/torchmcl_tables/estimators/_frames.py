"""Tables as estimators take them: arrays of numbers, and data frames of pandas, polars or Arrow as they are.

Frames of numbers are what scikit-learn makes of them. In others the kind of each column is decided as `torchmcl fit`
decides it, by `torchmcl_tables.data`, and the decisions are kept in `schema_`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_X_y, validate_data

from torchmcl._checks import bad_value
from torchmcl_tables.data.encoder import ColumnEncoder
from torchmcl_tables.data.frames import as_polars, has_only_numbers, is_data_frame
from torchmcl_tables.data.inference import infer_schema
from torchmcl_tables.data.problems import TableError, speaking_for
from torchmcl_tables.data.schema import TableSchema
from torchmcl_tables.data.table import Table

__all__ = ["DataFrames"]

_WAY_OUT = "Or make numbers of the columns first: sklearn.compose.ColumnTransformer with OneHotEncoder in a Pipeline."


class DataFrames(BaseEstimator):
    """What estimators make of X."""

    schema_: TableSchema
    _column_state: dict[str, NDArray[np.float64]]

    def __sklearn_tags__(self) -> Any:
        """Say what the estimator can do."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _checked_table(self, X: Any, y: Any = "no_validation", *, reset: bool, **how: Any) -> Any:
        """Return X as numbers [rows, columns], NaN where one is missing, and y if it is given.

        Args:
            X: an array or a data frame.
            y: targets, checked as `how` says.
            reset: whether X decides on the columns; otherwise it must have those of the fit.
            **how: further arguments of scikit-learn's `validate_data`.
        """
        how = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan", **how}
        if reset:
            for name in ("schema_", "_column_state"):
                if hasattr(self, name):
                    delattr(self, name)
        if is_data_frame(X):
            X = as_polars(X) if _is_arrow(X) else X
            if hasattr(self, "schema_") or (reset and not has_only_numbers(X)):
                return self._encoded(X, y, reset, how)
        elif hasattr(self, "schema_"):
            rule = f"be a data frame with the columns {_listed(self.schema_.features)}, as in the fit"
            raise ValueError(bad_value(type(self).__name__, "X", rule, type(X).__name__))
        return validate_data(self, X, y, reset=reset, **how)

    def _encoded(self, X: Any, y: Any, reset: bool, how: dict[str, Any]) -> Any:
        owner = type(self).__name__
        table = Table("X", as_polars(X))
        if reset:
            try:
                with speaking_for(owner):
                    self.schema_ = infer_schema(table, [])
            except TableError as error:
                raise ValueError(f"{error}\n{_WAY_OUT}") from error
            values = self.schema_.values(table)
            self._column_state = ColumnEncoder(self.schema_).fit(values).state()
            self.n_features_in_ = len(table.columns)
            self.feature_names_in_ = np.array(table.columns, dtype=object)
        else:
            with speaking_for(owner):
                values = self.schema_.values(table)
        inputs = ColumnEncoder.from_state(self.schema_, self._column_state)(values)
        if isinstance(y, str) and y == "no_validation":
            return check_array(inputs, estimator=self, **how)
        return check_X_y(inputs, y, estimator=self, **how)


def _is_arrow(X: Any) -> bool:
    return type(X).__module__.partition(".")[0] == "pyarrow"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:8])) + (" ..." if len(names) > 8 else "")
