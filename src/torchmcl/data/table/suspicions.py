"""Columns of a training table that should perhaps not be learned from: row numbers, and those that tell the target."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.data.table.columns import CategoryColumn, Column, NumberColumn
from torchmcl.data.table.files import Table
from torchmcl.data.table.packages import polars
from torchmcl.data.table.schema import Suspicion

__all__ = ["find_suspicions"]

# Ranks that agree as well as this are the target in other units.
_CORRELATION = 0.999
# Rows that are compared: of more, evenly spaced ones.
_N_COMPARED = 5000
_FEWEST = 10


def find_suspicions(
    table: Table, columns: tuple[Column, ...], targets: tuple[NumberColumn | CategoryColumn, ...]
) -> tuple[Suspicion, ...]:
    """Return the suspicious columns, with the reason."""
    spaced = table.frame.gather_every(max(1, len(table) // _N_COMPARED))
    truths = {t.name: _ranks(_numbers(spaced, t)) for t in targets if isinstance(t, NumberColumn)}
    classes = next((target for target in targets if isinstance(target, CategoryColumn)), None)
    found = []
    for column in columns:
        if classes is not None and _names_the_class(spaced, column, classes):
            found.append(
                Suspicion(column.name, f"it gives {classes.name} away (each of its values goes with one class)")
            )
            continue
        if not isinstance(column, NumberColumn):
            continue
        values = _numbers(spaced, column)
        if _evenly_spaced(values) and _counts_up(_numbers(table.frame, column)):
            found.append(Suspicion(column.name, "it counts the rows"))
            continue
        ranks = _ranks(values)
        for name, truth in truths.items():
            if (agreement := _correlation(ranks, truth)) > _CORRELATION:
                found.append(Suspicion(column.name, f"it gives {name} away (rank correlation {agreement:.4f})"))
                break
    return tuple(found)


def _names_the_class(frame: Any, column: Column, classes: CategoryColumn) -> bool:
    """Return whether few values, each in many rows, go with one class each, and there is more than one class."""
    pl = polars()
    truth = classes.read(frame.get_column(classes.name)).values[:, 0]
    values = column.read(frame.get_column(column.name)).values[:, 0]
    both = np.isfinite(values) & (truth < len(classes.categories))
    if both.sum() < _FEWEST:
        return False
    pairs = pl.DataFrame({"value": values[both], "truth": truth[both]})
    n_values = pairs.get_column("value").n_unique()
    if _FEWEST * n_values > len(pairs) or pairs.get_column("truth").n_unique() < 2:
        return False
    return bool(pairs.unique().height == n_values)


def _numbers(frame: Any, column: NumberColumn) -> Any:
    return polars().Series(column.read(frame.get_column(column.name)).values[:, 0], nan_to_null=True)


def _evenly_spaced(values: Any) -> bool:
    steps = np.diff(values.to_numpy())
    return len(steps) >= _FEWEST and bool((steps == steps[0]).all()) and steps[0] != 0


def _counts_up(values: Any) -> bool:
    return bool((np.abs(np.diff(values.to_numpy())) == 1).all())


def _ranks(values: Any) -> NDArray[np.float64]:
    ranks: NDArray[np.float64] = values.rank("average").cast(polars().Float64).to_numpy()
    return ranks


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return how well two columns of ranks agree in the rows where both are known, in either direction."""
    both = np.isfinite(left) & np.isfinite(right)
    if both.sum() < _FEWEST:
        return 0.0
    one, other = left[both] - left[both].mean(), right[both] - right[both].mean()
    size = np.sqrt((one**2).sum() * (other**2).sum())
    return float(abs((one * other).sum()) / size) if size else 0.0
