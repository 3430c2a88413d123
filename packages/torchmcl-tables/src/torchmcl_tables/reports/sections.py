"""Common sections of the pages about numbers and classes."""

import datetime
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from torchmcl.app import report
from torchmcl_tables.reports.figures import over_time_figure, small_bars, training_figure
from torchmcl_tables.verdict import verdict_on


def columns_section(records: dict[str, Any]) -> str:
    """Return the input columns, the decisions about them, and the suspicious ones."""
    rows = [_column(column) for column in records["columns"]]
    columns = (
        "<p></p>" + report.table(["column", "", "kind", "missing", "values"], rows, identity="columns") if rows else ""
    )
    return columns + _decisions(records)


def _decisions(records: dict[str, Any]) -> str:
    """Return the decisions about the columns, and the suspicious ones."""
    section = ""
    for key, words in (("warnings", "Perhaps not to be learned from"), ("decisions", "Decided about the table")):
        if records.get(key):
            items = "".join(f"<li>{report.escape(line)}</li>" for line in records[key])
            section += f"<h3>{words}</h3>\n<ul>{items}</ul>\n"
    return section


def _day(days: float) -> str:
    """Return the date of a number of days since 1970, or the plain number if it is out of range."""
    try:
        return str(datetime.date(1970, 1, 1) + datetime.timedelta(days=math.floor(days)))
    except OverflowError:
        return f"{days:g} days"


def _column(column: dict[str, Any]) -> list[str]:
    """Return the table row for a column: name, distribution, kind, missing share, and values."""
    if column["kind"] == "number":
        bars = small_bars(column["histogram"]["counts"]) if "histogram" in column else ""
        spread = column.get("high", 0.0) - column.get("low", 0.0)
        known = [report.number(column[key], spread) for key in ("low", "median", "high") if key in column]
        text = f"{known[1]} (90 % between {known[0]} and {known[2]})" if known else "no values"
    elif column["kind"] == "date":
        bars = small_bars(column["histogram"]["counts"]) if "histogram" in column else ""
        known = [report.escape(_day(column[key])) for key in ("min", "median", "max") if key in column]
        text = f"{known[1]} (between {known[0]} and {known[2]})" if known else "no values"
    else:
        bars = small_bars([share for _, share in column["common"]])
        shares = ", ".join(f"{report.escape(name)} {report.percent(share)}" for name, share in column["common"][:5])
        others = " and others" if column.get("is_open") else ""
        text = f"{report.escape(column['n_categories'])}{others}: {shares}"
    missing = report.percent(column["missing"], 1) if column["missing"] else ""
    return [column["name"], report.Html(bars), column["kind"], missing, report.Html(text)]


# Maximum number of cells shown of an ambiguous row.
_N_CELLS = 12
STYLE = "\n" + (files("torchmcl_tables.reports") / "page.css").read_text(encoding="utf-8")


def head(
    records: dict[str, Any], title: str, gives: str, tiles: Sequence[tuple[str, str]], below_verdict: str = ""
) -> str:
    """Return the top of a page: title, verdict, evaluated rows, and tiles of explained numbers."""
    found = records["evaluation"]
    rows = "test rows" if records["set_apart"] else "rows"
    tiles = [(f"{found['n_rows']:,}", f"{rows} of {report.escape(found['source'])}"), *tiles]
    cards = "".join(f'<div class="tile"><b>{value}</b><span>{text}</span></div>' for value, text in tiles)
    return f"""<h1>{title}</h1>
{_verdict_box(records, below_verdict)}
<p class="lead">A model of <code>{report.escape(records["source"])}</code> that {gives}. Evaluated on rows of
<code>{report.escape(found["source"])}</code>{_where_measured(records)}.</p>
<div class="tiles">{cards}</div>"""


def _where_measured(records: dict[str, Any]) -> str:
    """Return a description of the evaluated rows."""
    split = records["metrics"].get("split") or {}
    if not records["set_apart"]:
        return ""
    if _are_last(records):
        return f", the last by <i>{report.escape(split['column'])}</i> (since {report.escape(split['since'])})"
    groups = f", in whole groups of <i>{report.escape(split['column'])}</i>" if split.get("by") == "group" else ""
    return f" that were not used for training{groups}"


def _verdict_box(records: dict[str, Any], more: str) -> str:
    """Return the verdict for the top of a page, with a sentence below it."""
    verdict = verdict_on(records)
    if not verdict.reasons:
        said = f"<p><b>Verdict: {verdict.word}.</b> {report.escape(verdict.evidence.capitalize())}.</p>"
    else:
        items = "".join(f"<li>{report.escape(reason)}</li>" for reason in verdict.reasons)
        said = f"<p><b>Verdict: {verdict.word}</b>, because</p><ul>{items}</ul>"
    below = f"<p>{report.escape(more)}</p>" if more else ""
    return f'<div class="verdict {verdict.word}">{said}{below}</div>'


def over_time_section(records: dict[str, Any], targets: Sequence[str]) -> str:
    """Return a section on the error over time; empty without a date column."""
    found = records["evaluation"].get("over_time")
    if not found:
        return ""
    split = records["metrics"].get("split") or {}
    apart = "They are later than all training rows. " if _are_last(records) else ""
    pictures = [
        report.image(
            over_time_figure(found, [errors[place] for errors in found["errors"]], found["measure"]),
            f"Error over time for {name}",
            f"<i>{report.escape(name)}</i>: {report.escape(found['measure'])} of the evaluated rows in parts of equal "
            f"size, in the order of <i>{report.escape(found['column'])}</i>. {apart}An error that grows with time "
            "means that the model should be fitted again.",
        )
        for place, name in enumerate(targets)
    ]
    since = f" (since {report.escape(split['since'])})" if _are_last(records) else ""
    return f"<h2>Error over time{since}</h2>\n" + "\n".join(pictures)


def _are_last(records: dict[str, Any]) -> bool:
    split = records["metrics"].get("split") or {}
    return bool(records["set_apart"] and split.get("by") == "time" and "since" in split)


def ambiguous_rows(records: dict[str, Any], note: str, answers: Callable[[dict[str, Any]], str]) -> str:
    """Return the most ambiguous rows: their cells, and their answers as drawn by `answers`."""
    parts = ["<h2>The most ambiguous rows</h2>", f'<p class="note">{note}</p>']
    for row in records["evaluation"]["ambiguous"]:
        cells = " ".join(
            f"<span>{report.escape(name)} <b>{report.escape(value) if value else '(missing)'}</b></span>"
            for name, value in row["cells"][:_N_CELLS]
        )
        n_more = len(row["cells"]) - _N_CELLS
        more = f" <span>and {n_more} more</span>" if n_more > 0 else ""
        parts.append(
            f'<div class="row"><h3>Row {row["row"]:,}</h3><div class="cells">{cells}{more}</div>{answers(row)}</div>'
        )
    return "\n".join(parts)


def training_section(
    records: dict[str, Any],
    watched: str = "distortion on validation rows",
    learned: str = "Training loss (gray, scores included)",
) -> str:
    """Return the training curves, with the temperature if there is one."""
    found, metrics = records["training"], records["metrics"]
    title, caption, kept = "Training", "", found["kept_epoch"]
    if found["temperature"] is not None:
        title, caption = (
            "Training and temperature",
            (
                "Temperature (green, right axis): while it is high, all answers move together; as it falls, they "
                "separate. "
            ),
        )
    caption += f"{learned} and {watched} (blue). "
    caption += f"The vertical line is epoch {kept + 1}, which was kept." if kept >= 0 else "The last epoch was kept."
    if found["validation"] and 0 <= kept < len(found["loss"]) - 1:
        caption += " The faint epochs after it were discarded: the network began to memorize single rows."
    seconds = metrics.get("seconds", {}).get("training")
    spent = f"{report.escape(metrics['epochs'])} epochs over {metrics['rows']['learned_from']:,} rows"
    spent += f" in {seconds:.1f} s" if seconds else ""
    note = f'<p class="note">{spent}, {report.escape(metrics["inputs"])} inputs.</p>'
    return f"<h2>{title}</h2>\n" + report.image(training_figure(found), "Training curves", caption) + note
