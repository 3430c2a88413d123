"""Target columns: varying numbers, or classes. Anything else is a problem with a suggested remedy."""

import polars as pl

from torchmcl._messages import number_text
from torchmcl_tables.data.cells import Cells
from torchmcl_tables.data.columns import CategoryColumn, NumberColumn
from torchmcl_tables.data.kinds import Kinds, with_missing_codes
from torchmcl_tables.data.problems import Problem
from torchmcl_tables.data.table import Table
from torchmcl_tables.data.texts import short

__all__ = ["TASKS", "TargetColumn", "target_column"]

#: What can be predicted, as `--task` names it.
TASKS = ("classes", "numbers")
TargetColumn = NumberColumn | CategoryColumn

_NEARLY_ALL, _HALF = 0.9, 0.5
# Integers with at most this many different values, each of which comes this often on average, are classes.
_FEW_VALUES, _TIMES_EACH = 10, 5
# More classes than these are names, and take more memory than they are worth.
_MAX_CLASSES = 1000


def target_column(table: Table, cells: Cells, kinds: Kinds, task: str | None) -> tuple[TargetColumn, list[Problem]]:
    """Return a column to predict, as numbers or as classes, and its problems.

    Args:
        table: all of it.
        cells: of the column.
        kinds: that decide.
        task: of `TASKS`; None to decide by the cells.
    """
    name = cells.name
    subject = f"{table.name}, target {name!r}"
    if why := cells.unusable:
        got = "no value at all" if "missing" in why else why
        return NumberColumn(name, True), [Problem(subject, "hold numbers or classes", got, _others(table, name))]
    column = kinds.number(cells)
    if kinds.chosen.get(name) == "--numeric":
        task = "numbers"
    elif kinds.missing_codes:
        column = with_missing_codes(column, cells)
    if task == "classes" or (task is None and _holds_classes(cells, column, kinds)):
        return _classes(table, cells, kinds, subject)
    return column, _problems_of_numbers(table, cells, column, kinds, subject)


def _holds_classes(cells: Cells, column: NumberColumn, kinds: Kinds) -> bool:
    """Return whether cells are text, booleans, or integers with few different values."""
    if cells.series.dtype in (pl.Boolean, pl.Categorical, pl.Enum):
        return True
    if column.not_numbers > (1 - _NEARLY_ALL) * cells.n_given:
        if kinds.date(cells) is not None:
            return False
        return column.not_numbers > _HALF * cells.n_given or _TIMES_EACH * cells.n_texts <= cells.n_given
    values = cells.numbers(column.form)[0].drop_nulls()
    n_values = values.n_unique()
    if n_values < 2 or n_values > _FEW_VALUES or len(values) < _TIMES_EACH * n_values:
        return False
    return n_values == 2 or bool((values == values.round()).all())


def _classes(table: Table, cells: Cells, kinds: Kinds, subject: str) -> tuple[TargetColumn, list[Problem]]:
    column = kinds.category(cells, chosen=True, most=_MAX_CLASSES)
    n_classes = len(column.categories)
    if n_classes == 1:
        got = f"the class {short(column.categories[0])} alone"
        return column, [Problem(subject, "vary", got, f"There is nothing to learn. {_others(table, cells.name)}")]
    if column.is_open or 2 * n_classes > cells.n_given:
        got = f"{cells.n_texts:,} different in {cells.n_given:,} rows, like {short(column.categories[0])}"
        rule = f"hold at most {_MAX_CLASSES:,} classes, each in two rows or more on average"
        return column, [Problem(subject, rule, got, _others(table, cells.name))]
    return column, []


def _problems_of_numbers(table: Table, cells: Cells, column: NumberColumn, kinds: Kinds, subject: str) -> list[Problem]:
    series = cells.series
    if column.not_numbers > (1 - _NEARLY_ALL) * cells.n_given:
        _, failed = cells.numbers(column.form)
        row = failed.arg_max()
        more = f" and {column.not_numbers - 1:,} more that are none" if column.not_numbers > 1 else ""
        got = f"{str(series[row])[:40]!r} in row {row + 1}{more}"
        dates = kinds.date(cells) is not None
        advice = "Dates cannot be predicted." if dates else "Correct these cells, or tell classes apart: --task classes"
        return [Problem(subject, "hold numbers", got, advice)]
    values, _ = cells.numbers(column.form)
    low, high = values.min(), values.max()
    if low == high:
        got = "no finite number" if low is None else f"the constant {number_text(low, scale=0)}"
        return [Problem(subject, "vary", got, f"There is nothing to learn. {_others(table, cells.name)}")]
    return []


def _others(table: Table, name: str) -> str:
    others = [other for other in table.columns if other != name]
    return f"Name another column, of {', '.join(map(repr, others[:8]))}{' ...' if len(others) > 8 else ''}."
