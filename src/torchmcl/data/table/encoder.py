"""The inputs of a network from the values of a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.data.table.schema import TableSchema

__all__ = ["ColumnEncoder"]

# Rows that are encoded at once: intermediate results stay in the cache.
_ROWS_AT_ONCE = 32_768


class ColumnEncoder:
    """Standardises numbers, marks missing ones, and gives each category an input of zeros and ones.

    A missing number becomes the mean, with an input that says so (if any were missing in training); a missing category
    is a category. The fitted state is the mean and the scale of each column of numbers; everything else follows from
    the schema.

    Args:
        schema: of the table.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.mean = np.zeros(len(schema.numbers))
        self.scale = np.ones(len(schema.numbers))

    def fit(self, values: NDArray[np.float64]) -> "ColumnEncoder":
        """Find mean and scale of the numbers in values [rows, features]."""
        for place in range(len(self.schema.numbers)):
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
        inputs = np.zeros((len(values), len(self.names)), dtype=np.float32)
        for low in range(0, len(values), _ROWS_AT_ONCE):
            self._encode(values[low : low + _ROWS_AT_ONCE], inputs[low : low + _ROWS_AT_ONCE])
        return inputs

    def _encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill inputs [rows, inputs], which are zero."""
        n_numbers = len(self.schema.numbers)
        # Single precision only after scaling: large values (years, identifiers) keep their digits.
        numbers = (values[:, :n_numbers] - self.mean) / self.scale
        inputs[:, :n_numbers] = np.nan_to_num(numbers, nan=0.0)
        marked = [place for place, column in enumerate(self.schema.numbers) if column.missing]
        inputs[:, n_numbers : n_numbers + len(marked)] = np.isnan(values[:, marked])
        start = n_numbers + len(marked)
        for place, category in enumerate(self.schema.categories, start=n_numbers):
            codes = values[:, place].astype(np.int64)
            known = np.flatnonzero((codes >= 0) & (codes < category.n_codes))
            inputs[known, start + codes[known]] = 1.0
            start += category.n_codes

    @property
    def names(self) -> list[str]:
        """The meaning of each input."""
        schema = self.schema
        names = [column.name for column in schema.numbers]
        names += [f"{column.name} is missing" for column in schema.numbers if column.missing]
        for category in schema.categories:
            names += [f"{category.name} = {value}" for value in category.categories]
            names += [f"{category.name} is rare"] * bool(category.rare)
            names += [f"{category.name} is missing"] * category.missing
        return names

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
        if not encoder.mean.shape == encoder.scale.shape == (len(schema.numbers),):
            raise ValueError("mean and scale are not those of the columns")
        return encoder
