"""What reading the cells of a column gives: values, and cells that do not fit."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.data.cells import short

__all__ = ["OddCells", "Reading", "odd_cells"]


class OddCells(NamedTuple):
    """Cells that do not fit the column: their number, and the first of them."""

    n_cells: int
    row: int
    text: str

    def __str__(self) -> str:
        """Return where they are."""
        return f"{short(self.text)} in row {self.row + 1}" + (
            f" and {self.n_cells - 1} more" if self.n_cells > 1 else ""
        )


class Reading(NamedTuple):
    """The cells of a column: [rows, values], and those that do not fit; None if all do."""

    values: NDArray[np.float64]
    odd: OddCells | None


def odd_cells(series: Any, failed: Any) -> OddCells | None:
    """Return the cells of a column that `failed` marks."""
    if not failed.any():
        return None
    row = failed.arg_max()
    return OddCells(int(failed.sum()), row, str(series[row]))
