"""Sections of the HTML report on a model of a table."""

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any

from torchmcl.app import report
from torchmcl_tables.reports.figures import (
    calibration_figure,
    over_time_figure,
    predictions_figure,
    small_bars,
    top_figure,
    training_figure,
    values_figure,
)
from torchmcl_tables.verdict import coverage_at, forks, verdict_on

# Descriptions of the members of a blend.
_MEMBERS = {
    "networks": "smooth in all columns",
    "networks with bins": "piecewise smooth, with 32 bins of each column",
    "wide networks": "larger, and trained for longer, if longer training still helps",
    "forest": "trees, piecewise constant",
    "background": "the same distribution for every row, independent of all columns",
}
# Maximum number of cells shown for an ambiguous row.
_N_CELLS = 12
_STYLE = "\n" + (files("torchmcl_tables.reports") / "page.css").read_text(encoding="utf-8")


def number_report(records: dict[str, Any]) -> str:
    """Return the report on a regressor."""
    targets = [target["name"] for target in records["evaluation"]["targets"]]
    join = report.side_by_side if len(targets) == 1 else "\n".join
    parts = [
        _number_head(records, targets),
        join([_predictions(records, targets), _by_number(records)]),
        _calibration(records["evaluation"]["calibration"], "won", "predictions that are the nearest"),
        _number_coverage(records, targets),
        _over_time(records, targets),
        _ambiguous(records, lambda row: _values_of(row, records["evaluation"]["targets"])),
        _members(records),
        _training(records, *_curves(records)),
        _number_data(records),
    ]
    return _whole(f"{' and '.join(targets)}: several predictions", parts)


def class_report(records: dict[str, Any]) -> str:
    """Return the report on a classifier."""
    target = str(records["schema"]["target_columns"][0]["name"])
    parts = [
        _class_head(records, target),
        _guesses(records),
        _calibration(records["evaluation"]["calibration"], "right", "first guesses that are right", margin=0.02),
        _confusion(records),
        _over_time(records, [target]),
        _ambiguous(records, _guesses_of),
        _training(records, "log-loss on held-out rows", "Training loss (gray)"),
        _class_data(records, target),
    ]
    return _whole(f"{target}: several guesses", parts)


def _whole(title: str, parts: Iterable[str]) -> str:
    return report.html_report(title, "\n".join(parts), command="torchmcl report", style=_STYLE)


# ---------------------------------------------------------------------------- head


def _number_head(records: dict[str, Any], targets: list[str]) -> str:
    n, measures = int(records["parameters"]["n_hypotheses"]), records["evaluation"]["measures"]
    constant = measures.get("constant_rmse")
    nine = coverage_at(records["evaluation"])
    tiles = []
    for place, name in enumerate(targets):
        of = f" ({report.escape(name)})" if len(targets) > 1 else ""
        without = "" if constant is None else f"; {report.number(constant[place])} with the mean of all rows"
        tiles.append((report.number(measures["rmse"][place]), f"error of the mean{of}{without}"))
        nearest = report.number(measures["nearest_rmse"][place])
        tiles.append((nearest, f"error of the nearest of {n} predictions{of}"))
        if nine is not None:
            tiles.append((report.percent(nine["covered"][place]), f"of the true values lie in their 90 % sets{of}"))
    what = " and ".join(f"<i>{report.escape(name)}</i>" for name in targets)
    gives = f"predicts {n} plausible outcomes for each row, each with a probability"
    note = '<p class="note">Errors are root mean squares, in the units of the target.</p>'
    return f"{_head(records, f'{n} predictions for {what}', gives, tiles, forks(records))}\n{note}"


def _class_head(records: dict[str, Any], target: str) -> str:
    measures, n_classes = records["evaluation"]["measures"], len(records["evaluation"]["classes"])
    n_guesses = min(int(records["parameters"]["n_hypotheses"]), n_classes)
    common = f"{report.percent(measures['most_common'])} for the most common class"
    tiles = [
        (report.percent(measures["accuracy"], 1), f"of the first guesses are right; {common}"),
        (report.percent(measures["top_accuracy"], 1), f"of the true classes are among {n_guesses} guesses"),
        (report.number(measures["log_loss"]), "log-loss; lower is better"),
    ]
    gives = f"predicts probabilities of {n_classes} classes"
    return _head(records, f"Which <i>{report.escape(target)}</i>? {n_guesses} guesses", gives, tiles)


def _head(
    records: dict[str, Any], title: str, gives: str, tiles: Sequence[tuple[str, str]], below_verdict: str = ""
) -> str:
    """Return the top of a report: title, verdict, evaluated rows, and tiles with values and descriptions."""
    evaluation = records["evaluation"]
    rows = "test rows" if records["set_apart"] else "rows"
    tiles = [(f"{evaluation['n_rows']:,}", f"{rows} of {report.escape(evaluation['source'])}"), *tiles]
    cards = "".join(f'<div class="tile"><b>{value}</b><span>{text}</span></div>' for value, text in tiles)
    return f"""<h1>{title}</h1>
{_verdict_box(records, below_verdict)}
<p class="lead">A model trained on <code>{report.escape(records["source"])}</code> that {gives}. Evaluated on rows of
<code>{report.escape(evaluation["source"])}</code>{_where_measured(records)}.</p>
<div class="tiles">{cards}</div>"""


def _where_measured(records: dict[str, Any]) -> str:
    """Describe the evaluated rows."""
    split = records["metrics"].get("split") or {}
    if not records["set_apart"]:
        return "; the model has seen those among them that it was trained on"
    if _are_last(records):
        return f", the last by <i>{report.escape(split['column'])}</i> (since {report.escape(split['since'])})"
    groups = f", in whole groups of <i>{report.escape(split['column'])}</i>" if split.get("by") == "group" else ""
    return f" that were not used for training{groups}"


def _are_last(records: dict[str, Any]) -> bool:
    split = records["metrics"].get("split") or {}
    return bool(records["set_apart"] and split.get("by") == "time" and "since" in split)


def _verdict_box(records: dict[str, Any], more: str) -> str:
    """Return the verdict, with a sentence below it."""
    verdict = verdict_on(records)
    if not verdict.reasons:
        text = f"<p><b>Verdict: {verdict.word}.</b> {report.escape(verdict.evidence.capitalize())}.</p>"
    else:
        text = f"<p><b>Verdict: {verdict.word}</b>, because</p>{_items(verdict.reasons)}"
    below = f"<p>{report.escape(more)}</p>" if more else ""
    return f'<div class="verdict {verdict.word}">{text}{below}</div>'


def _items(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{report.escape(line)}</li>' for line in lines)}</ul>"


# ---------------------------------------------------------------------------- predictions


def _predictions(records: dict[str, Any], targets: list[str]) -> str:
    figures = [
        report.image(
            predictions_figure(records["evaluation"]["answers"], place),
            f"Predictions against true values for {name}",
            f"<i>{report.escape(name)}</i>: predictions against true values; darker predictions are more probable. "
            "Orange rings mark the nearest prediction of each row.",
        )
        for place, name in enumerate(targets)
    ]
    parts = report.side_by_side(figures) if len(figures) > 1 else figures[0]
    return f"<h2>Predictions against true values</h2>\n{parts}"


def _by_number(records: dict[str, Any]) -> str:
    found = records["evaluation"]["by_number"]
    floor = ""
    if found["floor"] and any(value is not None for value in found["floor"]):
        floor = (
            " The dashed line is the lowest possible distortion if the predicted density is correct (its "
            "rate-distortion bound): points far above it indicate an overconfident model."
        )
    caption = (
        "Distortion (mean squared distance to the nearest prediction, in variances of the target) if only the best n "
        f"predictions of each row are kept. The dotted line is the mean.{floor}"
    )
    plot = values_figure(found, records["evaluation"]["measures"]["mean_distortion"])
    figure = report.image(plot, "Distortion by number of predictions", caption)
    return f"<h2>Distortion by number of predictions</h2>\n{figure}"


def _calibration(found: dict[str, Any], hit: str, words: str, margin: float = 0.0) -> str:
    caption = (
        f"Fraction of {words}, by predicted probability. On the line, the probabilities are correct; the mean "
        f"difference is {100 * found['error']:.1f} points."
    )
    figure = calibration_figure(found["given"], found[hit], found["count"], margin=margin)
    title = "Calibration of the probabilities"
    return f"<h2>{title}</h2>\n{report.image(figure, title, caption)}"


def _number_coverage(records: dict[str, Any], targets: list[str]) -> str:
    rows = []
    for entry in records["evaluation"]["coverage"]:
        cells = [report.percent(entry["level"])]
        for covered, width in zip(entry["covered"], entry["width"], strict=True):
            cells += [report.percent(covered, 1), "∞" if width is None else report.number(width)]
        rows.append([*cells, report.percent(entry["pieces"])])
    header = ["nominal"]
    for name in targets:
        of = f" ({name})" if len(targets) > 1 else ""
        header += [f"covered{of}", f"median width{of}"]
    table = report.table([*header, "several pieces"], rows, identity="coverage")
    note = '<p class="note">The sets are calibrated on rows that are used for nothing else.</p>'
    return f"<h2>Coverage of the prediction sets</h2>\n{table}{note}"


def _guesses(records: dict[str, Any]) -> str:
    figure = report.image(
        top_figure(records["evaluation"]["top"]),
        "Coverage by number of guesses",
        "Fraction of rows whose class is among the first guesses, and its expected value (dashed).",
    )
    rows = [
        [report.percent(entry["level"]), report.percent(entry["covered"], 1), report.number(entry["classes"])]
        for entry in records["evaluation"]["coverage"]
    ]
    sets = report.table(["nominal", "covered", "classes"], rows, identity="sets")
    note = '<p class="note">The smallest sets of classes with a given probability: coverage and mean size.</p>'
    return "<h2>Coverage by number of guesses</h2>\n" + report.side_by_side([figure, sets + note])


def _confusion(records: dict[str, Any]) -> str:
    names, counts = (records["evaluation"]["confusion"][key] for key in ("names", "counts"))
    rows = []
    for place, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = sum(row)
        right = report.percent(row[place] / total) if total and name != "others" else ""
        rows.append([name, *(f"{count:,}" if count else "" for count in row), right])
    table = report.table(["truth", *names, "right"], rows, identity="confusion")
    return f"<h2>Confusion matrix</h2>\n{table}"


# ---------------------------------------------------------------------------- rows


def _over_time(records: dict[str, Any], targets: Sequence[str]) -> str:
    """Return a section on the error over time; empty without a date column."""
    found = records["evaluation"].get("over_time")
    if not found:
        return ""
    later = "They are later than all training rows. " if _are_last(records) else ""
    figures = [
        report.image(
            over_time_figure(found, [errors[place] for errors in found["errors"]]),
            f"Error over time for {name}",
            f"<i>{report.escape(name)}</i>: {report.escape(found['measure'])} of the evaluated rows in parts of equal "
            f"size, in the order of <i>{report.escape(found['column'])}</i>. {later}An error that grows with time "
            "means that the model should be fitted again.",
        )
        for place, name in enumerate(targets)
    ]
    return "<h2>Error over time</h2>\n" + "\n".join(figures)


def _ambiguous(records: dict[str, Any], predictions: Callable[[dict[str, Any]], str]) -> str:
    """Return a section on the most ambiguous rows: their cells, and their predictions formatted by `predictions`."""
    parts = ["<h2>The most ambiguous rows</h2>"]
    for row in records["evaluation"]["ambiguous"]:
        cells = " ".join(
            f"<span>{report.escape(name)} <b>{report.escape(value) if value else '(missing)'}</b></span>"
            for name, value in row["cells"][:_N_CELLS]
        )
        n_more = len(row["cells"]) - _N_CELLS
        more = f" <span>and {n_more} more</span>" if n_more > 0 else ""
        head = f'<h3>Row {row["row"]:,}</h3><div class="cells">{cells}{more}</div>'
        parts.append(f'<div class="row">{head}{predictions(row)}</div>')
    return "\n".join(parts)


def _values_of(row: dict[str, Any], targets: list[dict[str, Any]]) -> str:
    """Return the predictions for a row as bars, and its true value, for each target."""
    lines = []
    for place, target in enumerate(targets):
        values = [report.number(values[place], target["std"]) for values in row["hypotheses"]]
        truth = report.number(row["truth"][place], target["std"])
        name = f"{target['name']}: " if len(targets) > 1 else ""
        lines.append(_bars(values, row["probabilities"], truth, name))
    return "".join(lines)


def _guesses_of(row: dict[str, Any]) -> str:
    """Return the guesses for a row as bars, and its true class."""
    return _bars(row["guesses"], row["probabilities"], row["truth"])


def _bars(values: Sequence[str], probabilities: Sequence[float], truth: str, name: str = "") -> str:
    bars = "".join(
        f'<div class="share"><span>{report.escape(value)}</span>'
        f'<i style="width: {100 * float(probability):.1f}%"></i><b>{report.percent(probability)}</b></div>'
        for value, probability in zip(values, probabilities, strict=True)
    )
    return f'{bars}<div class="cells">{report.escape(name)}truth <b>{report.escape(truth)}</b></div>'


# ---------------------------------------------------------------------------- model and data


def _members(records: dict[str, Any]) -> str:
    """Return a section on the members of a blend and their weights; empty for networks trained with a rule."""
    weights = records.get("member_weights")
    if not weights:
        return ""
    rows = [[name, report.percent(weight, 1), _MEMBERS.get(name, "")] for name, weight in weights.items()]
    note = '<p class="note">The density of a row is a blend of these members, weighted on held-out rows.</p>'
    return "<h2>Members of the model</h2>\n" + note + report.table(["member", "weight", ""], rows, identity="members")


def _curves(records: dict[str, Any]) -> tuple[str, str]:
    """Return the descriptions of the validation curve and of the training curve of a regressor."""
    if not records.get("member_weights"):
        return "distortion on validation rows", "Training loss (gray, scores included)"
    score = "negative log-likelihood plus three times the CRPS"
    return "on held-out rows, for early stopping", f"Score of one of the networks, {score}, on its training rows (gray)"


def _training(records: dict[str, Any], validation: str, training: str) -> str:
    """Return a section with the training curves, and the temperature if there is one."""
    found, metrics = records["training"], records["metrics"]
    title, caption, kept = "Training", "", found["kept_epoch"]
    if found["temperature"] is not None:
        title = "Training and temperature"
        caption = "Temperature (green, right axis): hypotheses move together first, and separate as it falls. "
    caption += f"{training} and {validation} (blue). "
    caption += f"The vertical line is epoch {kept + 1}, which was kept." if kept >= 0 else "The last epoch was kept."
    seconds = metrics.get("seconds", {}).get("training")
    spent = f"{report.escape(metrics['epochs'])} epochs over {metrics['rows']['learned_from']:,} rows"
    spent += f" in {seconds:.1f} s" if seconds else ""
    note = f'<p class="note">{spent}, {report.escape(metrics["inputs"])} inputs.</p>'
    return f"<h2>{title}</h2>\n" + report.image(training_figure(found), "Training curves", caption) + note


def _number_data(records: dict[str, Any]) -> str:
    targets = []
    for target in records["evaluation"]["targets"]:
        std = target["std"]
        mean, *numbers = (report.number(target[key], std) for key in ("mean", "min", "low", "median", "high", "max"))
        bars = report.Html(small_bars(target["histogram"]["counts"]))
        targets.append([target["name"], bars, mean, report.number(std), *numbers])
    return _data(records, ["target", "", "mean", "std", "min", "5 %", "median", "95 %", "max"], targets)


def _class_data(records: dict[str, Any], target: str) -> str:
    evaluation = records["evaluation"]
    pairs = sorted(zip(evaluation["frequencies"], evaluation["classes"], strict=True), key=lambda pair: -pair[0])
    listed = ", ".join(f"{report.escape(name)} {report.percent(frequency)}" for frequency, name in pairs[:20])
    more = f" and {len(pairs) - 20} more" if len(pairs) > 20 else ""
    bars = report.Html(small_bars([frequency for frequency, _ in pairs]))
    return _data(
        records, ["target", "", "classes", "frequencies"], [[target, bars, len(pairs), report.Html(listed + more)]]
    )


def _data(records: dict[str, Any], header: list[str], targets: list[list[Any]]) -> str:
    """Return a section on the targets of the evaluated rows, and the columns of the training rows with decisions."""
    measured = f"{records['evaluation']['n_rows']:,} evaluated rows"
    section = f'<h2>The data</h2>\n<p class="note">Targets: {measured}. Columns: training rows.</p>\n'
    section += report.table(header, targets, identity="targets")
    if rows := [_column(column) for column in records["columns"]]:
        section += "<p></p>" + report.table(["column", "", "kind", "missing", "values"], rows, identity="columns")
    for key, title in (("warnings", "Suspicious columns"), ("decisions", "Decisions on the table")):
        if records.get(key):
            section += f"<h3>{title}</h3>\n{_items(records[key])}\n"
    return section


def _column(column: dict[str, Any]) -> list[str]:
    """Return the table row for a column: name, distribution, kind, missing fraction, and values."""
    if column["kind"] == "category":
        bars = small_bars([frequency for _, frequency in column["common"]])
        common = ", ".join(f"{report.escape(name)} {report.percent(value)}" for name, value in column["common"][:5])
        others = " and others" if column.get("is_open") else ""
        text = f"{report.escape(column['n_categories'])}{others}: {common}"
    else:
        bars = small_bars(column["histogram"]["counts"]) if "histogram" in column else ""
        text = _range(column) if "histogram" in column else "no values"
    missing = report.percent(column["missing"], 1) if column["missing"] else ""
    return [column["name"], report.Html(bars), column["kind"], missing, report.Html(text)]


def _range(column: dict[str, Any]) -> str:
    if column["kind"] == "date":
        low, middle, high = (report.escape(_day(column[key])) for key in ("min", "median", "max"))
        return f"{middle} (between {low} and {high})"
    spread = column["high"] - column["low"]
    low, middle, high = (report.number(column[key], spread) for key in ("low", "median", "high"))
    return f"{middle} (90 % between {low} and {high})"


def _day(days: float) -> str:
    """Return the date of a number of days since 1970, or the plain number if it is out of range."""
    try:
        return str(datetime.date(1970, 1, 1) + datetime.timedelta(days=math.floor(days)))
    except OverflowError:
        return f"{days:g} days"
