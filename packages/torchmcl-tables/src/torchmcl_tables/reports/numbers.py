"""The page about a regressor, from its records: reliability and ambiguous rows."""

from typing import Any

from torchmcl.app import report
from torchmcl_tables.reports import sections
from torchmcl_tables.reports.figures import (
    answers_figure,
    calibration_figure,
    coverage_figure,
    line_of_answers,
    number_figure,
    small_bars,
    usage_figure,
)
from torchmcl_tables.verdict import coverage_at, forks

# Descriptions of the members of a blend.
_MEMBERS = {
    "networks": "smooth in all columns",
    "networks with bins": "can bend between 32 bins of each column",
    "wide networks": "larger, and trained for longer, where that still helped",
    "forest": "trees, which can jump",
    "background": "the same distribution for every row, without any column",
}


def number_page(records: dict[str, Any]) -> str:
    """Return the page."""
    targets = [target["name"] for target in records["evaluation"]["targets"]]
    join = report.side_by_side if len(targets) == 1 else "\n".join
    parts = [
        _head(records, targets),
        join([_answers(records, targets), _bynumber(records)]),
        _trust(records),
        _coverage(records, targets),
        sections.over_time_section(records, targets),
        _ambiguous(records),
        _members(records),
        _training(records),
        _data(records),
    ]
    title = f"{' and '.join(targets)}: several answers"
    return report.html_report(title, "\n".join(parts), command="torchmcl report", style=sections.STYLE)


def _head(records: dict[str, Any], targets: list[str]) -> str:
    n, measures = int(records["parameters"]["n_hypotheses"]), records["evaluation"]["measures"]
    same, nearest = measures.get("constant_rmse"), measures.get("constant_nearest_rmse")
    nine = coverage_at(records["evaluation"])
    tiles = []
    for place, name in enumerate(targets):
        of = f" ({report.escape(name)})" if len(targets) > 1 else ""
        without = "" if same is None else f"; {report.number(same[place])} with the mean of all rows"
        tiles.append((report.number(measures["rmse"][place]), f"error of the mean answer{of}{without}"))
        without = "" if nearest is None else f"; {report.number(nearest)} with {n} constant answers"
        tiles.append(
            (report.number(measures["nearest_rmse"][place]), f"error of the nearest of {n} answers{of}{without}")
        )
        if nine is not None:
            tiles.append((report.percent(nine["covered"][place]), f"of the true values lie in their 90 % sets{of}"))
    what = " and ".join(f"<i>{report.escape(name)}</i>" for name in targets)
    gives = f"predicts {n} plausible outcomes for each row, each with a probability"
    note = f"Errors are root mean squares, in the units of the target. {_gain(measures, n)}"
    return f"""{sections.head(records, f"{n} answers for {what}", gives, tiles, forks(records))}
<p class="note">{note}</p>"""


def _gain(measures: dict[str, Any], n: int) -> str:
    if measures["mean_distortion"] <= 0:
        return ""
    share = f"{100 * (1 - measures['distortion'] / measures['mean_distortion']):.3g} %"
    return f"The squared error of the nearest of {n} answers is {share} lower than that of the mean."


def _answers(records: dict[str, Any], targets: list[str]) -> str:
    found = records["evaluation"]["answers"]
    figures = [
        report.image(
            answers_figure(found, place),
            f"Answers against the truth for {name}",
            f"<i>{report.escape(name)}</i>: every answer against the true value; darker answers are more probable. "
            "Orange rings mark the nearest answer of each row.",
        )
        for place, name in enumerate(targets)
    ]
    return "<h2>Answers against the truth</h2>\n" + (report.side_by_side(figures) if len(figures) > 1 else figures[0])


def _bynumber(records: dict[str, Any]) -> str:
    found = records["evaluation"]["by_number"]
    floor = (
        "The dashed line is the lowest possible distortion of n answers if the predicted density is correct (its "
        "rate-distortion bound). Points below it indicate an underconfident model, points far above it an "
        "overconfident one."
        if found["floor"] and any(value is not None for value in found["floor"])
        else "The lowest possible distortion is computed for a single target only."
    )
    caption = (
        "Distortion (mean squared distance to the nearest answer, in variances of the target) if only the best n "
        f"answers of each row are kept. The dotted line is the mean answer. {floor}"
    )
    figure = number_figure(found, records["evaluation"]["measures"]["mean_distortion"])
    picture = report.image(figure, "Distortion by the number of answers", caption)
    return "<h2>Distortion by number of answers</h2>\n" + picture


def _trust(records: dict[str, Any]) -> str:
    found = records["evaluation"]
    usage, calibration = found["usage"], found["calibration"]
    idle = sum(wins == 0 for wins in usage["wins"])
    used = "All answers are used." if not idle else f"{idle} of {len(usage['wins'])} answers are never the nearest."
    first = report.image(
        usage_figure(usage),
        "Usage",
        "Frequency with which each answer of a row, the most probable first, is the nearest (bars), and its mean "
        f"probability (dots). {used}",
    )
    second = report.image(
        calibration_figure(calibration["given"], calibration["won"], calibration["count"], "the nearest"),
        "Calibration of the probabilities",
        "Share of answers that are the nearest, by predicted probability. On the line, the probabilities are "
        f"correct; the mean difference is {100 * calibration['error']:.1f} points.",
    )
    return "<h2>Calibration of the probabilities</h2>\n" + report.side_by_side([first, second])


def _coverage(records: dict[str, Any], targets: list[str]) -> str:
    found = records["evaluation"]["coverage"]
    picture = report.image(
        coverage_figure(found, len(targets)),
        "Coverage of the sets",
        "Share of true values in the sets, against the nominal share. Differences within the band are random, for "
        f"{found[0]['n_rows']:,} rows; outside of it the verdict is careful.",
    )
    rows = []
    for entry in found:
        cells = [report.percent(entry["level"])]
        for covered, width in zip(entry["covered"], entry["width"], strict=True):
            cells += [report.percent(covered, 1), "∞" if width is None else report.number(width)]
        rows.append([*cells, report.percent(entry["pieces"])])
    header = ["nominal"]
    for name in targets:
        of = f" ({name})" if len(targets) > 1 else ""
        header += [f"covered{of}", f"median width{of}"]
    promises = report.table([*header, "several pieces"], rows, identity="coverage")
    calibrated = "The sets are calibrated on rows that are used for nothing else."
    note = f'<p class="note">{calibrated} {report.escape(forks(records))}</p>'
    return "<h2>Coverage of the prediction sets</h2>\n" + report.side_by_side([picture, promises + note])


def _ambiguous(records: dict[str, Any]) -> str:
    note = (
        "The rows with the largest distance between answers. The area of a disc is the probability of the answer; the "
        "orange line is the true value."
    )
    return sections.ambiguous_rows(records, note, lambda row: _answers_of(row, records["evaluation"]["targets"]))


def _answers_of(row: dict[str, Any], targets: list[dict[str, Any]]) -> str:
    """Return a picture and a description of the answers for a row, for each target."""
    lines = []
    for place, target in enumerate(targets):
        own, truth, spread = [v[place] for v in row["hypotheses"]], row["truth"][place], target["std"]
        lines.append(line_of_answers(own, row["probabilities"], truth, (target["low"], target["high"])))
        pairs = zip(own, row["probabilities"], strict=True)
        said = ", ".join(f"{report.number(value, spread)} ({report.percent(share)})" for value, share in pairs)
        words = f"{report.escape(target['name'])}: {said}; truth <b>{report.number(truth, spread)}</b>"
        lines.append(f'<div class="cells">{words}</div>')
    return "".join(lines)


def _members(records: dict[str, Any]) -> str:
    """Return the members of a blend with their weights; empty for networks trained with a rule."""
    shares = records.get("member_weights")
    if not shares:
        return ""
    rows = [[name, report.percent(share, 1), _MEMBERS.get(name, "")] for name, share in shares.items()]
    note = (
        '<p class="note">The density of a row is a blend of these members, with weights fitted on held-out rows. '
        "The answers are the points that represent it best.</p>"
    )
    return "<h2>Members of the model</h2>\n" + note + report.table(["member", "weight", ""], rows, identity="members")


def _training(records: dict[str, Any]) -> str:
    if not records.get("member_weights"):
        return sections.training_section(records)
    learned = (
        "Score of one of the networks, negative log-likelihood plus three times the CRPS, on its training rows (gray)"
    )
    return sections.training_section(records, "on held-out rows, for early stopping", learned)


def _data(records: dict[str, Any]) -> str:
    targets = []
    for target in records["evaluation"]["targets"]:
        std = target["std"]
        mean, *numbers = (report.number(target[key], std) for key in ("mean", "min", "low", "median", "high", "max"))
        bars = report.Html(small_bars(target["histogram"]["counts"]))
        targets.append([target["name"], bars, mean, report.number(std), *numbers])
    header = ["target", "", "mean", "std", "min", "5 %", "median", "95 %", "max"]
    measured = f"{records['evaluation']['n_rows']:,} evaluated rows"
    note = f'<p class="note">Targets: {measured}. Columns: training rows.</p>\n'
    return (
        "<h2>The data</h2>\n"
        + note
        + report.table(header, targets, identity="targets")
        + sections.columns_section(records)
    )
