"""The error of a model over time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.data import Table
from torchmcl_tables.data.splits import times_of
from torchmcl_tables.model.answering import Answering

__all__ = ["over_time"]

_MOST_PARTS, _ROWS_IN_PART, _FEWEST_PARTS = 24, 8, 3


def over_time(
    model: Answering, table: Table, errors: NDArray[np.float64], measure: str, power: int = 1
) -> dict[str, Any] | None:
    """Return the error in parts of equal size, in the order of the date column; None without one.

    Args:
        model: with the column in its metrics.
        table: the measured rows.
        errors: of each row, [rows, targets].
        measure: description of the errors.
        power: the mean of a part is that of errors to this power, and its root is taken.
    """
    name = (model.metrics.get("split") or {}).get("dated")
    if not name or name not in table.frame.columns:
        return None
    times = times_of(table, name, model.schema)
    order = np.argsort(times, kind="stable")[: int(np.isfinite(times).sum())]
    n_parts = min(_MOST_PARTS, len(order) // _ROWS_IN_PART)
    if n_parts < _FEWEST_PARTS:
        return None
    parts = np.array_split(order, n_parts)
    return {
        "column": name,
        "dates": name in model.schema.dating_columns,
        "measure": measure,
        "times": [float(times[part].mean()) for part in parts],
        "errors": [((np.abs(errors[part]) ** power).mean(axis=0) ** (1 / power)).tolist() for part in parts],
    }
