"""Columns of a training table that should perhaps not be learned from: row numbers, and those that tell the target."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl_tables.data.columns import CategoryColumn, Column, NumberColumn
from torchmcl_tables.data.files import Table
from torchmcl_tables.data.schema import Suspicion

__all__ = ["counts_rows", "find_suspicions"]

# Ranks that agree as well as this are the target in other units.
_CORRELATION = 0.999
# Categories that tell this share of the variance are the target in classes.
_TOLD = 0.99
# Rows that are compared: of more, evenly spaced ones.
_N_COMPARED = 5000
_FEWEST = 10


def find_suspicions(
    table: Table,
    columns: tuple[Column, ...],
    targets: tuple[NumberColumn | CategoryColumn, ...],
    kept: frozenset[str] = frozenset(),
) -> tuple[Suspicion, ...]:
    """Return the suspicious columns, with the reason; those of `kept` may number the rows."""
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
        if isinstance(column, CategoryColumn):
            told = next((name for name, truth in truths.items() if _tells(spaced, column, truth)), None)
            if told is not None:
                found.append(Suspicion(column.name, f"it gives {told} away (its categories tell 99 % of the variance)"))
            continue
        if not isinstance(column, NumberColumn):
            continue
        values = _numbers(spaced, column)
        if len(columns) > 1 and column.name not in kept and counts_rows(table, column):
            found.append(Suspicion(column.name, "it counts the rows"))
            continue
        ranks = _ranks(values)
        for name, truth in truths.items():
            if (agreement := _correlation(ranks, truth)) > _CORRELATION:
                found.append(Suspicion(column.name, f"it gives {name} away (rank correlation {agreement:.4f})"))
                break
    return tuple(found)


def counts_rows(table: Table, column: Column) -> bool:
    """Return whether the numbers of a column go up, or down, by one from row to row."""
    if not isinstance(column, NumberColumn):
        return False
    steps = np.diff(column.read(table.frame.get_column(column.name)).values[:, 0])
    return len(steps) >= _FEWEST and steps[0] in (1, -1) and bool((steps == steps[0]).all())


def _tells(frame: Any, column: CategoryColumn, ranks: NDArray[np.float64]) -> bool:
    """Return whether categories of many rows each leave next to nothing of the variance of the target's ranks."""
    codes = column.read(frame.get_column(column.name)).values[:, 0]
    both = np.isfinite(ranks)
    groups, of_row = np.unique(codes[both], return_inverse=True)
    known, counts = ranks[both], np.bincount(of_row.ravel(), minlength=len(groups))
    if len(groups) < 2 or _FEWEST * len(groups) > len(known) or not known.std():
        return False
    means = np.bincount(of_row.ravel(), weights=known, minlength=len(groups)) / counts
    return bool(((known - means[of_row.ravel()]) ** 2).mean() < (1 - _TOLD) * known.var())


def _names_the_class(frame: Any, column: Column, classes: CategoryColumn) -> bool:
    """Return whether few values, each in many rows, go with one class each, and there is more than one class."""
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
    return pl.Series(column.read(frame.get_column(column.name)).values[:, 0], nan_to_null=True)


def _ranks(values: Any) -> NDArray[np.float64]:
    ranks: NDArray[np.float64] = values.rank("average").cast(pl.Float64).to_numpy()
    return ranks


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return how well two columns of ranks agree in the rows where both are known, in either direction."""
    both = np.isfinite(left) & np.isfinite(right)
    if both.sum() < _FEWEST:
        return 0.0
    one, other = left[both] - left[both].mean(), right[both] - right[both].mean()
    size = np.sqrt((one**2).sum() * (other**2).sum())
    return float(abs((one * other).sum()) / size) if size else 0.0
