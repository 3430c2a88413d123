"""The page about a classifier, from its records."""

from typing import Any

from torchmcl.app import report
from torchmcl_tables.reports import figures, sections


def class_page(records: dict[str, Any]) -> str:
    """Return the page."""
    target = str(records["schema"]["target_columns"][0]["name"])
    parts = [
        _head(records, target),
        _guesses(records),
        _trust(records),
        _confusion(records),
        sections.over_time_section(records, [target]),
        _ambiguous(records),
        sections.training_section(records, "log-loss on held-out rows", learned="Training loss (gray)"),
        _data(records, target),
    ]
    return report.html_report(
        f"{target}: several guesses", "\n".join(parts), command="torchmcl report", style=sections.STYLE
    )


def _head(records: dict[str, Any], target: str) -> str:
    measures, n_classes = records["evaluation"]["measures"], len(records["evaluation"]["classes"])
    n_guesses = min(int(records["parameters"]["n_hypotheses"]), n_classes)
    common = f"{report.percent(measures['most_common'])} for the most common class"
    tiles = [
        (report.percent(measures["accuracy"], 1), f"of the first guesses are right; {common}"),
        (report.percent(measures["top_accuracy"], 1), f"of the true classes are among {n_guesses} guesses"),
        (report.number(measures["log_loss"]), "log-loss; lower is better"),
    ]
    gives = f"predicts probabilities of {n_classes} classes"
    return sections.head(records, f"Which <i>{report.escape(target)}</i>? {n_guesses} guesses", gives, tiles)


def _guesses(records: dict[str, Any]) -> str:
    found = records["evaluation"]["top"]
    picture = report.image(
        figures.top_figure(found),
        "Coverage by the number of guesses",
        "Share of the rows whose class is among the first guesses, and its expected value from the probabilities "
        "(dashed).",
    )
    rows = [
        [report.percent(entry["level"]), report.percent(entry["covered"], 1), report.number(entry["classes"])]
        for entry in records["evaluation"]["coverage"]
    ]
    sets = report.table(["nominal", "covered", "classes"], rows, identity="sets")
    note = (
        '<p class="note">The smallest sets of classes with a given probability: their coverage, and their mean '
        "number of classes.</p>"
    )
    return "<h2>Coverage by number of guesses</h2>\n" + report.side_by_side([picture, sets + note])


def _trust(records: dict[str, Any]) -> str:
    found = records["evaluation"]["calibration"]
    caption = (
        "Share of first guesses that are right, by predicted probability. On the line, the probabilities are "
        f"correct; the mean difference is {100 * found['error']:.1f} points."
    )
    figure = figures.calibration_figure(found["given"], found["right"], found["count"], "right", margin=0.02)
    return "<h2>Calibration of the probabilities</h2>\n" + report.image(
        figure, "Calibration of the probabilities", caption
    )


def _confusion(records: dict[str, Any]) -> str:
    found = records["evaluation"]["confusion"]
    names, counts = found["names"], found["counts"]
    rows = []
    for place, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = sum(row)
        right = report.percent(row[place] / total) if total and name != "others" else ""
        rows.append([name, *(f"{count:,}" if count else "" for count in row), right])
    numbers = report.table(["truth", *names, "right"], rows, identity="confusion")
    picture = report.image(
        figures.confusion_figure(counts, names),
        "Confusion of the classes",
        "Each row is a true class, each column a guess. Cells contain the share of the true class in percent; darker "
        "cells have larger shares.",
    )
    return "<h2>Confusion of the classes</h2>\n" + report.side_by_side([picture, numbers])


def _ambiguous(records: dict[str, Any]) -> str:
    return sections.ambiguous_rows(records, "The rows with the most uniform probabilities.", _guesses_of)


def _guesses_of(row: dict[str, Any]) -> str:
    """Return the guesses for a row as bars, and its true class."""
    bars = "".join(
        f'<div class="share"><span>{report.escape(name)}</span><i style="width: {100 * float(share):.1f}%"></i>'
        f"<b>{report.percent(share)}</b></div>"
        for name, share in zip(row["guesses"], row["probabilities"], strict=True)
    )
    return f'{bars}<div class="cells">truth <b>{report.escape(row["truth"])}</b></div>'


def _data(records: dict[str, Any], target: str) -> str:
    found = records["evaluation"]
    pairs = sorted(zip(found["shares"], found["classes"], strict=True), key=lambda pair: -pair[0])
    listed = ", ".join(f"{report.escape(name)} {report.percent(share)}" for share, name in pairs[:20])
    more = f" and {len(pairs) - 20} more" if len(pairs) > 20 else ""
    row = [
        target,
        report.Html(figures.small_bars([share for share, _ in pairs])),
        len(pairs),
        report.Html(listed + more),
    ]
    return (
        "<h2>The data</h2>\n"
        + report.table(["target", "", "classes", "shares"], [row], identity="targets")
        + sections.columns_section(records)
    )
