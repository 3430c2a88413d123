"""The page about a model of a table, from its records: how far to trust it, and which rows are ambiguous."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchmcl._files import write_atomically
from torchmcl._pages.numbers import number, percent
from torchmcl._pages.page import Html, escape, image, page, side_by_side, table
from torchmcl._reading import as_written
from torchmcl_tables.reports.table_columns import columns_section
from torchmcl_tables.reports.table_figures import (
    answers_figure,
    calibration_figure,
    coverage_figure,
    line_of_answers,
    number_figure,
    over_time_figure,
    small_bars,
    training_figure,
)
from torchmcl_tables.reports.verdict import Verdict, forks, table_verdict

__all__ = ["TABLE_STYLE", "over_time_section", "training_section", "verdict_box", "where_measured", "write_table_page"]

TABLE_STYLE = """
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.tile { background: var(--wash); border-radius: 8px; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .9rem; }
figure { max-width: 44rem; }
.verdict { border-left: 5px solid #009e73; background: var(--wash); border-radius: 6px; padding: .7rem 1rem;
  margin: 1rem 0; max-width: 46rem; overflow-wrap: anywhere; } .verdict.careful { border-color: #d55e00; }
.verdict p, .verdict ul { margin: .2rem 0; }
.row { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: .8rem 0; }
.row h3 { margin: 0 0 .3rem; font-size: 1rem; }
.cells { color: var(--soft); font-size: .88rem; overflow-wrap: anywhere; } .cells b { color: var(--ink); }
.cells span { display: inline-block; margin-right: 1rem; max-width: 100%; }
svg { display: block; width: 100%; height: auto; } svg.bars { width: 7.5rem; height: 1.7rem; fill: var(--accent); }
.line { max-width: 40rem; } .ends { display: flex; justify-content: space-between; color: var(--soft);
  font-size: .82rem; padding: 0 5%; font-variant-numeric: tabular-nums; }
#members td:last-child { text-align: left; white-space: normal; color: var(--soft); }
#targets td:first-child, #columns td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 7rem;
  max-width: 20rem; }
#columns td:last-child { text-align: left; white-space: normal; min-width: 12rem; max-width: 26rem;
  overflow-wrap: anywhere; }
h1, p, figcaption { overflow-wrap: anywhere; }
"""


# What the members of a blend are.
_MEMBERS = {
    "networks": "smooth in all columns",
    "networks with bins": "can bend between 32 bins of each column",
    "forest": "of trees, which can jump",
    "background": "the same for every row: what is left when nothing is known",
}


def write_table_page(records: dict[str, Any], path: Path) -> Path:
    """Write the page of records as `torchmcl_tables.model.table_records` returns them; return its path.

    Raises:
        ValueError: if the records are something else.
        OSError: if it cannot be written.
    """
    with as_written("torchmcl report", "model folder", "`torchmcl fit`"):
        content = table_page(records)
    write_atomically(path, content)
    return path


def table_page(records: dict[str, Any]) -> str:
    """Return the page."""
    targets = [target["name"] for target in records["evaluation"]["targets"]]
    join = side_by_side if len(targets) == 1 else "\n".join
    parts = [
        _head(records, targets),
        join([_answers(records, targets), _bynumber(records)]),
        _trust(records),
        _coverage(records, targets),
        over_time_section(records, targets),
        _ambiguous(records),
        _members(records),
        _training(records),
        _data(records),
    ]
    title = f"{' and '.join(targets)}: several answers"
    return page(title, "\n".join(parts), command="torchmcl report", style=TABLE_STYLE)


def _head(records: dict[str, Any], targets: list[str]) -> str:
    found, n = records["evaluation"], int(records["parameters"]["n_hypotheses"])
    measures = found["measures"]
    rows = "rows set apart before training" if records["set_apart"] else "rows"
    tiles = [(f"{found['n_rows']:,}", f"{rows} of {escape(found['source'])}")]
    nine = next((entry for entry in found["coverage"] if entry["level"] == 0.9), None)
    for place, name in enumerate(targets):
        of = f" ({escape(name)})" if len(targets) > 1 else ""
        same, nearest = measures.get("constant_rmse"), measures.get("constant_nearest_rmse")
        without = "" if same is None else f"; {number(same[place])} with the mean of all rows"
        tiles.append((number(measures["rmse"][place]), f"error of the mean answer{of}{without}"))
        without = "" if nearest is None else f"; {number(nearest)} with the same {n} answers for every row"
        tiles.append((number(measures["nearest_rmse"][place]), f"error of the nearest of {n} answers{of}{without}"))
        if nine is not None:
            tiles.append((percent(nine["covered"][place]), f"of the truth lies in the 90 % sets{of}"))
    cards = "".join(f'<div class="tile"><b>{value}</b><span>{text}</span></div>' for value, text in tiles)
    what = " and ".join(f"<i>{escape(name)}</i>" for name in targets)
    return f"""<h1>{n} answers for {what}</h1>
{verdict_box(table_verdict(records), forks(records))}
<p class="lead">A model of <code>{escape(records["source"])}</code> that gives {n} plausible outcomes for each row, each
with a probability. Measured here on rows of <code>{escape(found["source"])}</code>{where_measured(records)}.</p>
<div class="tiles">{cards}</div>
<p class="note">Errors are root mean squares, in the units of the target. {_gain(measures, n)}</p>"""


def where_measured(records: dict[str, Any]) -> str:
    """Return which rows of the table were measured."""
    split = records["metrics"].get("split") or {}
    if not records["set_apart"]:
        return ""
    if _are_last(records):
        return f", the last by <i>{escape(split['column'])}</i> (since {escape(split['since'])})"
    groups = f", in whole groups of <i>{escape(split['column'])}</i>" if split.get("by") == "group" else ""
    return f" that were set apart before the training{groups}"


def verdict_box(verdict: Verdict, more: str = "") -> str:
    """Return the verdict for the top of a page, with a sentence below it."""
    if not verdict.reasons:
        said = f"<p><b>Verdict: {verdict.word}.</b> {escape(verdict.evidence.capitalize())}.</p>"
    else:
        items = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
        said = f"<p><b>Verdict: {verdict.word}</b>, because</p><ul>{items}</ul>"
    below = f"<p>{escape(more)}</p>" if more else ""
    return f'<div class="verdict {verdict.word}">{said}{below}</div>'


def _gain(measures: dict[str, Any], n: int) -> str:
    if measures["mean_distortion"] <= 0:
        return ""
    share = f"{100 * (1 - measures['distortion'] / measures['mean_distortion']):.3g} %"
    return f"The nearest of {n} answers takes away {share} of the squared error of the single best guess, the mean."


def _answers(records: dict[str, Any], targets: list[str]) -> str:
    found = records["evaluation"]["answers"]
    figures = [
        image(
            answers_figure(found, place),
            f"Answers against the truth for {name}",
            f"<i>{escape(name)}</i>: every answer against the truth, the darker the more probable; orange rings "
            "mark the nearest answer of each row.",
        )
        for place, name in enumerate(targets)
    ]
    return "<h2>Answers against the truth</h2>\n" + (side_by_side(figures) if len(figures) > 1 else figures[0])


def _bynumber(records: dict[str, Any]) -> str:
    found = records["evaluation"]["by_number"]
    floor = (
        "The dashed line is the least distortion of any n answers that the model itself expects (the rate-distortion "
        "bound of its density). Points below it mean that the model is less sure than it could be, points far above it "
        "that it is too sure."
        if found["floor"] and any(value is not None for value in found["floor"])
        else "The distortion that the model itself expects is computed for a single target only."
    )
    caption = (
        "Distortion (mean squared distance to the nearest answer, in variances of the target) when only n answers of "
        f"each row are kept, those that best stand for all. The dotted line is the mean answer. {floor}"
    )
    figure = number_figure(found, records["evaluation"]["measures"]["mean_distortion"])
    picture = image(figure, "Distortion by the number of answers", caption)
    return "<h2>How many answers are worth having</h2>\n" + picture


def _trust(records: dict[str, Any]) -> str:
    found = records["evaluation"]
    usage, calibration = found["usage"], found["calibration"]
    left, right = calibration_figure(usage, calibration)
    idle = sum(wins == 0 for wins in usage["wins"])
    used = "All answers are used." if not idle else f"{idle} of {len(usage['wins'])} answers are never the nearest."
    first = image(
        left,
        "Usage",
        "How often each answer of a row, the most probable first, is the nearest (bars) and its mean probability "
        f"(dots). {used}",
    )
    second = image(
        right,
        "Calibration of the probabilities",
        "Of the answers given with some probability, how many were the nearest? On the line the probabilities mean "
        f"what they say; on average they are off by {100 * calibration['error']:.1f} points.",
    )
    return "<h2>Can the probabilities be trusted?</h2>\n" + side_by_side([first, second])


def _coverage(records: dict[str, Any], targets: list[str]) -> str:
    found = records["evaluation"]["coverage"]
    picture = image(
        coverage_figure(found, len(targets)),
        "Coverage of the sets",
        "Share of the truth inside the sets, against the share that was promised; chance explains what lies in the "
        f"band, for {found[0]['n_rows']:,} rows. Outside of it the verdict is careful.",
    )
    rows = []
    for entry in found:
        cells = [percent(entry["level"])]
        for covered, width in zip(entry["covered"], entry["width"], strict=True):
            cells += [percent(covered, 1), "∞" if width is None else number(width)]
        rows.append([*cells, percent(entry["pieces"])])
    header = ["promised"]
    for name in targets:
        of = f" ({name})" if len(targets) > 1 else ""
        header += [f"held{of}", f"median width{of}"]
    promises = table([*header, "in pieces"], rows, identity="coverage")
    note = f'<p class="note">The sets are calibrated on rows that nothing else has seen. {escape(forks(records))}</p>'
    return "<h2>Do the sets hold what they promise?</h2>\n" + side_by_side([picture, promises + note])


def over_time_section(records: dict[str, Any], targets: Sequence[str]) -> str:
    """Return the error along the time of the rows, nothing where no column dates them."""
    found = records["evaluation"].get("over_time")
    if not found:
        return ""
    split = records["metrics"].get("split") or {}
    apart = "They come after all rows that it learned from. " if _are_last(records) else ""
    pictures = [
        image(
            over_time_figure(found, [errors[place] for errors in found["errors"]], found["measure"]),
            f"Error over time for {name}",
            f"<i>{escape(name)}</i>: {escape(found['measure'])} of the measured rows in parts of equal size, in the "
            f"order of <i>{escape(found['column'])}</i>. {apart}An error that grows with time means that the model "
            "grows old.",
        )
        for place, name in enumerate(targets)
    ]
    since = f" (since {escape(split['since'])})" if _are_last(records) else ""
    return f"<h2>Error over time{since}</h2>\n" + "\n".join(pictures)


def _are_last(records: dict[str, Any]) -> bool:
    split = records["metrics"].get("split") or {}
    return bool(records["set_apart"] and split.get("by") == "time" and "since" in split)


def _ambiguous(records: dict[str, Any]) -> str:
    parts = [
        "<h2>The most ambiguous rows</h2>",
        '<p class="note">The rows whose answers lie furthest apart: the least certain ones, whether they fork or not. '
        "Discs are answers, their area the probability; the orange line is the truth.</p>",
    ]
    for row in records["evaluation"]["ambiguous"]:
        cells = " ".join(
            f"<span>{escape(name)} <b>{escape(value) if value else '(missing)'}</b></span>"
            for name, value in row["cells"][:12]
        )
        more = f" <span>and {len(row['cells']) - 12} more</span>" if len(row["cells"]) > 12 else ""
        lines = []
        for place, target in enumerate(records["evaluation"]["targets"]):
            own, truth, spread = [v[place] for v in row["hypotheses"]], row["truth"][place], target["std"]
            lines.append(line_of_answers(own, row["probabilities"], truth, (target["low"], target["high"])))
            pairs = zip(own, row["probabilities"], strict=True)
            said = ", ".join(f"{number(value, spread)} ({percent(share)})" for value, share in pairs)
            truth = number(truth, spread)
            lines.append(f'<div class="cells">{escape(target["name"])}: {said}; truth <b>{truth}</b></div>')
        parts.append(
            f'<div class="row"><h3>Row {row["row"]:,}</h3><div class="cells">{cells}{more}</div>{"".join(lines)}</div>'
        )
    return "\n".join(parts)


def _members(records: dict[str, Any]) -> str:
    """Return what answers together, with the share of each; nothing for networks that were trained by a rule."""
    shares = records.get("shares")
    if not shares:
        return ""
    rows = [[name, percent(share, 1), _MEMBERS.get(name, "")] for name, share in shares.items()]
    note = (
        '<p class="note">The density of a row is blended of these, in shares that foresee held-out rows best. The '
        "answers are the points that stand for it best.</p>"
    )
    return "<h2>What answers</h2>\n" + note + table(["member", "share", ""], rows, identity="members")


def _training(records: dict[str, Any]) -> str:
    if not records.get("shares"):
        return training_section(records)
    learned = "Score of one of the networks, negative log-likelihood plus three times the CRPS, on its own rows (grey)"
    return training_section(records, "on held-out rows, which end the training", learned)


def training_section(
    records: dict[str, Any],
    watched: str = "distortion on validation rows",
    learned: str = "Training loss (grey, scores included)",
) -> str:
    """Return how the training went, with the temperature where there is one."""
    found, metrics = records["training"], records["metrics"]
    title, caption, kept = "How it trained", "", found["kept_epoch"]
    if found["temperature"] is not None:
        title, caption = (
            "How it cooled",
            (
                "Temperature of the assignment (green, right axis): while it is high all answers move together, as it "
                "falls they part and each takes its share. "
            ),
        )
    caption += f"{learned} and {watched} (blue). "
    caption += f"The vertical line is epoch {kept + 1}, which was kept." if kept >= 0 else "The last epoch was kept."
    if found["validation"] and 0 <= kept < len(found["loss"]) - 1:
        caption += " The faint epochs after it were discarded: the network began to learn single rows by heart."
    seconds = metrics.get("seconds", {}).get("training")
    spent = f"{escape(metrics['epochs'])} epochs over {metrics['rows']['learned_from']:,} rows"
    note = (
        f'<p class="note">{spent}{f" in {seconds:.1f} s" if seconds else ""}, {escape(metrics["inputs"])} inputs.</p>'
    )
    return f"<h2>{title}</h2>\n" + image(training_figure(found), "The course of the training", caption) + note


def _data(records: dict[str, Any]) -> str:
    targets = []
    for target in records["evaluation"]["targets"]:
        std = target["std"]
        mean, *numbers = (number(target[key], std) for key in ("mean", "min", "low", "median", "high", "max"))
        bars = Html(small_bars(target["histogram"]["counts"]))
        targets.append([target["name"], bars, mean, number(std), *numbers])
    header = ["target", "", "mean", "std", "min", "5 %", "median", "95 %", "max"]
    measured = f"{records['evaluation']['n_rows']:,} measured rows"
    note = f'<p class="note">Of the target in the {measured}; of the columns in the rows learned from.</p>\n'
    return "<h2>The data</h2>\n" + note + table(header, targets, identity="targets") + columns_section(records)
