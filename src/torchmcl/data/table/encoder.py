"""From the values of a table to the numbers of a network: a scikit-learn ColumnTransformer that is stored as data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl._optional import optional_import
from torchmcl.data.table.schema import TableSchema

__all__ = ["ColumnEncoder"]

# Rows that are transformed at once: what is made on the way stays small, and in the cache.
_ROWS_AT_ONCE = 32_768


class ColumnEncoder:
    """Standardises numbers, marks missing ones, and gives each category a column of zeros and ones.

    A missing number becomes the mean, with a column beside it that says so (if any were missing in training);
    a missing category is a category. Wraps `transformer_`, a `sklearn.compose.ColumnTransformer` over the values of
    `TableSchema.values`. Its fitted state is two arrays; everything else follows from the schema, so that it is
    rebuilt from data alone, with no pickle.

    Args:
        schema: of the table.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.transformer_: Any = None

    def fit(self, values: NDArray[np.float64]) -> "ColumnEncoder":
        """Find mean and scale of the numbers in values [rows, features]."""
        preprocessing = optional_import("sklearn.preprocessing", extra="table", needed_by="ColumnEncoder")
        n_numbers = len(self.schema.numbers)
        arrays = {}
        if n_numbers:
            # A column may be missing in all rows that are trained on, and have values elsewhere.
            with np.errstate(invalid="ignore", divide="ignore"):
                scaler = preprocessing.StandardScaler().fit(values[:, :n_numbers])
            known = np.isfinite(scaler.mean_)
            arrays = {"encoder.mean": np.where(known, scaler.mean_, 0.0)}
            arrays["encoder.scale"] = np.where(known, scaler.scale_, 1.0)
        self.transformer_ = ColumnEncoder.from_state(self.schema, arrays).transformer_
        return self

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the inputs of the network, [rows, inputs]."""
        made = np.empty((len(values), len(self.names)), dtype=np.float32)
        for low in range(0, len(values), _ROWS_AT_ONCE):
            part = slice(low, low + _ROWS_AT_ONCE)
            made[part] = self.transformer_.transform(values[part])
        return made

    @property
    def names(self) -> list[str]:
        """What each input stands for."""
        schema = self.schema
        names = [column.name for column in schema.numbers]
        names += [f"{column.name} is missing" for column in schema.numbers if column.missing]
        for category in schema.categories:
            names += [f"{category.name} = {value}" for value in category.categories]
            names += [f"{category.name} is rare"] * bool(category.rare)
            names += [f"{category.name} is missing"] * category.missing
        return names

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return the numbers to store: mean and scale of the number columns."""
        if not self.schema.numbers:
            return {}
        scaler = self.transformer_.named_transformers_["numbers"].named_steps["scale"]
        return {"encoder.mean": scaler.mean_, "encoder.scale": scaler.scale_}

    @classmethod
    def from_state(cls, schema: TableSchema, arrays: Mapping[str, NDArray[Any]]) -> "ColumnEncoder":
        """Return the encoder of `state`, fitted on two rows that leave no doubt, then given its numbers."""
        encoder = cls(schema)
        rows = np.zeros((2, len(schema.features)))
        for place, column in enumerate(schema.numbers):
            rows[1, place] = np.nan if column.missing else 1.0
        encoder.transformer_ = encoder._unfitted().fit(rows)
        if schema.numbers:
            scaler = encoder.transformer_.named_transformers_["numbers"].named_steps["scale"]
            scaler.mean_ = arrays["encoder.mean"]
            scaler.scale_ = arrays["encoder.scale"]
            scaler.var_ = scaler.scale_**2
        return encoder

    def _unfitted(self) -> Any:
        needed = {"extra": "table", "needed_by": "ColumnEncoder"}
        compose = optional_import("sklearn.compose", **needed)
        pipeline = optional_import("sklearn.pipeline", **needed)
        preprocessing = optional_import("sklearn.preprocessing", **needed)
        impute = optional_import("sklearn.impute", **needed)
        n_numbers = len(self.schema.numbers)
        steps: list[Any] = []
        if n_numbers:
            # Standardised first: the mean is then 0, and imputing needs no state of its own.
            fill = impute.SimpleImputer(
                strategy="constant", fill_value=0.0, add_indicator=any(c.missing for c in self.schema.numbers)
            )
            # Single precision only after scaling: large values (years, identifiers) keep their digits.
            narrow = preprocessing.FunctionTransformer(np.float32)
            parts = [("scale", preprocessing.StandardScaler()), ("fill", fill), ("narrow", narrow)]
            numbers = pipeline.Pipeline(parts)
            steps.append(("numbers", numbers, list(range(n_numbers))))
        if self.schema.categories:
            codes = [np.arange(column.n_codes, dtype=float) for column in self.schema.categories]
            one_hot = preprocessing.OneHotEncoder(
                categories=codes, handle_unknown="ignore", sparse_output=False, dtype=np.float32
            )
            steps.append(("categories", one_hot, list(range(n_numbers, len(self.schema.features)))))
        return compose.ColumnTransformer(steps, sparse_threshold=0.0)
