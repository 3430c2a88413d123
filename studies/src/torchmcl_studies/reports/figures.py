"""Figures of the paper, drawn from records, with captions, and an HTML report of all figures."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torchmcl.app.animation import film_player, film_script
from torchmcl.app.report import (
    AMCL,
    GRAY,
    INK,
    MCL,
    SOFT,
    draw_hypotheses,
    escape,
    html_report,
    image,
    method_color,
    new_figure,
)
from torchmcl.errors import bad_value
from torchmcl.io import as_written, read_json, read_text, write_atomically
from torchmcl_studies.reports.statistics import save_figure

__all__ = [
    "Row",
    "Tables",
    "draw_annealed_epsilon",
    "draw_distortion_vs_temperature",
    "draw_figure1",
    "draw_phase_transitions",
    "draw_rate_distortion",
    "film_of_figure1",
    "read_table",
    "write_figure",
    "write_figures_page",
]

Row = dict[str, Any]
Tables = dict[str, list[Row]]
_OWNER = "torchmcl reproduce"


def draw_figure1(tables: Tables, summary: dict[str, Any]) -> Any:
    """Draw hypotheses of the first seed (top), and distortion and unused hypotheses of all seeds (bottom)."""
    methods = _names(tables["results"], "method")
    figure = new_figure(12, 7)
    grid = figure.add_gridspec(2, 6, height_ratios=(1.75, 1), hspace=0.18, wspace=0.9)
    points = [(row["y1"], row["y2"]) for row in tables["points"]]
    for column, method in enumerate(methods):
        axis = figure.add_subplot(grid[0, 2 * column : 2 * column + 2])
        frames = _where(tables["frames"], method=method)
        draw_hypotheses(axis, points, _scored(_where(frames, epoch=max(row["epoch"] for row in frames))))
        axis.set_title(method)
    for column, (name, label) in enumerate((("distortion", "distortion"), ("starved", "unused hypotheses"))):
        axis = figure.add_subplot(grid[1, 3 * column : 3 * column + 3])
        for place, method in enumerate(methods):
            values = [row[name] for row in tables["results"] if row["method"] == method]
            spread = [place + 0.3 * (i / max(len(values) - 1, 1) - 0.5) for i in range(len(values))]
            axis.plot(spread, values, "o", color=method_color(method), alpha=0.8)
            axis.plot([place - 0.25, place + 0.25], [sum(values) / len(values)] * 2, color=INK, lw=1.5)
        axis.set(xticks=range(len(methods)), xticklabels=methods, ylabel=label, xlim=(-0.5, len(methods) - 0.5))
        if name == "distortion":
            axis.set_yscale("log")
        else:
            axis.set_ylim(-2, summary["settings"]["n_hypotheses"])
    return figure


def film_of_figure1(tables: Tables) -> dict[str, Any]:
    """Return the animation of the three training runs, for `torchmcl.app.animation`."""
    frames = tables["frames"]
    epochs = sorted({int(row["epoch"]) for row in frames})
    methods = []
    for method in _names(frames, "method"):
        by_epoch = {epoch: _where(frames, method=method, epoch=epoch) for epoch in epochs}
        methods.append(
            {
                "label": method,
                "frames": [[[r["y1"], r["y2"], r["score"]] for r in by_epoch[epoch]] for epoch in epochs],
                "temperature": [by_epoch[epoch][0]["temperature"] for epoch in epochs],
                "annealed": method == "annealed MCL",
            }
        )
    return {"points": [[r["y1"], r["y2"]] for r in tables["points"]], "epochs": epochs, "methods": methods}


def draw_rate_distortion(tables: Tables, summary: dict[str, Any]) -> Any:
    """Draw R(D), its lower bound, the final points and the trajectory of every training run."""
    figure = new_figure(8, 5.4)
    axis = figure.subplots()
    marks, curve = summary["marks"], tables["curve"]
    distortion = [row["distortion"] for row in curve]
    axis.plot(distortion, [row["rate"] for row in curve], color=INK, lw=2, label="R(D)")
    bound = [max(row["shannon_lower_bound"], 0.0) for row in curve]
    axis.plot(distortion, bound, color=GRAY, lw=1.5, ls="--", label="Shannon lower bound")
    for method in _names(tables["trajectories"], "method"):
        color = method_color(method)
        rows = _where(tables["trajectories"], method=method)
        for x, y in _draw_seeds(axis, rows, "soft_distortion", "rate", (0.7, 0.25), color=color, lw=1, label=method):
            axis.plot(x[0], y[0], "o", color=color, ms=4, mfc="white")
            axis.plot(x[-1], y[-1], "s", color=color, ms=5)
    axis.axhline(marks["highest_rate"], color=GRAY, lw=0.8, ls=":")
    axis.text(marks["max_distortion"], marks["highest_rate"] + 0.1, "log2 n", ha="right", color=SOFT)
    axis.axvline(marks["max_distortion"], color=GRAY, lw=0.8, ls=":")
    axis.text(marks["max_distortion"] * 0.97, 3, "one hypothesis", color=SOFT, rotation=90, ha="right", fontsize=9)
    axis.plot(marks["best_distortion"], marks["highest_rate"], "+", color=INK, ms=14, mew=2.5, zorder=5)
    axis.set(xscale="log", xlabel="distortion D", ylabel="rate R (bits)", ylim=(-0.2, marks["highest_rate"] + 0.6))
    axis.legend(frameon=False, loc="lower left")
    axis.set_title("circle: start of training, square: end", fontsize=10, color=SOFT)
    return figure


def draw_distortion_vs_temperature(tables: Tables, summary: dict[str, Any]) -> Any:
    """Draw the curves and the critical temperatures; right, free hypotheses that are cooled and heated."""
    figure = new_figure(13, 5)
    axis, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    marks, curve = summary["marks"], tables["curve"]
    _draw_seeds(axis, curve, "temperature", "distortion", (0.8, 0.4), color=AMCL, lw=1.4)
    for name, label, style in (
        ("critical", r"$T_0^c$ = {:.2f}", "--"),
        ("local", r"$2\lambda_{{max}}$ = {:.2f}", "-."),
        ("of_one_gaussian", r"$2\sigma^2$ = {:.2f}", ":"),
    ):
        axis.axvline(marks[name], color=INK, lw=1.2, ls=style, label=label.format(marks[name]))
    for direction, color in (("cooling", AMCL), ("heating", MCL)):
        rows = _where(tables["hysteresis"], direction=direction)
        temperatures, distortions = ([row[name] for row in rows] for name in ("temperature", "distortion"))
        right.plot(temperatures, distortions, ".-", color=color, label=direction)
    right.axvspan(marks["local"], marks["critical"], color=GRAY, alpha=0.25)
    right.set(xlabel="temperature", ylabel="soft distortion", title="Free hypotheses at x = 1")
    right.legend(frameon=False, loc="lower right")
    axis.axhline(marks["single_answer"], color=GRAY, lw=0.8)
    axis.text(1.0, marks["single_answer"] * 1.03, "one hypothesis", ha="right", va="bottom", color=SOFT, fontsize=9)
    axis.set(xlabel="temperature (training goes from right to left)", ylabel="distortion", xlim=(-0.02, 1.02))
    axis.set_ylim(0, marks["single_answer"] * 1.15)
    axis.legend(frameon=False, loc="lower right")
    return figure


def draw_phase_transitions(tables: Tables, summary: dict[str, Any]) -> Any:
    """Draw hypotheses at each temperature and input, and the number of distinct hypotheses against temperature."""
    hypotheses, points, counts = tables["hypotheses"], tables["points"], tables["counts"]
    temperatures = sorted({row["temperature"] for row in hypotheses}, reverse=True)
    inputs = sorted({row["x"] for row in hypotheses})
    n_rows, n_columns = len(inputs), len(temperatures)
    figure = new_figure(2.4 * n_columns + 4.4, 2.45 * n_rows)
    grid = figure.add_gridspec(
        n_rows, n_columns + 2, width_ratios=[1] * n_columns + [0.12, 1.6], wspace=0.12, hspace=0.12
    )
    for i, x in enumerate(inputs):
        data = [(row["y1"], row["y2"]) for row in points if row["x"] == x]
        for j, temperature in enumerate(temperatures):
            axis = figure.add_subplot(grid[i, j])
            draw_hypotheses(axis, data, _scored(_where(hypotheses, x=x, temperature=temperature)))
            axis.set(xticks=(), yticks=())
            if i == 0:
                axis.set_title(f"T = {temperature:.3f}")
            if j == 0:
                axis.set_ylabel(f"x = {x:g}")
        axis = figure.add_subplot(grid[i, n_columns + 1])
        _draw_seeds(axis, _where(counts, x=x), "temperature", "n_distinct", (0.8, 0.35), color=AMCL, lw=1.2)
        axis.axvline(summary["marks"][f"critical_temperature_at_{x:g}"], color=INK, lw=1, ls="--")
        axis.set(xscale="log", yscale="log", ylabel="distinct hypotheses", xlim=(min(temperatures) / 1.3, 1.1))
        axis.invert_xaxis()
        axis.yaxis.tick_right()
        axis.yaxis.set_label_position("right")
        axis.set_yticks([1, 3, 10, 49], ["1", "3", "10", "49"])
        axis.minorticks_off()
        if i < n_rows - 1:
            axis.set_xticklabels([])
        else:
            axis.set_xlabel("temperature, falling")
    return figure


def draw_annealed_epsilon(tables: Tables, summary: dict[str, Any]) -> Any:
    """Draw selected frames of the first seed, and the number of hypotheses near the mean for all seeds."""
    from matplotlib import patches

    frames, counts = tables["frames"], tables["counts"]
    points = [(row["y1"], row["y2"]) for row in tables["points"]]
    epochs = sorted({row["epoch"] for row in frames})
    shown = [epochs[round(fraction * (len(epochs) - 1))] for fraction in (0.25, 0.6, 0.9, 1.0)]
    figure = new_figure(15, 2.7)
    grid = figure.add_gridspec(1, len(shown) + 2, width_ratios=[1] * len(shown) + [0.12, 1.5], wspace=0.12)
    # The mean of the three Gaussians.
    middle = (sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points))
    for column, epoch in enumerate(shown):
        axis = figure.add_subplot(grid[0, column])
        rows = _where(frames, epoch=epoch)
        draw_hypotheses(axis, points, _scored(rows))
        axis.add_patch(patches.Circle(middle, summary["marks"]["radius"], fill=False, color=MCL, lw=1, ls="--"))
        axis.set(xticks=(), yticks=())
        axis.set_title(rf"$\varepsilon$ = {rows[0]['epsilon']:.2f}")
    axis = figure.add_subplot(grid[0, len(shown) + 1])
    for method in _names(counts, "method"):
        rows, color = _where(counts, method=method), method_color(method)
        _draw_seeds(axis, rows, "epoch", "in_the_middle", (0.5, 0.5), color=color, lw=1.2, label=method)
    axis.set(xlabel="epoch", ylabel="hypotheses near the mean", ylim=(-1, summary["settings"]["n_hypotheses"] + 2))
    axis.legend(frameon=False, loc="center right", fontsize=9)
    axis.yaxis.tick_right()
    axis.yaxis.set_label_position("right")
    return figure


def _names(rows: list[dict[str, Any]], column: str) -> list[str]:
    """Return the values of a column in the order of their first appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def _where(rows: list[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    """Return the rows with these values in the named columns."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _scored(rows: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    return [(row["y1"], row["y2"], row["score"]) for row in rows]


def _draw_seeds(
    axis: Any, rows: list[dict[str, Any]], x: str, y: str, alphas: tuple[float, float], *, label: str = "", **style: Any
) -> list[tuple[list[float], list[float]]]:
    """Draw a line for each seed, the first with a label and the first alpha; return the points of the lines."""
    lines = []
    for seed in sorted({row["seed"] for row in rows}):
        points = _where(rows, seed=seed)
        lines.append(([row[x] for row in points], [row[y] for row in points]))
        first = seed == 0
        axis.plot(*lines[-1], alpha=alphas[not first], label=label if label and first else None, **style)
    return lines


class _Figure(NamedTuple):
    title: str
    text: str
    draw: Callable[[Tables, dict[str, Any]], Any]
    tables: tuple[str, ...]


_FIGURES = {
    "figure1": _Figure(
        "Figure 1: 49 hypotheses, trained by three methods",
        "Hypotheses of the first seed (blue, darker for higher scores) over the data (green); below, distortion on new "
        "points and the number of hypotheses that are the nearest to none of them, for every seed.",
        draw_figure1,
        ("results", "frames", "points"),
    ),
    "rate-distortion": _Figure(
        "Trajectories in the rate-distortion plane",
        "Each line is a training run on one Gaussian: its expected distortion under its assignment weights, and the "
        "mutual information of hypothesis and target. R(D) is the minimum rate of any assignment (reverse "
        "water-filling), the Shannon lower bound equals it at low distortion, and R(D) = log2(n) at the +.",
        draw_rate_distortion,
        ("trajectories", "curve"),
    ),
    "distortion-vs-temperature": _Figure(
        "Distortion against temperature",
        "Distortion on held-out points while the temperature falls linearly from 1 to 0 (from right to left), for each "
        "seed. Dashed: first critical temperature at x = 1, the largest of all inputs. Dash-dotted: local critical "
        "temperature there, twice the largest variance. Dotted: critical temperature of a single Gaussian. Right: "
        "free hypotheses at x = 1, first cooled, then heated; gray, between the two critical temperatures.",
        draw_distortion_vs_temperature,
        ("curve", "hysteresis"),
    ),
    "phase-transitions": _Figure(
        "Phase transitions at three inputs",
        "Hypotheses at the inputs x = 0.1, 0.6 and 0.9 (rows) at four temperatures of one training run (columns); "
        "right, the number of distinct hypotheses while the temperature falls, with the local critical "
        "temperature (dashed).",
        draw_phase_transitions,
        ("hypotheses", "points", "counts"),
    ),
    "annealed-epsilon": _Figure(
        "Relaxed-WTA with an annealed epsilon",
        "Hypotheses of one training run at falling epsilon, and the number of hypotheses within the circle around the "
        "mean for each seed of both methods.",
        draw_annealed_epsilon,
        ("frames", "counts", "points"),
    ),
}


def read_table(path: Path) -> list[Row]:
    """Return the rows of a CSV file, with numeric values as floats.

    Raises:
        ValueError: If it is not a CSV file.
    """
    text = read_text("read_table", path)
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ValueError(bad_value("read_table", str(path), "be a CSV file", str(error))) from error
    return [{name: _number(cell) for name, cell in row.items()} for row in rows]


def write_figure(name: str, folder: Path) -> Path:
    """Draw the figure whose records are in `folder / name`; write PNG, SVG and `caption.txt` beside them.

    Raises:
        ValueError: If there is no such figure.
        OSError: If its records are missing.
    """
    if name not in _FIGURES:
        raise ValueError(bad_value("write_figure", "name", f"be one of {', '.join(_FIGURES)}", repr(name)))
    target = folder / name / name
    with as_written(_OWNER, str(folder / name), "`torchmcl reproduce`"):
        tables, summary = _records(name, folder)
        figure = _FIGURES[name].draw(tables, summary)
        claims = [
            claim["text"] if claim["holds"] else f"(Not confirmed by this run: {claim['text']})"
            for claim in summary["claims"]
        ]
    save_figure(figure, target)
    caption = " ".join([f"{_FIGURES[name].title}.", _FIGURES[name].text, *claims])
    write_atomically(folder / name / "caption.txt", caption + "\n")
    return target.with_suffix(".png")


def write_figures_page(folder: Path) -> Path:
    """Write `index.html` with every figure whose records are below `folder`, and the animation of Figure 1.

    Raises:
        ValueError: If the records were not written by `torchmcl reproduce`.
    """
    target = folder / "index.html"
    with as_written(_OWNER, str(folder), "`torchmcl reproduce`"):
        content = _report(folder)
    write_atomically(target, content)
    return target


def _report(folder: Path) -> str:
    parts = ["<h1>The figures of annealed multiple choice learning</h1>"]
    script = ""
    for name, entry in _FIGURES.items():
        if not (folder / name / "summary.json").exists():
            continue
        tables, summary = _records(name, folder)
        figure = entry.draw(tables, summary)
        settings = summary["settings"]
        files = ", ".join(f'<a href="{name}/{table}.csv">{table}.csv</a>' for table in entry.tables)
        parts.append(
            f'<h2 id="{name}">{escape(entry.title)}</h2>\n{image(figure, entry.title)}\n'
            f"<p>{escape(entry.text)}</p>\n"
            f"{_claims(summary)}\n"
            f'<p class="note">Preset {escape(settings["preset"])}: {escape(settings["n_epochs"])} epochs of '
            f"{settings['n_points']:,} new points, {escape(settings['n_seeds'])} seeds, {summary['seconds']:.0f} s. "
            f'<a href="{name}/{name}.png">PNG</a>, <a href="{name}/{name}.svg">SVG</a>, {files}.</p>'
        )
        if name == "figure1":
            film = film_of_figure1(tables)
            parts.append("<h3>Animation</h3>" + film_player(len(film["epochs"])))
            script = film_script(film)
    return html_report("torchmcl: the figures", "\n".join(parts), script, command="torchmcl reproduce all")


def _records(name: str, folder: Path) -> tuple[Tables, dict[str, Any]]:
    """Return the tables and the summary of a figure."""
    summary = read_json("write_figure", folder / name / "summary.json")
    return {table: read_table(folder / name / f"{table}.csv") for table in _FIGURES[name].tables}, summary


def _claims(summary: dict[str, Any]) -> str:
    rows = "".join(
        f"<li>{escape(claim['text'])}{'' if claim['holds'] else ' <strong>(not confirmed by this run)</strong>'}</li>"
        for claim in summary["claims"]
    )
    return f'<ul class="claims">{rows}</ul>'


def _number(cell: Any) -> Any:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell
