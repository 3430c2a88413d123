"""Columns to predict: numbers that vary. Anything else is a problem with a way out."""

from torchmcl._messages import number_text
from torchmcl.data.table.columns import NumberColumn
from torchmcl.data.table.files import Table
from torchmcl.data.table.kinds import Cells, Kinds
from torchmcl.data.table.problems import Problem

__all__ = ["target_column"]

_NEARLY_ALL = 0.9
_CLASSES = """\
For classes there is torchmcl.MCLClassifier, in Python:

from pathlib import Path
import torchmcl
from torchmcl.data.table import ColumnEncoder, infer_schema, read_table
table = read_table("classes", Path({file!r}))
schema = infer_schema("classes", table, [], drop=[{name!r}])
values = schema.values("classes", table)
X, y = ColumnEncoder(schema).fit(values)(values), table.frame[{name!r}].cast(str).fill_null("missing").to_numpy()
model = torchmcl.MCLClassifier().fit(X, y)
print(model.predict(X[:5]))
"""


def target_column(table: Table, name: str, kinds: Kinds) -> tuple[NumberColumn, list[Problem]]:
    """Return a column to predict, read as numbers, and its problems."""
    cells = Cells(table.frame.get_column(name))
    series = cells.series
    subject = f"{table.name}, target {name!r}"
    if why := cells.useless:
        got = "no value at all" if "missing" in why else why
        return NumberColumn(name, True), [Problem(subject, "hold numbers", got, _others(table, name))]
    column = kinds.number(cells)
    if column.not_numbers and column.not_numbers > (1 - _NEARLY_ALL) * cells.n_given:
        _, failed = cells.numbers(column.form)
        row = failed.arg_max()
        got = f"{str(series[row])[:40]!r} in row {row + 1}"
        more = f" and {column.not_numbers - 1:,} more that are none" if column.not_numbers > 1 else ""
        if series.dtype.is_temporal():
            return column, [Problem(subject, "hold numbers", f"{got}{more}", "Dates cannot be predicted.")]
        return column, [
            Problem(subject, "hold numbers", f"{got}{more}", _CLASSES.format(file=table.path or table.name, name=name))
        ]
    values, _ = cells.numbers(column.form)
    low, high = values.min(), values.max()
    if low == high:
        got = "no finite number" if low is None else f"the constant {number_text(low, scale=0)}"
        return column, [Problem(subject, "vary", got, f"There is nothing to learn. {_others(table, name)}")]
    return column, []


def _others(table: Table, name: str) -> str:
    others = [other for other in table.columns if other != name]
    return f"Name another column, of {', '.join(map(repr, others[:8]))}{' ...' if len(others) > 8 else ''}."
