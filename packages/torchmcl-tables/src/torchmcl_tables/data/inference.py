"""Inference of the schema of a training table from its cells and the user's options; one error lists all problems."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl.errors import option_text
from torchmcl_tables.data.columns import CategoryColumn, Column, DroppedColumn, NumberColumn
from torchmcl_tables.data.kinds import Kinds, TargetColumn, target_column
from torchmcl_tables.data.schema import Suspicion, TableSchema
from torchmcl_tables.data.table import Problem, Table, raise_problems
from torchmcl_tables.data.values import has_decimal_commas

# A column with at least this rank correlation with the target is the target in other units.
_CORRELATION = 0.999
# Categories that explain at least this fraction of the variance are a binned copy of the target.
_EXPLAINED = 0.99
# Maximum number of rows to compare, evenly spaced.
_N_COMPARED = 5000
_FEWEST = 10

Values = NDArray[np.float64]


def find_suspicions(
    table: Table,
    columns: tuple[Column, ...],
    targets: tuple[NumberColumn | CategoryColumn, ...],
    kept: frozenset[str] = frozenset(),
) -> tuple[Suspicion, ...]:
    """Find suspicious columns and the reasons; columns in `kept` may be row numbers."""
    step = max(1, len(table) // _N_COMPARED)
    truths = {target: table.reading(target).values[::step, 0] for target in targets}
    ranks = {target.name: _ranks(truth) for target, truth in truths.items() if isinstance(target, NumberColumn)}
    suspicions = []
    for column in columns:
        values = table.reading(column).values[::step, 0]
        reason = ""
        for target, truth in truths.items():
            if isinstance(target, CategoryColumn) and _determines_class(values, truth, len(target.categories)):
                reason = f"it leaks {target.name} (each of its values occurs with only one class)"
        if not reason and isinstance(column, CategoryColumn):
            leaked = next((name for name, truth in ranks.items() if _explains(values, truth)), None)
            reason = f"it leaks {leaked} (its categories explain 99 % of the variance)" if leaked is not None else ""
        elif not reason and isinstance(column, NumberColumn):
            if len(columns) > 1 and column.name not in kept and counts_rows(table, column):
                reason = "it counts the rows"
            else:
                reason = _same_order(_ranks(values), ranks)
        if reason:
            suspicions.append(Suspicion(column.name, reason))
    return tuple(suspicions)


def counts_rows(table: Table, column: Column) -> bool:
    """Return whether the numbers of a column increase or decrease by one from row to row."""
    if not isinstance(column, NumberColumn):
        return False
    steps = np.diff(table.reading(column).values[:, 0])
    return len(steps) >= _FEWEST and steps[0] in (1, -1) and bool((steps == steps[0]).all())


def _explains(codes: Values, ranks: Values) -> bool:
    """Return whether frequent categories explain nearly all of the variance of the target's ranks."""
    both = np.isfinite(ranks)
    groups, of_row = np.unique(codes[both], return_inverse=True)
    known, counts = ranks[both], np.bincount(of_row.ravel(), minlength=len(groups))
    if len(groups) < 2 or _FEWEST * len(groups) > len(known) or not known.std():
        return False
    means = np.bincount(of_row.ravel(), weights=known, minlength=len(groups)) / counts
    return bool(((known - means[of_row.ravel()]) ** 2).mean() < (1 - _EXPLAINED) * known.var())


def _determines_class(values: Values, truth: Values, n_classes: int) -> bool:
    """Return whether a few frequent values determine the class; False if there is only one class."""
    both = np.isfinite(values) & (truth < n_classes)
    if both.sum() < _FEWEST:
        return False
    n_values = len(np.unique(values[both]))
    if _FEWEST * n_values > both.sum() or len(np.unique(truth[both])) < 2:
        return False
    return len(np.unique(np.stack([values[both], truth[both]]), axis=1).T) == n_values


def _same_order(ranks: Values, truths: dict[str, Values]) -> str:
    """Return the reason for suspicion if a column has the same rank order as a target, or the reverse; else empty."""
    for name, truth in truths.items():
        both = np.isfinite(ranks) & np.isfinite(truth)
        if both.sum() < _FEWEST or not ranks[both].std() or not truth[both].std():
            continue
        agreement = abs(float(np.corrcoef(ranks[both], truth[both])[0, 1]))
        if agreement > _CORRELATION:
            return f"it leaks {name} (rank correlation {agreement:.4f})"
    return ""


def _ranks(values: Values) -> Values:
    """Return mean ranks, NaN for NaN, without the slow import of scipy.stats."""
    return pl.Series(values).fill_nan(None).rank().cast(pl.Float64).to_numpy()


# With fewer rows, no rows can be held out.
MIN_ROWS = 10


def check_rows(table: Table) -> None:
    """Check that a table has enough rows for training.

    Raises:
        TableError: If the table has too few rows.
    """
    if len(table) < MIN_ROWS:
        advice = "Add rows: a tenth of them is held out for testing, and more for validation."
        problem = Problem(table.name, f"have at least {MIN_ROWS} rows", str(len(table)), advice)
        raise_problems("infer_schema", table.name, [problem])


def infer_schema(
    table: Table,
    targets: Sequence[str],
    *,
    task: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    numeric: Sequence[str] = (),
    date: Sequence[str] = (),
    keep: Sequence[str] = (),
    interpret: bool = False,
) -> TableSchema:
    """Return the schema of a training table.

    Args:
        table: Complete training table.
        targets: Names of the columns to predict.
        task: Kind of target, "classes" or "numbers"; by default decided by the cells of the targets.
        drop: Columns to ignore.
        categorical: Columns to treat as categories, whatever they contain.
        numeric: Columns to treat as numbers; other cells count as missing.
        date: Columns to treat as dates; other cells count as missing.
        keep: Columns to use that would otherwise be dropped, such as row identifiers and constants.
        interpret: Whether to treat outlying numbers like -9999 as missing values (except in the columns of `numeric`),
            and to drop columns of row numbers (except the columns of `keep`). Intended for callers that print the
            decisions of the schema.

    Raises:
        ValueError: If the options or the targets are invalid; the message lists all problems.

    Example:
        >>> import polars
        >>> table = Table("t.csv", polars.DataFrame({"day": ["2024-05-01", "2024-06-02"], "f": ["4", "r"]}))
        >>> [column.describe() for column in infer_schema(table, []).columns]
        ['dates in the format %Y-%m-%d, read as month, weekday, days', 'categories']
    """
    chosen = {"--categorical": categorical, "--numeric": numeric, "--date": date, "--keep-column": keep}
    problems = _problems_of_options(table, targets, {"--drop": drop, **chosen})
    commas = has_decimal_commas(table.frame, semicolons=table.has_semicolons)
    options_of = {name: option for option, names in chosen.items() for name in names}
    kinds = Kinds(commas, options_of, missing_codes=interpret)
    target_columns = _target_columns(table, targets, kinds, task, problems)
    decided = _decided_columns(table, {column.name for column in target_columns}, kinds, drop, problems)
    if interpret:
        decided = _without_counters(table, decided, kinds)
    dropped = tuple(column for column in decided if isinstance(column, DroppedColumn))
    columns = tuple(column for column in decided if not isinstance(column, DroppedColumn))
    if not columns and not problems:
        problems.append(_nothing_to_learn_from(table, [column for column in dropped if column.name not in drop]))
    raise_problems("infer_schema", table.name, problems)
    suspicious = find_suspicions(table, columns, target_columns, frozenset(keep))
    return TableSchema(columns, target_columns, dropped, suspicious, table.notes)


def _target_columns(
    table: Table, names: Sequence[str], kinds: Kinds, task: str | None, problems: list[Problem]
) -> tuple[TargetColumn, ...]:
    """Return the columns to predict, and append their problems to `problems`."""
    columns = []
    for name in (name for name in names if name in table.frame.columns):
        cells = table.cells(name)
        column, target_problems = target_column(table, cells, kinds, task)
        columns.append(column)
        problems += target_problems
        if not target_problems:
            table.reading(column, cells)
    classes = [column.name for column in columns if isinstance(column, CategoryColumn)]
    if classes and len(columns) > 1:
        advice = "Fit a model for each column of classes, or give --task numbers."
        problems.append(Problem("--target", "name one column if it contains classes", ", ".join(classes), advice))
    return tuple(columns)


def _decided_columns(
    table: Table, targets: set[str], kinds: Kinds, drop: Sequence[str], problems: list[Problem]
) -> list[Column | DroppedColumn]:
    """Return the kinds of the other columns, and append their problems to `problems`."""
    decided: list[Column | DroppedColumn] = []
    for name in (name for name in table.columns if name not in targets):
        cells = table.cells(name)
        kind = kinds.dropped(cells, "as requested") if name in drop else kinds.column(cells)
        if isinstance(kind, Problem):
            problems.append(kind)
            continue
        decided.append(kind)
        if isinstance(kind, Column):
            table.reading(kind, cells)
    return decided


def _nothing_to_learn_from(table: Table, dropped: Sequence[DroppedColumn]) -> Problem:
    why = "; ".join(f"{column.name!r} is dropped, {column.reason}" for column in dropped[:8]) or "no other column"
    can_stay = [column.name for column in dropped if column.option]
    advice = f"Keep columns with {option_text('--keep-column', *can_stay)}" if can_stay else ""
    return Problem(table.name, "have a column besides the targets", why, advice)


def _without_counters(
    table: Table, decided: list[Column | DroppedColumn], kinds: Kinds
) -> list[Column | DroppedColumn]:
    """Drop columns that number the rows from 0 or 1, unless there is no other input."""
    columns = [column for column in decided if isinstance(column, Column)]
    counters = [
        column.name
        for column in columns
        if column.name not in kinds.chosen
        and counts_rows(table, column)
        and {0.0, 1.0} & {float(table.reading(column).values[end, 0]) for end in (0, -1)}
    ]
    if len(columns) == len(counters):
        return decided
    return [
        DroppedColumn(column.name, "it counts the rows", option_text("--keep-column", column.name))
        if column.name in counters
        else column
        for column in decided
    ]


def _problems_of_options(table: Table, targets: Sequence[str], options: dict[str, Sequence[str]]) -> list[Problem]:
    """Find names that are not columns, and columns that are named by two options."""
    rule = f"name a column of {table.name}"
    problems = [
        Problem(option, rule, repr(name), table.hint(name))
        for option, names in {"--target": targets, **options}.items()
        for name in names
        if name not in table.frame.columns
    ]
    # --numeric may name a target: its cells are then numbers instead of classes, and none is a code of a missing value.
    others = {option: names for option, names in options.items() if option != "--numeric"}
    claimed = [name for names in others.values() for name in names]
    for name in dict.fromkeys(targets):
        if name in claimed or list(targets).count(name) > 1:
            rule = "name each column once and none of " + ", ".join(others)
            problems.append(Problem("--target", rule, repr(name)))
    kinds = [name for option, names in options.items() if option != "--keep-column" for name in names]
    for name in dict.fromkeys(name for name in kinds if kinds.count(name) > 1):
        problems.append(Problem(name, "be named by one of --drop, --categorical, --numeric and --date", "several"))
    return problems
