"""The page about a model that tells classes apart, from its records."""

from pathlib import Path
from typing import Any

from torchmcl._files import write_atomically
from torchmcl._pages.numbers import number, percent
from torchmcl._pages.page import Html, escape, image, page, side_by_side, table
from torchmcl._reading import as_written
from torchmcl_tables.reports.class_figures import calibration_of_classes, confusion_figure, top_figure
from torchmcl_tables.reports.class_verdict import class_verdict
from torchmcl_tables.reports.table import TABLE_STYLE, over_time_section, training_section, verdict_box, where_measured
from torchmcl_tables.reports.table_columns import columns_section
from torchmcl_tables.reports.table_figures import small_bars

__all__ = ["write_class_page"]

_STYLE = """
.share { display: grid; grid-template-columns: minmax(6rem, 14rem) 1fr 4rem; gap: .6rem; align-items: center; }
.share span { overflow-wrap: anywhere; } .share i { display: block; height: .8rem; border-radius: 4px;
  background: var(--accent); } .share b { font-weight: 400; text-align: right; font-variant-numeric: tabular-nums; }
"""


def write_class_page(records: dict[str, Any], path: Path) -> Path:
    """Write the page of records as `torchmcl_tables.model.table_records` returns them; return its path.

    Raises:
        ValueError: if the records are something else.
        OSError: if it cannot be written.
    """
    with as_written("torchmcl report", "model folder", "`torchmcl fit`"):
        content = class_page(records)
    write_atomically(path, content)
    return path


def class_page(records: dict[str, Any]) -> str:
    """Return the page."""
    target = str(records["schema"]["target_columns"][0]["name"])
    parts = [
        _head(records, target),
        _guesses(records),
        _trust(records),
        _confusion(records),
        over_time_section(records, [target]),
        _ambiguous(records),
        training_section(records, "log-loss on rows that were held out", learned="Training loss (grey)"),
        _data(records, target),
    ]
    style = TABLE_STYLE + _STYLE
    return page(f"{target}: several guesses", "\n".join(parts), command="torchmcl report", style=style)


def _head(records: dict[str, Any], target: str) -> str:
    found, measures = records["evaluation"], records["evaluation"]["measures"]
    n_classes = len(found["classes"])
    n_guesses = min(int(records["parameters"]["n_hypotheses"]), n_classes)
    rows = "rows set apart before training" if records["set_apart"] else "rows"
    tiles = [
        (f"{found['n_rows']:,}", f"{rows} of {escape(found['source'])}"),
        (
            percent(measures["accuracy"], 1),
            f"of the first guesses are right; {percent(measures['most_common'])} "
            "would be by always naming the most common class",
        ),
        (percent(measures["top_accuracy"], 1), f"of the truth is among {n_guesses} guesses"),
        (number(measures["log_loss"]), "log-loss; 0 is certainty that is always right"),
    ]
    cards = "".join(f'<div class="tile"><b>{value}</b><span>{text}</span></div>' for value, text in tiles)
    return f"""<h1>Which <i>{escape(target)}</i>? {n_guesses} guesses</h1>
{verdict_box(class_verdict(records))}
<p class="lead">A model of <code>{escape(records["source"])}</code> that tells {n_classes} classes apart, with a
probability for each. Measured here on rows of <code>{escape(found["source"])}</code>{where_measured(records)}.</p>
<div class="tiles">{cards}</div>"""


def _guesses(records: dict[str, Any]) -> str:
    found = records["evaluation"]["top"]
    picture = image(
        top_figure(found),
        "Coverage by the number of guesses",
        "Share of the rows whose class is among the first guesses, and the share that the probabilities promise "
        "(dashed).",
    )
    rows = [
        [percent(entry["level"]), percent(entry["covered"], 1), number(entry["classes"])]
        for entry in records["evaluation"]["coverage"]
    ]
    sets = table(["probability", "held", "classes"], rows, identity="sets")
    note = (
        '<p class="note">The fewest classes that together have some probability: how often they hold the truth, and '
        "how many they are on average.</p>"
    )
    return "<h2>How many guesses are needed?</h2>\n" + side_by_side([picture, sets + note])


def _trust(records: dict[str, Any]) -> str:
    found = records["evaluation"]["calibration"]
    caption = (
        "Of the first guesses given with some probability, how many were right? On the line the probabilities mean "
        f"what they say; on average they are off by {100 * found['error']:.1f} points."
    )
    return "<h2>Can the probabilities be trusted?</h2>\n" + image(
        calibration_of_classes(found), "Calibration of the probabilities", caption
    )


def _confusion(records: dict[str, Any]) -> str:
    found = records["evaluation"]["confusion"]
    names, counts = found["names"], found["counts"]
    rows = []
    for place, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = sum(row)
        right = percent(row[place] / total) if total and name != "others" else ""
        rows.append([name, *(f"{count:,}" if count else "" for count in row), right])
    numbers = table(["truth", *names, "right"], rows, identity="confusion")
    picture = image(
        confusion_figure(counts, names),
        "Confusion of the classes",
        "Each row is a true class, each column a guess; the darker a cell, the more of the class is taken for that of "
        "the column. In the cells, the share of the class in percent.",
    )
    return "<h2>Which classes are taken for each other?</h2>\n" + side_by_side([picture, numbers])


def _ambiguous(records: dict[str, Any]) -> str:
    parts = [
        "<h2>The most ambiguous rows</h2>",
        '<p class="note">The rows whose probabilities are spread most evenly.</p>',
    ]
    for row in records["evaluation"]["ambiguous"]:
        cells = " ".join(
            f"<span>{escape(name)} <b>{escape(value) if value else '(missing)'}</b></span>"
            for name, value in row["cells"][:12]
        )
        more = f" <span>and {len(row['cells']) - 12} more</span>" if len(row["cells"]) > 12 else ""
        bars = "".join(
            f'<div class="share"><span>{escape(name)}</span><i style="width: {100 * float(share):.1f}%"></i>'
            f"<b>{percent(share)}</b></div>"
            for name, share in zip(row["guesses"], row["probabilities"], strict=True)
        )
        parts.append(
            f'<div class="row"><h3>Row {row["row"]:,}</h3><div class="cells">{cells}{more}</div>{bars}'
            f'<div class="cells">truth <b>{escape(row["truth"])}</b></div></div>'
        )
    return "\n".join(parts)


def _data(records: dict[str, Any], target: str) -> str:
    found = records["evaluation"]
    pairs = sorted(zip(found["shares"], found["classes"], strict=True), key=lambda pair: -pair[0])
    listed = ", ".join(f"{escape(name)} {percent(share)}" for share, name in pairs[:20])
    more = f" and {len(pairs) - 20} more" if len(pairs) > 20 else ""
    row = [target, Html(small_bars([share for share, _ in pairs])), len(pairs), Html(listed + more)]
    return (
        "<h2>The data</h2>\n"
        + table(["target", "", "classes", "shares"], [row], identity="targets")
        + columns_section(records)
    )
