"""The inputs of a network from the values of a table."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.data.columns import Column, width
from torchmcl_tables.data.schema import TableSchema

__all__ = ["ColumnEncoder"]

# Rows that are encoded at once: intermediate results stay in the cache.
_ROWS_AT_ONCE = 32_768


class ColumnEncoder:
    """Standardizes numbers, marks missing ones, and encodes categories as zeros and ones.

    A missing number becomes the mean, with an indicator input (if any were missing in training); a missing category
    is a category. The fitted state is the mean and the scale of each value; everything else follows from the schema.

    Args:
        schema: of the table.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        # Of each value; codes of categories are left as they are.
        self.mean = np.zeros(width(schema.columns))
        self.scale = np.ones(width(schema.columns))

    def fit(self, values: NDArray[np.float64]) -> "ColumnEncoder":
        """Find mean and scale of the numbers in values [rows, values]."""
        scaled = [column.is_scaled for column in self.schema.columns for _ in column.value_names]
        for place in np.flatnonzero(scaled):
            known = values[:, place][np.isfinite(values[:, place])]
            if len(known):  # a column may be missing in all training rows and have values elsewhere
                mean, variance = known.mean(), known.var()
                # A constant column has a variance of rounding errors; it is left at scale 1.
                rounding = len(known) * np.finfo(np.float64).eps
                is_constant = variance <= rounding * variance + (rounding * mean) ** 2
                self.mean[place], self.scale[place] = mean, 1.0 if is_constant else np.sqrt(variance)
        return self

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the inputs of the network, [rows, inputs]."""
        n_inputs = sum(n for _, _, n in self._layout)
        inputs = np.zeros((len(values), n_inputs), dtype=np.float32)
        for low in range(0, len(values), _ROWS_AT_ONCE):
            self._encode(values[low : low + _ROWS_AT_ONCE], inputs[low : low + _ROWS_AT_ONCE])
        return inputs

    def _encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill the zero inputs [rows, inputs]."""
        place = start = 0
        for column, n_values, n_inputs in self._layout:
            own = values[:, place : place + n_values]
            if column.is_scaled:
                # Single precision only after scaling: large values (years, identifiers) keep their digits.
                own = (own - self.mean[place : place + n_values]) / self.scale[place : place + n_values]
            column.encode(own, inputs[:, start : start + n_inputs])
            place, start = place + n_values, start + n_inputs

    @cached_property
    def _layout(self) -> list[tuple[Column, int, int]]:
        """Each column with the number of its values and of its inputs."""
        return [(column, len(column.value_names), len(column.input_names)) for column in self.schema.columns]

    @property
    def names(self) -> list[str]:
        """The meaning of each input."""
        return [name for column in self.schema.columns for name in column.input_names]

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return the numbers to store."""
        return {"encoder.mean": self.mean, "encoder.scale": self.scale}

    @classmethod
    def from_state(cls, schema: TableSchema, arrays: Mapping[str, NDArray[Any]]) -> "ColumnEncoder":
        """Return the encoder of `state`.

        Raises:
            ValueError: if the numbers are those of another schema.
        """
        encoder = cls(schema)
        encoder.mean, encoder.scale = arrays["encoder.mean"], arrays["encoder.scale"]
        if not encoder.mean.shape == encoder.scale.shape == (width(schema.columns),):
            raise ValueError("mean and scale are not those of the columns")
        return encoder
