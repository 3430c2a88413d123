"""Schema of a training table: the decision about the kind of each column, from its cells and the user's options.

A column that contains only numbers is a column of numbers, a column that contains only dates is a column of dates, and
other text is categorical. A mixture of numbers and text is categorical unless there are too many distinct cells and
nearly all of them are numbers. Columns without information are dropped. One error lists all problems.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

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
from torchmcl_tables.data.table import Problem, Suspicion, Table, TableSchema, raise_problems
from torchmcl_tables.data.values import (
    DAY_FIRST,
    MISSING,
    NUMBER,
    PARTS,
    are_numbers,
    date_formats,
    date_parts,
    find_unit,
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
# Years of two digits are of the last and of this century if they are further apart.
_LIFETIME = 70
# If less than half of the sampled cells are numbers, the column is not numeric.
_HALF = 0.5


class Kinds:
    """Determine the kinds of columns, one at a time.

    Args:
        chosen: Command option that names a column, by column name.
        missing_codes: Whether numbers like -9999, far from all others, represent missing values.
    """

    def __init__(self, chosen: dict[str, str], *, missing_codes: bool = False) -> None:
        self.chosen = chosen
        self.unclear: dict[str, str] = {}  # the first cell of columns with ambiguous days or years
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
            values, _ = cells.numbers(number.unit)
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
        dates = None if cells.unusable else self.date(cells)
        return DroppedColumn(cells.name, reason, option, None if cells.name in self.unclear else dates)

    def _by_cells(self, cells: Cells) -> Column:
        """Decide the kind of a column from its cells alone."""
        dtype = cells.series.dtype
        date = self.date(cells) if cells.is_text or dtype.is_integer() else None
        if date is not None and (not date.not_dates or are_numbers(cells.sample)):
            return date
        if dtype.is_numeric() or dtype == pl.Duration:
            return self.number(cells)
        if dtype.is_temporal():
            return self.date(cells) or self.category(cells)
        if dtype in (pl.Categorical, pl.Enum):
            return self.category(cells, chosen=True)
        number = self.number(cells) if cells.is_text and self._may_be_numbers(cells) else None
        if number is not None and (not number.not_numbers or _only_infinite(cells, number)):
            return number
        # Numbers or dates mixed with text: if there are few distinct cells, they are categories.
        if cells.n_texts > _MAX_CATEGORIES:
            tolerated = (1 - _NEARLY_ALL) * cells.n_present
            if number is not None and number.not_numbers <= tolerated:
                return number
            if date is not None and date.not_dates <= tolerated:
                return date
        column = self.category(cells)
        many = number is not None and number.not_numbers <= _HALF * cells.n_present
        return replace(column, not_numbers=number.not_numbers) if number is not None and many else column

    def _may_be_numbers(self, cells: Cells) -> bool:
        n_failed = int(read_numbers(cells.sample, cells.unit, cells.decimal)[1].sum())
        return n_failed <= _HALF * len(cells.sample)

    def number(self, cells: Cells) -> NumberColumn:
        """Return a column of numbers; cells that are not numbers count as missing."""
        unit = cells.unit
        values, failed = cells.numbers(unit)
        if cells.is_text and failed.any():  # the sample may lack the unit
            unit = find_unit(pl.concat([cells.sample, cells.series.filter(failed).head(SAMPLE).str.strip_chars()]))
            values, failed = cells.numbers(unit)
        return NumberColumn(cells.name, bool(values.null_count()), unit, int(failed.sum()))

    def date(self, cells: Cells, *, chosen: bool = False) -> DateColumn | None:
        """Return a column of dates with the date parts that vary; None if the cells are not dates."""
        best, fewest = "", len(cells.series) + 1
        formats = date_formats(cells.series, chosen=chosen)
        for form in formats:
            n_failed = int(cells.dates(form, cells.zone)[1].sum())
            if n_failed < fewest:
                best, fewest = form, n_failed
            if not fewest:
                break
        if not best:
            return None
        dates, _ = cells.dates(best, cells.zone)
        if (other := DAY_FIRST.get(best)) in formats and int(cells.dates(other, cells.zone)[1].sum()) == fewest:
            if cells.decimal == ",":
                best, dates = other, cells.dates(other, cells.zone)[0]
            elif not cells.dates(other, cells.zone)[0].equals(dates):
                self.unclear[cells.name] = str(cells.sample[0])
        values = date_parts(dates.drop_nulls(), PARTS)
        if best.endswith("%y") and len(values) and np.ptp(values[:, 0]) > _LIFETIME:
            self.unclear[cells.name] = str(cells.sample[0])
        parts = tuple(part for part, column in zip(PARTS, values.T, strict=True) if len(column) and np.ptp(column) > 0)
        return DateColumn(cells.name, bool(dates.null_count()), parts or PARTS[-1:], best, fewest, cells.zone)

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
    values = cells.numbers(column.unit)[0].drop_nulls()
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
    odd = cells.series.filter(cells.numbers(column.unit)[1]).str.strip_chars()
    infinite = odd.str.contains(r"(?i)^[+-]?inf(?:inity)?$")
    return bool((infinite | too_large(odd.cast(pl.Float64, strict=False))).all())


def _useless(cells: Cells, column: Column) -> str:
    """Return the reason why a column is useless for training; empty if it is useful."""
    if isinstance(column, NumberColumn):
        return _useless_numbers(cells.numbers(column.unit)[0], column)
    if isinstance(column, DateColumn):
        dates, _ = cells.dates(column.form, column.zone)
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
    values = cells.numbers(column.unit)[0].drop_nulls()
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
    dates = kinds.date(cells) is not None and cells.name not in kinds.chosen
    if dates or column.not_numbers > (1 - _NEARLY_ALL) * cells.n_present:
        _, failed = cells.numbers(column.unit)
        row = failed.arg_max()
        more = f" and {column.not_numbers - 1:,} other cells that are not numbers" if column.not_numbers > 1 else ""
        got = f"{str(series[row])[:40]!r} in row {row + 1}{more}"
        advice = (
            "Dates cannot be predicted. Choose another target."
            if dates
            else "Correct these cells, or predict classes: --task classes"
        )
        return [Problem(subject, "contain numbers", got, advice)]
    values, _ = cells.numbers(column.unit)
    low, high = values.min(), values.max()
    if low == high:
        got = "no finite number" if low is None else f"the constant {number_text(low, scale=0)}"
        return [Problem(subject, "vary", got, f"There is nothing to learn. {_others(table, cells.name)}")]
    return []


def _others(table: Table, name: str) -> str:
    others = [other for other in table.columns if other != name]
    return f"Name another column: {', '.join(map(repr, others[:8]))}{' ...' if len(others) > 8 else ''}."


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
        >>> table = Table("t.csv", polars.DataFrame({"day": ["2024-05-01", "2024-06-02"], "f": ["s", "r"]}))
        >>> [column.describe() for column in infer_schema(table, []).columns]
        ['dates in the format %Y-%m-%d, read as month, weekday, days', 'categories']
    """
    chosen = {"--categorical": categorical, "--numeric": numeric, "--date": date, "--keep-column": keep}
    problems = _problems_of_options(table, targets, {"--drop": drop, **chosen})
    options_of = {name: option for option, names in chosen.items() for name in names}
    decimal, note = table.decide_decimal(name for name in table.columns if name not in (*drop, *categorical, *date))
    kinds = Kinds(options_of, missing_codes=interpret)
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
    missing = [_missing_classes(table, column.name) for column in target_columns if isinstance(column, CategoryColumn)]
    notes = (*table.notes, *filter(None, [note, *missing]))
    return TableSchema(columns, target_columns, dropped, suspicious, notes, decimal, table.separator)


def _missing_classes(table: Table, name: str) -> str:
    """Return a note on texts of a target that count as missing, such as None, but may be classes; else empty."""
    series = table.frame.get_column(name)
    words: Any = series.filter(series.is_in(MISSING[1:]).fill_null(False)) if series.dtype == pl.String else ()
    return f"{name}: {len(words):,} cells such as {words[0]!r} are no class, but count as missing" if len(words) else ""


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
        if isinstance(kind, DateColumn) and name in kinds.unclear:
            problems.append(unclear_dates(table, name, kinds.unclear[name]))
        if isinstance(kind, Column):
            table.reading(kind, cells)
    return decided


def series_schema(table: Table, time: str, numbers: Sequence[str]) -> TableSchema:
    """Return the schema of a table of series: a column of dates or numbers, and columns of numbers, without exceptions.

    Args:
        table: Table of past values.
        time: Name of the column of times.
        numbers: Names of the columns of numbers.

    Raises:
        TableError: If the times are neither numbers nor dates, or if the notation of dates or numbers is ambiguous.
    """
    decimal, note = table.decide_decimal([time, *numbers])
    kinds, cells = Kinds({}), table.cells(time)
    times = kinds.date(cells) or kinds.number(cells)
    problems = [unclear_dates(table, time, cell) for cell in kinds.unclear.values()]
    if isinstance(times, NumberColumn) and (times.not_numbers or _looks_like_dates(cells)):
        failed = cells.numbers(times.unit)[1]
        cell = short(cells.series[failed.arg_max() if times.not_numbers else 0])
        advice = "Write dates as 2024-12-31 or 2024-12-31 23:00."
        problems.append(Problem(f"{table.name}, column {time!r}", "contain numbers or dates", cell, advice))
    raise_problems("read_table", table.name, problems)
    times = replace(times, not_dates=0) if isinstance(times, DateColumn) else times
    columns = [replace(kinds.number(table.cells(name)), not_numbers=0) for name in numbers]
    return TableSchema((times, *columns), (), notes=(*table.notes, *filter(None, [note])), decimal=decimal)


# Quarters and weeks without a mark: 20241 and 202401.
_UNMARKED = re.compile(r"(?:19|20)\d\d(?:[1-4]|[0-5]\d)")


def _looks_like_dates(cells: Cells) -> bool:
    """Return whether numbers are quarters or weeks: 20241 to 20244 or 202401 to 202453, and then the next year."""
    counts = cells.counts.sort("text")
    steps = counts.get_column("text").cast(pl.Float64, strict=False).diff().drop_nulls()
    return bool(counts.get_column("text").str.contains(f"^{_UNMARKED.pattern}$").all() and steps.n_unique() > 1)


def unclear_dates(table: Table, name: str, cell: str) -> Problem:
    """Return the problem of dates in which the day may be the month, or a year 68 both 1968 and 2068."""
    advice = "Write dates as 2024-12-31."
    return Problem(f"{table.name}, column {name!r}", "contain unambiguous dates", short(cell), advice)


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
        Problem(option, rule, repr(name), table.advice(name))
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
