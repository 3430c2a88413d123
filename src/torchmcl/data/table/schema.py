"""The columns of a table: numbers, categories and targets, inferred from the training table and kept with the model.

A column whose texts are all numbers is a column of numbers; other text is a category. A column that mixes both is
refused, because a typing error in one cell would change the meaning of the column.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl._messages import bad_value, number_text, option_text
from torchmcl.data.table.files import Table, polars

__all__ = [
    "MIN_ROWS",
    "MISSING",
    "NUMBER",
    "CategoryColumn",
    "NumberColumn",
    "TableSchema",
    "check_rows",
    "infer_schema",
]

# Texts of a missing value.
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?")
# With fewer rows nothing can be held out.
MIN_ROWS = 10
# Only common categories get their own input; the rare ones of a column share one.
_MAX_CATEGORIES = 50
# More different texts than this are names or notes, not categories.
_MAX_TEXTS = 1000
_MANY_TEXTS = 20
# A number as programs write it, without leading zeros.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
# Beyond this an exponent is shorter.
_PLAIN_DIGITS = 30


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes:
        name: of the column.
        missing: whether values were missing in the training table.
    """

    name: str
    missing: bool


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories.

    Attributes:
        name: of the column.
        categories: with their own input, the most common first.
        rare: known categories that share an input.
        missing: whether values were missing in the training table.
        numeric: whether all of them are numbers, which are written in one way: 3 for 3.0.
    """

    name: str
    categories: tuple[str, ...]
    rare: tuple[str, ...]
    missing: bool
    numeric: bool = False

    @property
    def codes(self) -> dict[str, int]:
        """The code of each category; the rare ones share one."""
        common = {category: place for place, category in enumerate(self.categories)}
        return common | dict.fromkeys(self.rare, len(common))

    @property
    def missing_code(self) -> int:
        """The code of a missing value."""
        return len(self.categories) + bool(self.rare)

    @property
    def n_codes(self) -> int:
        """The number of codes."""
        return self.missing_code + self.missing


@dataclass(frozen=True)
class TableSchema:
    """The columns that a model reads and those that it predicts."""

    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    targets: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns that the model reads."""
        return tuple([column.name for column in self.numbers] + [column.name for column in self.categories])

    def values(self, owner: str, table: Table, *, new_categories: bool = False) -> NDArray[np.float64]:
        """Return [rows, features]: numbers with NaN where they are missing, then codes of categories.

        Args:
            owner: named in error messages.
            table: with at least the columns of `features`; others are ignored.
            new_categories: accept unknown categories, as none of the known ones; by default they are an error.

        Raises:
            ValueError: if a column is missing, holds text among numbers or an infinite value, or a new category.
        """
        values = np.empty((len(table), len(self.features)), order="F")
        for place, number in enumerate(self.numbers):
            values[:, place] = _finite_numbers(owner, table, number.name)
        for place, category in enumerate(self.categories, start=len(self.numbers)):
            values[:, place] = _codes(owner, table, category, new_categories)
        return values

    def target_values(self, owner: str, table: Table) -> NDArray[np.float64]:
        """Return [rows, targets], NaN where a value is missing."""
        return np.stack([_finite_numbers(owner, table, name) for name in self.targets], axis=1)


def check_rows(owner: str, table: Table) -> None:
    """Check that a table has enough rows to learn from."""
    if len(table) < MIN_ROWS:
        raise ValueError(bad_value(owner, table.name, f"have at least {MIN_ROWS} rows", len(table)))


def infer_schema(
    owner: str,
    table: Table,
    targets: Sequence[str],
    *,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
) -> TableSchema:
    """Return the schema of a training table.

    Args:
        owner: named in error messages.
        table: all of it.
        targets: the columns to predict.
        drop: columns to ignore.
        categorical: columns of numbers, or of both types, to treat as categories.

    Raises:
        ValueError: if a column does not exist, has no values, two types or infinite values, or cannot be a feature.
    """
    for argument, names in (("--target", targets), ("--drop", drop), ("--categorical", categorical)):
        for name in names:
            table.column(owner, name, argument)
    for name in targets:
        if name in drop or name in categorical or list(targets).count(name) > 1:
            rule = "name each column once and none of --drop and --categorical"
            raise ValueError(bad_value(owner, "--target", rule, repr(name)))
    numbers, categories = [], []
    for name in targets:
        _target(owner, table, name)
    for name in table.columns:
        if name in targets or name in drop:
            continue
        series = table.column(owner, name)
        if name not in categorical and (read := _read_numbers(series)).n_numbers > 0:
            _check_numbers(owner, table, name, read)
            numbers.append(NumberColumn(name, bool(read.values.is_null().any())))
        else:
            categories.append(_category(owner, table, name, chosen=name in categorical))
    if not numbers and not categories:
        rule = "have a column besides the targets"
        raise ValueError(bad_value(owner, table.name, rule, ", ".join(map(repr, table.columns))))
    return TableSchema(tuple(numbers), tuple(categories), tuple(targets))


class _Numbers(NamedTuple):
    """A column read as numbers: values with nulls, their number, and the first text that is not a number."""

    values: Any
    n_numbers: int
    bad_row: int | None
    bad_value: str
    n_bad: int


def _read_numbers(series: Any) -> _Numbers:
    pl = polars()
    if series.dtype.is_numeric():
        values = series.cast(pl.Float64).fill_nan(None)
        return _Numbers(values, len(values) - values.null_count(), None, "", 0)
    if series.dtype != pl.String:
        return _Numbers(pl.Series(series.name, [None] * len(series), dtype=pl.Float64), 0, None, "", 0)
    values = series.cast(pl.Float64, strict=False)
    failed = values.is_null() & series.is_not_null()
    if failed.any():  # stripping all texts would take time
        values = series.str.strip_chars().cast(pl.Float64, strict=False)
        failed = values.is_null() & series.is_not_null() & ~series.str.strip_chars().is_in(list(MISSING))
    values = values.fill_nan(None)
    first = failed.arg_max() if failed.any() else None
    text = "" if first is None else str(series[first])
    return _Numbers(values, len(values) - values.null_count(), first, text, int(failed.sum()))


def _finite_numbers(owner: str, table: Table, name: str) -> NDArray[np.float64]:
    read = _read_numbers(_of_known_type(owner, table, name))
    _check_numbers(owner, table, name, read)
    values: NDArray[np.float64] = read.values.to_numpy()
    return values


def _check_numbers(owner: str, table: Table, name: str, read: _Numbers) -> None:
    subject = f"{table.name}, column {name!r}"
    if read.bad_row is not None:
        got = f"{_short(read.bad_value)} in row {read.bad_row + 1}" + (
            f" and {read.n_bad - 1} more" if read.n_bad > 1 else ""
        )
        categorical, drop = (option_text(option, name) for option in ("--categorical", "--drop"))
        advice = f"Correct the file, or fit with {categorical} or {drop}"
        raise ValueError(bad_value(owner, subject, "have one type and not numbers and text", got, advice))
    infinite = read.values.is_infinite().fill_null(False)
    if infinite.any():
        got = f"{read.values[infinite.arg_max()]} in row {infinite.arg_max() + 1}"
        advice = "Leave a cell empty for a missing value."
        raise ValueError(bad_value(owner, subject, "be finite", got, advice))


def _target(owner: str, table: Table, name: str) -> None:
    read = _read_numbers(_of_known_type(owner, table, name))
    subject = f"{table.name}, target {name!r}"
    if not read.n_numbers:
        got = _short(read.bad_value) if read.bad_row is not None else "no value at all"
        raise ValueError(bad_value(owner, subject, "hold numbers", got, "For classes see torchmcl.MCLClassifier."))
    _check_numbers(owner, table, name, read)
    low, high = read.values.min(), read.values.max()
    if low == high:
        advice = "There is nothing to learn."
        raise ValueError(bad_value(owner, subject, "vary", f"the constant {number_text(low, scale=0)}", advice))


def _texts(series: Any) -> Any:
    """Return a column as text, null where it is missing."""
    pl = polars()
    texts = series.str.strip_chars() if series.dtype == pl.String else series.cast(pl.String)
    return texts.set(texts.is_in(list(MISSING)).fill_null(False), None)


def _is_numeric(texts: Any) -> bool:
    """Return whether all texts are numbers. With leading zeros they are codes: 7 differs from 007."""
    return all(NUMBER.fullmatch(text) for text in texts.drop_nulls().unique())


def _with_plain_numbers(texts: Any) -> Any:
    """Return texts in which each number is written in one way: 3 for 3.0, 1000 for 1e3."""
    known = texts.drop_nulls().unique().to_list()
    plain = {text: plain_number(text) for text in known if NUMBER.fullmatch(text)}
    return texts.replace({text: number for text, number in plain.items() if text != number})


def plain_number(text: str) -> str:
    """Return the shortest plain text of a number, exactly.

    Example:
        >>> [plain_number(text) for text in ("3.0", "+3", "1e3", "-0.0", "2.50", "1e-99")]
        ['3', '3', '1000', '0', '2.5', '1E-99']
    """
    number = Decimal(text).normalize(Context(prec=len(text) + 1))
    if number == 0:
        return "0"
    return f"{number:f}" if abs(number.adjusted()) <= _PLAIN_DIGITS else str(number)


def _category(owner: str, table: Table, name: str, *, chosen: bool) -> CategoryColumn:
    subject = f"{table.name}, column {name!r}"
    texts = _texts(_of_known_type(owner, table, name))
    leave_out = f"Leave it out: {option_text('--drop', name)}"
    if texts.null_count() == len(texts):
        raise ValueError(bad_value(owner, subject, "have a value", "only missing ones", leave_out))
    numeric = _is_numeric(texts)
    texts = _with_plain_numbers(texts) if numeric else texts
    counts = texts.drop_nulls().alias("text").value_counts(name="n").sort(["n", "text"], descending=[True, False])
    n_texts, n_given = counts.height, len(texts) - texts.null_count()
    if n_texts > _MAX_TEXTS or (not chosen and n_texts > max(_MANY_TEXTS, n_given / 2)):
        rule = f"hold categories (at most {_MAX_TEXTS}, each more than once)"
        got = f"{n_texts} different texts in {n_given} rows"
        raise ValueError(bad_value(owner, subject, rule, got, leave_out))
    known = tuple(counts.get_column("text").to_list())
    n_common = _MAX_CATEGORIES if len(known) > _MAX_CATEGORIES + 1 else len(known)
    return CategoryColumn(name, known[:n_common], known[n_common:], bool(texts.null_count()), numeric)


def _codes(owner: str, table: Table, column: CategoryColumn, new_categories: bool) -> NDArray[np.float64]:
    pl = polars()
    series = _of_known_type(owner, table, column.name)
    texts = _texts(series)
    texts = _with_plain_numbers(texts) if column.numeric else texts
    codes = texts.replace_strict(column.codes, default=-1, return_dtype=pl.Int32)
    codes = codes.set(texts.is_null(), column.missing_code)
    new = codes == -1
    if new.any() and not new_categories:
        row = new.arg_max()
        known = [*column.categories, *column.rare]
        listed = ", ".join(map(_short, known[:8])) + (" ..." if len(known) > 8 else "")
        advice = "With --allow-new-categories such rows are answered as if they had none of them."
        rule = f"hold categories that the model knows ({listed})"
        got = f"{_short(texts[row])} in row {row + 1}"
        raise ValueError(bad_value(owner, f"{table.name}, column {column.name!r}", rule, got, advice))
    values: NDArray[np.float64] = codes.cast(pl.Float64).to_numpy()
    return values


def _of_known_type(owner: str, table: Table, name: str) -> Any:
    pl = polars()
    series = table.column(owner, name)
    kind = series.dtype
    if not (kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)):
        subject = f"{table.name}, column {name!r}"
        advice = f"Convert it first, or leave it out: {option_text('--drop', name)}"
        raise ValueError(bad_value(owner, subject, "hold numbers or text", str(kind), advice))
    return series


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
