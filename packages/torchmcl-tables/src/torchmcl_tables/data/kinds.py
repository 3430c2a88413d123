"""Decision about the kind of each column of a training table.

A column that contains only numbers is a column of numbers, a column that contains only dates is a column of dates, and
other text is categorical. A mixture of numbers and text is categorical unless there are too many distinct cells and
nearly all of them are numbers. Columns without information are dropped.
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from torchmcl.errors import number_text, option_text
from torchmcl_tables.data.columns import (
    BOOLEANS,
    SAMPLE,
    CategoryColumn,
    Cells,
    Column,
    DateColumn,
    DroppedColumn,
    NumberColumn,
)
from torchmcl_tables.data.table import Problem, Table
from torchmcl_tables.data.values import (
    NUMBER,
    PARTS,
    PLAIN,
    date_formats,
    date_parts,
    find_form,
    read_numbers,
    short,
    too_large,
    with_plain_numbers,
)

# Maximum number of categories with a separate input; the other categories of a column share one input.
_MAX_CATEGORIES = 50
# A text column with more distinct values than this that differ in most rows contains row identifiers.
_MANY_TEXTS = 20
_NEARLY_ALL = 0.9
# Names of columns whose numbers are row identifiers.
_IDENTIFIER = re.compile(r"(?i:(?:.*[_\s.-])?(?:ids?|uuid|guid|identifier))|.*[a-z]I[Dd]")
# Codes of missing values consist of nines. They are only detected among at least this many other distinct values.
_CODE, _FEWEST_OTHERS = re.compile(r"-?999+(?:\.9+)?|-?99\.9+"), 3
# If less than half of the sampled cells are numbers, the column is not numeric.
_HALF = 0.5


class Kinds:
    """Determine the kinds of columns, one at a time.

    Args:
        commas: Whether the table has decimal commas.
        chosen: Command option that names a column, by column name.
        missing_codes: Whether numbers like -9999, far from all others, represent missing values.
    """

    def __init__(self, commas: bool, chosen: dict[str, str], *, missing_codes: bool = False) -> None:
        self.commas = commas
        self.chosen = chosen
        self.missing_codes = missing_codes

    def column(self, cells: Cells) -> Column | DroppedColumn | Problem:
        """Decide the kind of a column from its cells and the options."""
        option = self.chosen.get(cells.name, "")
        if why := cells.unusable:
            got = f"{cells.name!r}: {why}"
            return Problem(option, "name a column with values", got) if option else DroppedColumn(cells.name, why)
        got = f"{cells.name!r} with {str(cells.series.drop_nulls()[0])[:40]!r}" if option else ""
        if option == "--categorical":
            return self.category(cells, chosen=True)
        if option == "--numeric":
            number = self.number(cells)
            values, _ = cells.numbers(number.form)
            return number if values.null_count() < len(values) else Problem(option, "name a column of numbers", got)
        if option == "--date":
            return self.date(cells, chosen=True) or Problem(option, "name a column of dates, such as 2024-12-31", got)
        column = self._by_cells(cells)
        if isinstance(column, NumberColumn) and self.missing_codes:
            column = with_missing_codes(column, cells)
        if option or not (why := _useless(cells, column)):
            return column
        return self.dropped(cells, why, option_text("--keep-column", cells.name))

    def dropped(self, cells: Cells, reason: str, option: str = "") -> DroppedColumn:
        """Return a dropped column; if it contains dates, these can still order the rows."""
        return DroppedColumn(cells.name, reason, option, None if cells.unusable else self.date(cells))

    def _by_cells(self, cells: Cells) -> Column:
        """Decide the kind of a column from its cells alone."""
        dtype = cells.series.dtype
        if dtype.is_numeric() or dtype == pl.Duration:
            return self.number(cells)
        if dtype.is_temporal():
            return self.date(cells) or self.category(cells)
        if dtype in (pl.Categorical, pl.Enum):
            return self.category(cells, chosen=True)
        number = self.number(cells) if cells.is_text and self._may_be_numbers(cells) else None
        if number is not None and (not number.not_numbers or _only_infinite(cells, number)):
            return number
        date = self.date(cells) if cells.is_text else None
        if date is not None and not date.not_dates:
            return date
        # Numbers or dates mixed with text: if there are few distinct cells, they are categories.
        if cells.n_texts > _MAX_CATEGORIES:
            tolerated = (1 - _NEARLY_ALL) * cells.n_present
            if number is not None and number.not_numbers <= tolerated:
                return number
            if date is not None and date.not_dates <= tolerated:
                return date
        return self.category(cells)

    def _may_be_numbers(self, cells: Cells) -> bool:
        n_failed = int(read_numbers(cells.sample, cells.form(self.commas))[1].sum())
        return n_failed <= _HALF * len(cells.sample)

    def number(self, cells: Cells) -> NumberColumn:
        """Return a column of numbers; cells that are not numbers count as missing."""
        form = cells.form(self.commas) if cells.is_text else PLAIN
        values, failed = cells.numbers(form)
        if cells.is_text and failed.any():  # the sample may lack some of the formats
            others = cells.series.filter(failed).head(SAMPLE).str.strip_chars()
            form = find_form(pl.concat([cells.sample, others]), commas=self.commas)
            values, failed = cells.numbers(form)
        return NumberColumn(cells.name, bool(values.null_count()), form, int(failed.sum()))

    def date(self, cells: Cells, *, chosen: bool = False) -> DateColumn | None:
        """Return a column of dates with the date parts that vary; None if the cells are not dates."""
        best, fewest = "", len(cells.series) + 1
        for form in date_formats(cells.series, day_first=self.commas, chosen=chosen):
            n_failed = int(cells.dates(form)[1].sum())
            if n_failed < fewest:
                best, fewest = form, n_failed
            if not fewest:
                break
        if not best:
            return None
        dates, _ = cells.dates(best)
        values = date_parts(dates.drop_nulls(), PARTS)
        parts = tuple(part for part, column in zip(PARTS, values.T, strict=True) if len(column) and np.ptp(column) > 0)
        return DateColumn(cells.name, bool(dates.null_count()), parts or PARTS[-1:], best, fewest)

    def category(self, cells: Cells, *, chosen: bool = False, most: int = _MAX_CATEGORIES) -> CategoryColumn:
        """Return a column of categories; if the user chose it and all cells are numbers, these are normalized."""
        counts = cells.counts
        # Numbers with leading zeros are codes: 7 differs from 007.
        numeric = chosen and bool(counts.get_column("text").str.contains(f"^(?:{NUMBER.pattern})$").all())
        if numeric:
            counts = with_plain_numbers(cells.texts).drop_nulls().alias("text").value_counts(name="n")
        if counts.height <= most:
            spellings = {other: text for text, others in BOOLEANS.items() for other in others}
            counts = counts.with_columns(pl.col("text").replace(spellings)).group_by("text").agg(pl.col("n").sum())
        counts = counts.sort(["n", "text"], descending=[True, False])
        is_open = counts.height > most + 1
        common = counts.get_column("text").head(most if is_open else counts.height).to_list()
        return CategoryColumn(cells.name, tuple(common), cells.n_present < len(cells.texts), is_open, numeric)


def with_missing_codes(column: NumberColumn, cells: Cells) -> NumberColumn:
    """Return a column of numbers in which outlying codes such as -9999 count as missing values.

    A code is the lowest or the highest number, occurs repeatedly, and lies further from the other numbers than these
    lie from each other. Otherwise a network would learn little more than to distinguish codes from other numbers.
    """
    values = cells.numbers(column.form)[0].drop_nulls()
    codes: list[float] = []
    for _ in range(2):  # at most one at each end
        others = values.filter(~values.is_in(codes)) if codes else values
        if not len(others):
            break
        ends = [float(others.min()), float(others.max())]
        codes += [end for end in ends if end not in codes and _is_code(end, others)][:1]
    return replace(column, missing=True, codes=tuple(sorted(codes))) if codes else column


def _is_code(value: float, values: Any) -> bool:
    n_cells = int((values == value).sum())
    if not _CODE.fullmatch(f"{value:.10g}") or n_cells < 2 or n_cells > _HALF * len(values):
        return False
    others = values.filter(values != value)
    low, high = float(others.min()), float(others.max())
    return bool(others.n_unique() >= _FEWEST_OTHERS and max(low - value, value - high) > high - low)


def _only_infinite(cells: Cells, column: NumberColumn) -> bool:
    """Return whether all cells of a column that are not numbers are infinite or far too large."""
    odd = cells.series.filter(cells.numbers(column.form)[1]).str.strip_chars()
    infinite = odd.str.contains(r"(?i)^[+-]?inf(?:inity)?$")
    return bool((infinite | too_large(odd.cast(pl.Float64, strict=False))).all())


def _useless(cells: Cells, column: Column) -> str:
    """Return the reason why a column is useless for training; empty if it is useful."""
    if isinstance(column, NumberColumn):
        return _useless_numbers(cells.numbers(column.form)[0], column)
    if isinstance(column, DateColumn):
        dates, _ = cells.dates(column.form)
        return "" if column.missing or dates.min() != dates.max() else "all of its dates are the same"
    if not isinstance(column, CategoryColumn):
        return ""
    if len(column.categories) == 1 and not column.missing:
        return f"all of its cells are {column.categories[0][:40]!r}"
    if len(column.categories) > _MANY_TEXTS and cells.n_texts > max(_MANY_TEXTS, cells.n_present / 2):
        return f"its text differs in most rows ({cells.n_texts:,} different in {cells.n_present:,})"
    return ""


def _useless_numbers(values: Any, column: NumberColumn) -> str:
    """Return the reason why numbers are useless: they are constant, or identify the rows; else empty."""
    low, high = values.min(), values.max()
    if low == high:
        return "" if column.missing else f"all of its cells are {number_text(low, scale=0)}"
    if column.missing or not _IDENTIFIER.fullmatch(column.name) or len(values) <= _MANY_TEXTS:
        return ""
    identifies_rows = values.n_unique() == len(values) and bool((values == values.round()).all())
    return "it identifies the rows (a different integer in each)" if identifies_rows else ""


TargetColumn = NumberColumn | CategoryColumn

# Integers with at most this many distinct values, each occurring this often on average, are classes.
_FEW_VALUES, _TIMES_EACH = 10, 5
# With more classes than this, the column contains identifiers, and a classifier would need too much memory.
_MAX_CLASSES = 1000


def target_column(table: Table, cells: Cells, kinds: Kinds, task: str | None) -> tuple[TargetColumn, list[Problem]]:
    """Return a column to predict, as numbers or as classes, and its problems.

    Args:
        table: Training table.
        cells: Cells of the column.
        kinds: Decision about the kinds of columns.
        task: Kind of target, "classes" or "numbers"; None to decide by the cells.
    """
    name = cells.name
    subject = f"{table.name}, target {name!r}"
    if why := cells.unusable:
        got = "only missing values" if "missing" in why else why
        return NumberColumn(name, True), [Problem(subject, "contain numbers or classes", got, _others(table, name))]
    column = kinds.number(cells)
    if kinds.chosen.get(name) == "--numeric":
        task = "numbers"
    elif kinds.missing_codes:
        column = with_missing_codes(column, cells)
    if task == "classes" or (task is None and _holds_classes(cells, column, kinds)):
        return _classes(table, cells, kinds, subject)
    return column, _problems_of_numbers(table, cells, column, kinds, subject)


def _holds_classes(cells: Cells, column: NumberColumn, kinds: Kinds) -> bool:
    """Return whether the cells are text, booleans, or integers with few distinct values."""
    if cells.series.dtype in (pl.Boolean, pl.Categorical, pl.Enum):
        return True
    if column.not_numbers > (1 - _NEARLY_ALL) * cells.n_present:
        if kinds.date(cells) is not None:
            return False
        return column.not_numbers > _HALF * cells.n_present or _TIMES_EACH * cells.n_texts <= cells.n_present
    values = cells.numbers(column.form)[0].drop_nulls()
    n_values = values.n_unique()
    if n_values < 2 or n_values > _FEW_VALUES or len(values) < _TIMES_EACH * n_values:
        return False
    return n_values == 2 or bool((values == values.round()).all())


def _classes(table: Table, cells: Cells, kinds: Kinds, subject: str) -> tuple[TargetColumn, list[Problem]]:
    column = kinds.category(cells, chosen=True, most=_MAX_CLASSES)
    n_classes = len(column.categories)
    if n_classes == 1:
        got = f"only the class {short(column.categories[0])}"
        return column, [Problem(subject, "vary", got, f"There is nothing to learn. {_others(table, cells.name)}")]
    if column.is_open or 2 * n_classes > cells.n_present:
        got = f"{cells.n_texts:,} distinct values in {cells.n_present:,} rows, such as {short(column.categories[0])}"
        rule = f"hold at most {_MAX_CLASSES:,} classes, each in two rows or more on average"
        return column, [Problem(subject, rule, got, _others(table, cells.name))]
    return column, []


def _problems_of_numbers(table: Table, cells: Cells, column: NumberColumn, kinds: Kinds, subject: str) -> list[Problem]:
    series = cells.series
    if column.not_numbers > (1 - _NEARLY_ALL) * cells.n_present:
        _, failed = cells.numbers(column.form)
        row = failed.arg_max()
        more = f" and {column.not_numbers - 1:,} other cells that are not numbers" if column.not_numbers > 1 else ""
        got = f"{str(series[row])[:40]!r} in row {row + 1}{more}"
        dates = kinds.date(cells) is not None
        advice = (
            "Dates cannot be predicted. Choose another target."
            if dates
            else "Correct these cells, or predict classes: --task classes"
        )
        return [Problem(subject, "contain numbers", got, advice)]
    values, _ = cells.numbers(column.form)
    low, high = values.min(), values.max()
    if low == high:
        got = "no finite number" if low is None else f"the constant {number_text(low, scale=0)}"
        return [Problem(subject, "vary", got, f"There is nothing to learn. {_others(table, cells.name)}")]
    return []


def _others(table: Table, name: str) -> str:
    others = [other for other in table.columns if other != name]
    return f"Name another column: {', '.join(map(repr, others[:8]))}{' ...' if len(others) > 8 else ''}."
