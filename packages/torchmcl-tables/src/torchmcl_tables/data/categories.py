"""Columns of categories."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl_tables.data.cells import short, texts_of, with_plain_numbers
from torchmcl_tables.data.readings import Reading, odd_cells

__all__ = ["BOOLEANS", "CategoryColumn"]

# Categories that a message lists.
_N_LISTED = 8
# Booleans are written in different ways by different programs.
BOOLEANS = {"true": ("True", "TRUE"), "false": ("False", "FALSE")}


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories.

    Attributes:
        name: of the column.
        categories: with their own input, the most common first.
        missing: whether values were missing in the training table.
        is_open: whether there were more, which share an input, also with those that were never seen.
        numeric: whether all of them are numbers, which are written in one way: 3 for 3.0.
    """

    name: str
    categories: tuple[str, ...]
    missing: bool
    is_open: bool = False
    numeric: bool = False

    is_scaled = False
    kind = "category"

    @property
    def value_names(self) -> tuple[str, ...]:
        """The meaning of each value."""
        return (self.name,)

    @property
    def codes(self) -> dict[str, int]:
        """The code of each category."""
        codes = {category: place for place, category in enumerate(self.categories)}
        others = {other: codes[text] for text, ways in BOOLEANS.items() if text in codes for other in ways}
        return others | codes

    @property
    def other_code(self) -> int:
        """The code of a text that has no input of its own: -1, none of the known ones, if there is none to share."""
        return len(self.categories) if self.is_open else -1

    @property
    def missing_code(self) -> int:
        """The code of a missing value."""
        return len(self.categories) + self.is_open

    @property
    def input_names(self) -> list[str]:
        """The meaning of each input of the network."""
        names = [f"{self.name} = {category}" for category in self.categories]
        return names + [f"{self.name} is another"] * self.is_open + [f"{self.name} is missing"] * self.missing

    @property
    def rule(self) -> str:
        """What its cells must do."""
        listed = ", ".join(map(short, self.categories[:_N_LISTED]))
        return f"hold categories that the model knows ({listed}{' ...' if len(self.categories) > _N_LISTED else ''})"

    def read(self, series: Any) -> Reading:
        """Return the codes of a column of any table."""
        texts = texts_of(series)
        texts = with_plain_numbers(texts) if self.numeric else texts
        codes = texts.replace_strict(self.codes, default=self.other_code, return_dtype=pl.Int32)
        codes = codes.set(texts.is_null(), self.missing_code)
        return Reading(codes.cast(pl.Float64).to_numpy()[:, None], odd_cells(texts, codes == -1))

    def encode(self, values: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Fill the inputs from codes."""
        codes = values[:, 0].astype(np.int64)
        known = np.flatnonzero((codes >= 0) & (codes < inputs.shape[1]))
        inputs[known, codes[known]] = 1.0

    def odd_words(self, *, strict: bool) -> str | None:
        """Return what happens to unknown categories; None if they are an error."""
        return None if strict else "are answered as none of the known ones"

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell about it."""
        return not self.is_open

    def describe(self) -> str:
        """Return in words how the column is read."""
        n_known = len(self.categories)
        return f"the {n_known} most common categories, the others share an input" if self.is_open else "categories"
