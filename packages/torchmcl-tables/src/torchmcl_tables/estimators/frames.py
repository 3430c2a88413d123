"""Conversion of pandas, polars and Arrow data frames with any columns to numbers.

The kind of each column is decided as in `torchmcl fit`, by `torchmcl_tables.data`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from torchmcl.errors import bad_value
from torchmcl_tables.data.inference import infer_schema
from torchmcl_tables.data.schema import TableSchema
from torchmcl_tables.data.table import Table, TableError, as_polars, is_data_frame, is_number, speaking_for

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
