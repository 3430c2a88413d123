"""HTML report of the UCI study: the paper's tables 1, 2, 4 and 5 from records, beside the published values."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torchmcl.app.report import Html, escape, html_report, image, mean_error, method_color, new_figure, spread_of, table
from torchmcl.io import as_written, read_records, write_atomically
from torchmcl_studies.data.uci import UCI_SETS
from torchmcl_studies.reports.statistics import difference, p_value, save_figure, signed
from torchmcl_studies.uci.methods import METHODS, PublishedCell, published_cells

__all__ = ["Cell", "cells_of", "deviations", "draw_rmse_vs_distortion", "write_uci_page"]

_SCHEDULES = ("amcl-exponential", "amcl-linear")
_EPSILONS = ("relaxed-0.5", "relaxed-0.2", "relaxed-0.1", "relaxed-0.05", "relaxed-annealed")
_TABLES = (
    ("Table 1: distortion", "distortion", ("relaxed-0.1", "mcl", "amcl-exponential")),
    ("Table 2: RMSE", "rmse", ("mc-dropout", "deep-ensemble", "relaxed-0.1", "mcl", "amcl-exponential")),
    ("Table 4: the schedule, RMSE", "rmse", _SCHEDULES),
    ("Table 4: the schedule, distortion", "distortion", _SCHEDULES),
    ("Table 5: epsilon, RMSE", "rmse", _EPSILONS),
    ("Table 5: epsilon, distortion", "distortion", _EPSILONS),
)
_PROTOCOLS = {
    "last": "<b>last</b>: weights after the last epoch; nothing is selected. Unbiased.",
    "validation": "<b>validation</b>: the epoch is selected on a held-out tenth of the training fold. Unbiased, with "
    "less training data.",
    "test-selected": "<b>test-selected</b>: the epoch with the lowest loss <em>on the test fold</em>, as in the "
    "authors' released code. Biased; only for comparison with the published values.",
}
_MARKERS = {"mcl": "s", "relaxed": "o", "amcl": "D"}


class Cell(NamedTuple):
    """Values of one method on one data set under one protocol, by (fold, seed)."""

    values: dict[tuple[int, int], float]

    @property
    def mean(self) -> float:
        """Mean over folds and seeds."""
        return spread_of([*self.values.values()]).mean

    @property
    def std(self) -> float:
        """Standard deviation over folds and seeds."""
        return spread_of([*self.values.values()]).std

    def deviation(self, published: PublishedCell, n_folds: int) -> float | None:
        """Return the difference from the published mean in combined standard errors."""
        if published.std is None:
            return None
        error = math.sqrt(self.std**2 / max(len(self.values), 1) + published.std**2 / n_folds)
        return (self.mean - published.mean) / error if error > 0 else None


def cells_of(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str, str], Cell]:
    """Return the table entries by (set, method, protocol, metric)."""
    values: dict[tuple[str, str, str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    for row in rows:
        for metric in ("distortion", "rmse"):
            if row[metric] is not None:
                key = row["set"], row["method"], row["protocol"], metric
                values[key][row["fold"], row["seed"]] = row[metric]
    return {key: Cell(value) for key, value in values.items()}


def deviations(rows: Iterable[dict[str, Any]], protocol: str = "test-selected") -> list[tuple[str, str, str, float]]:
    """Return (set, method, metric, deviation in combined standard errors) of every published multi-hypothesis entry."""
    published = published_cells()
    entries = []
    for (name, method, used_protocol, metric), cell in cells_of(rows).items():
        key = (name, METHODS[method].published, metric)
        if used_protocol == protocol and key in published and not METHODS[method].single_answer:
            deviation = cell.deviation(published[key], UCI_SETS[name].n_splits)
            if deviation is not None:
                entries.append((name, method, metric, deviation))
    return entries


def write_uci_page(folder: Path) -> Path:
    """Read `records.jsonl` in `folder`, write `index.html` and Figure 6 (PNG, SVG) beside it; return the report's path.

    Raises:
        ValueError: If the records were not written by `torchmcl reproduce uci`.
    """
    rows = read_records("reproduce uci", folder / "records.jsonl")
    target = folder / "index.html"
    with as_written("reproduce uci", "records.jsonl", "`torchmcl reproduce uci`"):
        content = _report(rows)
        save_figure(draw_rmse_vs_distortion(cells_of(rows))[0], folder / "rmse_vs_distortion")
    write_atomically(target, content)
    return target


def _report(rows: list[dict[str, Any]]) -> str:
    cells = cells_of(rows)
    protocols = [name for name in _PROTOCOLS if any(key[2] == name for key in cells)]
    epochs = sorted({row["epochs"] for row in rows})
    seconds = sum(row["seconds"] for row in rows if row["protocol"] != "test-selected")
    body = [
        "<h1>The UCI study</h1>",
        f'<p class="lead">{len(rows):,} results of {len({row["method"] for row in rows})} methods on '
        f"{len({row['set'] for row in rows})} data sets, {escape(epochs[0])} epochs each, {seconds:.0f} s of training. "
        "The values depend on the protocol:</p>",
        "<ul>" + "".join(f"<li>{_PROTOCOLS[name]}</li>" for name in protocols) + "</ul>",
        '<p class="note">Each entry: our mean ± standard deviation over folds; below it the published value and the '
        "difference in combined standard errors (SE). The best entry of a row is bold, the second underlined.</p>",
    ]
    for protocol in protocols:
        body.append(f"<h2>Protocol: {escape(protocol)}</h2>")
        for title, metric, methods in _TABLES:
            body.append(_table(title, metric, methods, protocol, cells))
        body.append(_paired_tests(protocol, cells))
    figure, caption = draw_rmse_vs_distortion(cells)
    body.append("<h2>RMSE and distortion (Figure 6)</h2>" + image(figure, "RMSE and distortion by method", caption))
    body.append(_agreement(rows))
    return html_report(
        "torchmcl: the UCI study", "\n".join(part for part in body if part), command="torchmcl reproduce uci"
    )


def _table(
    title: str, metric: str, methods: tuple[str, ...], protocol: str, cells: dict[tuple[str, str, str, str], Cell]
) -> str:
    published = published_cells()
    present = [m for m in methods if any((name, m, protocol, metric) in cells for name in UCI_SETS)]
    if not present:
        return ""
    with_pbp = metric == "rmse" and "mc-dropout" in methods
    lines = []
    for name in reversed(UCI_SETS):
        row = {m: cells[name, m, protocol, metric] for m in present if (name, m, protocol, metric) in cells}
        if not row:
            continue
        order = sorted(row, key=lambda m: row[m].mean)
        line: list[str] = [name]
        if with_pbp:
            line.append(Html(f'<span class="note">{escape(published[name, "pbp", "rmse"].text)}</span>'))
        for method in present:
            line.append(_cell_text(name, method, metric, row[method], order, published) if method in row else "")
        lines.append(line)
    header = ["set", *["PBP (published)"] * with_pbp, *(METHODS[method].label for method in present)]
    return f"<h3>{escape(title)}</h3>" + table(header, lines, identity=f"{protocol}-{title.split(':')[0]}-{metric}")


def _cell_text(
    name: str,
    method: str,
    metric: str,
    cell: Cell,
    order: list[str],
    published: dict[tuple[str, str, str], PublishedCell],
) -> str:
    text = mean_error(cell.mean, cell.std) if len(cell.values) > 1 else f"{cell.mean:.4g}"
    if method == order[0]:
        text = f"<b>{text}</b>"
    elif method == order[1]:
        text = f"<u>{text}</u>"
    reference = published.get((name, METHODS[method].published, metric))
    if reference is not None:
        deviation = cell.deviation(reference, UCI_SETS[name].n_splits)
        shown = "" if deviation is None else f" ({signed(deviation, 1)} SE)"
        text += f'<br><span class="note">{escape(reference.text)}{shown}</span>'
    return Html(text)


def _paired_tests(protocol: str, cells: dict[tuple[str, str, str, str], Cell]) -> str:
    """Return Wilcoxon signed-rank tests of annealed MCL against the other methods, paired by fold."""
    reference, others, lines = "amcl-exponential", ("mcl", "relaxed-0.1", "amcl-linear"), []
    for name in reversed(UCI_SETS):
        ours = cells.get((name, reference, protocol, "distortion"))
        if ours is None or len(ours.values) < 5:
            continue
        theirs = (cells.get((name, other, protocol, "distortion")) for other in others)
        paired = [None if cell is None else difference(ours.values, cell.values) for cell in theirs]
        lines.append(
            [
                name,
                *(
                    ""
                    if entry is None or entry.p is None
                    else f"{'lower' if entry.median < 0 else 'higher'}, {p_value(entry.p)}"
                    for entry in paired
                ),
            ]
        )
    if not lines:
        return ""
    header = ["set", "aMCL against MCL", "against Relaxed-WTA (0.1)", "against aMCL (linear)"]
    return (
        "<h3>Paired tests on distortion</h3>"
        + table(header, lines)
        + '<p class="note">Wilcoxon signed-rank test over folds; "lower" means that exponential aMCL has the lower '
        "median difference.</p>"
    )


def draw_rmse_vs_distortion(cells: dict[tuple[str, str, str, str], Cell]) -> tuple[Any, str]:
    """Draw RMSE and distortion on year and protein, or on the largest set, by protocol; return figure and caption."""
    names = [name for name in reversed(UCI_SETS) if any(key[0] == name for key in cells)]
    names = [name for name in names if name in ("year", "protein")] or names[:1]
    protocols = [name for name in _PROTOCOLS if any(key[2] == name for key in cells)]
    figure = new_figure(4.6 * len(protocols), 4.4 * len(names), layout="tight")
    axes = figure.subplots(len(names), len(protocols), squeeze=False).flat
    better: list[str] = []
    for axis, (name, protocol) in zip(axes, itertools.product(names, protocols), strict=True):
        points: dict[str, tuple[float, float]] = {}
        for method, entry in METHODS.items():
            rmse, distortion = (cells.get((name, method, protocol, metric)) for metric in ("rmse", "distortion"))
            if rmse is None or distortion is None:
                continue
            points[method] = point = (rmse.mean, distortion.mean)
            style = {"color": method_color(method), "fmt": _MARKERS[method.split("-")[0]], "ms": 6}
            style |= {"mfc": "white"} if method in ("amcl-linear", "relaxed-annealed") else {}
            axis.errorbar(*point, xerr=rmse.std, yerr=distortion.std, label=entry.label, **style)
            if method.startswith("relaxed-0"):
                label = entry.label.removeprefix("Relaxed-WTA ")
                axis.annotate(label, point, xytext=(6, 4), textcoords="offset points", fontsize=8)
        relaxed = [point for method, point in points.items() if method.startswith("relaxed-0")]
        axis.plot(*zip(*relaxed, strict=True), color=method_color("relaxed"), lw=1)
        axis.set(xlabel="RMSE", ylabel="distortion", title=f"{name}, {protocol}")
        axis.margins(x=0.25)
        handles, labels = axis.get_legend_handles_labels()
        shown = [i for i, label in enumerate(labels) if "ε =" not in label]
        place = {"loc": "upper right", "bbox_to_anchor": (1, 0.85), "frameon": False, "fontsize": 8}
        axis.legend([handles[i] for i in shown], [labels[i] for i in shown], **place)
        ours = points.get("amcl-exponential", (math.inf, math.inf))
        n_better = sum(point[0] < ours[0] and point[1] < ours[1] for point in relaxed)
        better.append(f"{n_better} ({name}, {protocol})")
    return figure, (
        "RMSE and distortion (Figure 6), with standard deviations over folds. Orange: MCL; pink: Relaxed-WTA, with a "
        "line from the smallest to the largest epsilon; blue: aMCL. Lower left is better. Values of epsilon that are "
        f"better than exponential aMCL in both: {', '.join(better)}."
    )


def _agreement(rows: list[dict[str, Any]]) -> str:
    entries = deviations(rows)
    if not entries:
        return ""
    ours = [entry for entry in entries if entry[1] != "mcl"]
    within = sum(abs(entry[3]) <= 2 for entry in ours)
    far = sorted((entry for entry in entries if abs(entry[3]) > 2), key=lambda entry: -abs(entry[3]))
    lines = [[name, METHODS[method].label, metric, signed(d, 1)] for name, method, metric, d in far]
    return (
        "<h2>Agreement with the published tables</h2>"
        f"<p>Under <b>test-selected</b>, {within} of {len(ours)} published aMCL and Relaxed-WTA values lie within two "
        "combined standard errors of ours. The following values of these methods and of MCL do not:</p>"
        + table(["set", "method", "metric", "deviation in SE"], lines, identity="deviations")
        + '<p class="note">A published standard deviation of 0.00 is rounded, so its standard error is too small.</p>'
    )
