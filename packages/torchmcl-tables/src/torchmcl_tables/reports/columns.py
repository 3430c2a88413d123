"""The part of a page about the columns of a table: contents, decisions and suspicious columns."""

import datetime
import math
from typing import Any

from torchmcl._pages.numbers import number, percent
from torchmcl._pages.page import Html, escape, table
from torchmcl_tables.reports.figures import small_bars

__all__ = ["columns_section"]


def columns_section(records: dict[str, Any]) -> str:
    """Return the input columns, the decisions about them, and the suspicious ones."""
    rows = [_column(column) for column in records["columns"]]
    columns = "<p></p>" + table(["column", "", "kind", "missing", "values"], rows, identity="columns") if rows else ""
    return columns + _decisions(records)


def _decisions(records: dict[str, Any]) -> str:
    """Return the decisions about the columns, and the suspicious ones."""
    section = ""
    for key, words in (("warnings", "Perhaps not to be learned from"), ("decisions", "Decided about the table")):
        if records.get(key):
            items = "".join(f"<li>{escape(line)}</li>" for line in records[key])
            section += f"<h3>{words}</h3>\n<ul>{items}</ul>\n"
    return section


def _day(days: float) -> str:
    """Return the date of a number of days since 1970; a plain number beyond the calendar."""
    try:
        return str(datetime.date(1970, 1, 1) + datetime.timedelta(days=math.floor(days)))
    except OverflowError:
        return f"{days:g} days"


def _column(column: dict[str, Any]) -> list[str]:
    """Return the row of a column: name, distribution, kind, missing share, and values."""
    if column["kind"] == "number":
        bars = small_bars(column["histogram"]["counts"]) if "histogram" in column else ""
        spread = column.get("high", 0.0) - column.get("low", 0.0)
        known = [number(column[key], spread) for key in ("low", "median", "high") if key in column]
        text = f"{known[1]} (90 % between {known[0]} and {known[2]})" if known else "no values"
    elif column["kind"] == "date":
        bars = small_bars(column["histogram"]["counts"]) if "histogram" in column else ""
        known = [escape(_day(column[key])) for key in ("min", "median", "max") if key in column]
        text = f"{known[1]} (between {known[0]} and {known[2]})" if known else "no values"
    else:
        bars = small_bars([share for _, share in column["common"]])
        shares = ", ".join(f"{escape(name)} {percent(share)}" for name, share in column["common"][:5])
        others = " and others" if column.get("is_open") else ""
        text = f"{escape(column['n_categories'])}{others}: {shares}"
    missing = percent(column["missing"], 1) if column["missing"] else ""
    return [column["name"], Html(bars), column["kind"], missing, Html(text)]
