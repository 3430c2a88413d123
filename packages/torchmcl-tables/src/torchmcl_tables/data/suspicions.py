"""Columns of a training table that may be unsuitable: row numbers, and columns that determine the target."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from torchmcl_tables.data.columns import CategoryColumn, Column, NumberColumn
from torchmcl_tables.data.schema import Suspicion
from torchmcl_tables.data.table import Table

__all__ = ["counts_rows", "find_suspicions"]

# Ranks that agree as well as this are the target in other units.
_CORRELATION = 0.999
# Categories that tell this share of the variance are the target in classes.
_TOLD = 0.99
# Rows that are compared: of more, evenly spaced ones.
_N_COMPARED = 5000
_FEWEST = 10

Values = NDArray[np.float64]


def find_suspicions(
    table: Table,
    columns: tuple[Column, ...],
    targets: tuple[NumberColumn | CategoryColumn, ...],
    kept: frozenset[str] = frozenset(),
) -> tuple[Suspicion, ...]:
    """Return the suspicious columns with reasons; those of `kept` may number the rows."""
    step = max(1, len(table) // _N_COMPARED)
    truths = {target: table.reading(target).values[::step, 0] for target in targets}
    ranks = {target.name: _ranks(truth) for target, truth in truths.items() if isinstance(target, NumberColumn)}
    found = []
    for column in columns:
        values = table.reading(column).values[::step, 0]
        reason = ""
        for target, truth in truths.items():
            if isinstance(target, CategoryColumn) and _names_the_class(values, truth, len(target.categories)):
                reason = f"it gives {target.name} away (each of its values goes with one class)"
        if not reason and isinstance(column, CategoryColumn):
            told = next((name for name, truth in ranks.items() if _tells(values, truth)), None)
            reason = f"it gives {told} away (its categories tell 99 % of the variance)" if told is not None else ""
        elif not reason and isinstance(column, NumberColumn):
            if len(columns) > 1 and column.name not in kept and counts_rows(table, column):
                reason = "it counts the rows"
            else:
                reason = _same_order(_ranks(values), ranks)
        if reason:
            found.append(Suspicion(column.name, reason))
    return tuple(found)


def counts_rows(table: Table, column: Column) -> bool:
    """Return whether the numbers of a column increase or decrease by one from row to row."""
    if not isinstance(column, NumberColumn):
        return False
    steps = np.diff(table.reading(column).values[:, 0])
    return len(steps) >= _FEWEST and steps[0] in (1, -1) and bool((steps == steps[0]).all())


def _tells(codes: Values, ranks: Values) -> bool:
    """Return whether frequent categories explain nearly all of the variance of the target's ranks."""
    both = np.isfinite(ranks)
    groups, of_row = np.unique(codes[both], return_inverse=True)
    known, counts = ranks[both], np.bincount(of_row.ravel(), minlength=len(groups))
    if len(groups) < 2 or _FEWEST * len(groups) > len(known) or not known.std():
        return False
    means = np.bincount(of_row.ravel(), weights=known, minlength=len(groups)) / counts
    return bool(((known - means[of_row.ravel()]) ** 2).mean() < (1 - _TOLD) * known.var())


def _names_the_class(values: Values, truth: Values, n_classes: int) -> bool:
    """Return whether a few frequent values determine the class, with more than one class."""
    both = np.isfinite(values) & (truth < n_classes)
    if both.sum() < _FEWEST:
        return False
    n_values = len(np.unique(values[both]))
    if _FEWEST * n_values > both.sum() or len(np.unique(truth[both])) < 2:
        return False
    return len(np.unique(np.stack([values[both], truth[both]]), axis=1).T) == n_values


def _same_order(ranks: Values, truths: dict[str, Values]) -> str:
    """Return the target with the order of a column, in either direction, empty if there is none."""
    for name, truth in truths.items():
        both = np.isfinite(ranks) & np.isfinite(truth)
        if both.sum() < _FEWEST or not ranks[both].std() or not truth[both].std():
            continue
        agreement = abs(float(np.corrcoef(ranks[both], truth[both])[0, 1]))
        if agreement > _CORRELATION:
            return f"it gives {name} away (rank correlation {agreement:.4f})"
    return ""


def _ranks(values: Values) -> Values:
    ranks: Values = rankdata(values, nan_policy="omit")
    return ranks
