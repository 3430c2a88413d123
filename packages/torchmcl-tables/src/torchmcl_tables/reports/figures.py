"""The pictures of the report page. They contain no external text: names are escaped in the page."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchmcl.app import report
from torchmcl_tables.verdict import chance_band

_BLUE, _ORANGE, _GREEN, *_ = report.PALETTE


def answers_figure(found: dict[str, Any], place: int) -> Any:
    """Draw every answer against the truth, for one target."""
    figure, axis = axes()
    truth = [row[place] for row in found["truth"]]
    points, nearest = [], []
    for goal, hypotheses, shares in zip(truth, found["hypotheses"], found["probabilities"], strict=True):
        values = [hypothesis[place] for hypothesis in hypotheses]
        points += [(goal, value, share) for value, share in zip(values, shares, strict=True)]
        nearest.append(min((abs(value - goal), value) for value in values)[1])
    goals, answers, shares = zip(*points, strict=True)
    top = max(*shares, 1e-9)
    axis.scatter(goals, answers, s=10, c=_BLUE, alpha=[0.06 + 0.74 * share / top for share in shares], linewidths=0)
    axis.scatter(truth, nearest, s=18, facecolors="none", edgecolors=_ORANGE, linewidths=0.6, alpha=0.7)
    low, high = min(truth), max(truth)
    axis.plot([low, high], [low, high], color=report.INK, lw=0.8)
    # Outlying answers must not determine the limits of the axis.
    values = sorted(answers)
    inner = values[len(values) // 200], values[-1 - len(values) // 200]
    bottom, top = min(low, inner[0]), max(high, inner[1])
    pad = 0.05 * (top - bottom) or 1.0
    axis.set(xlabel="truth", ylabel="answers", ylim=(bottom - pad, top + pad))
    if 1e4 <= max(abs(bottom), abs(top)) < 1e9 and min(high - low, top - bottom) > 100:
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def number_figure(found: dict[str, Any], mean: float) -> Any:
    """Draw the distortion by number of answers, with the model's own lower bound if known."""
    figure, axis = axes()
    axis.plot(found["numbers"], found["distortion"], color=_BLUE, marker="o", lw=2, label="n of the answers")
    axis.axhline(mean, color=report.GRAY, ls=":", lw=1.5, label="the mean answer")
    if min(found["distortion"]) > 0:
        axis.set_yscale("log")
    if found["floor"]:
        _curve(axis, found["numbers"], found["floor"], report.INK, 1.2, ls="--", label="expected at best")
    axis.set(xlabel="number of answers", ylabel="distortion")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=9)
    return figure


def usage_figure(usage: dict[str, Any]) -> Any:
    """Draw how often each answer is the nearest, and its mean probability."""
    figure, axis = axes()
    numbers = range(1, len(usage["wins"]) + 1)
    axis.bar(numbers, usage["wins"], color=_BLUE, alpha=0.75, label="is the nearest")
    axis.plot(numbers, usage["probability"], "o", color=_ORANGE, label="mean probability")
    axis.set(xlabel="answer", ylabel="share of rows", ylim=(0, None))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=9)
    return figure


def calibration_figure(
    given: Sequence[float], shares: Sequence[float], counts: Sequence[int], words: str, margin: float = 0.0
) -> Any:
    """Draw predicted probabilities against observed frequencies, with two standard errors."""
    figure, axis = axes()
    axis.plot([0, 1], [0, 1], color=report.INK, lw=0.8)
    sizes = [20 + 180 * count / max(counts) for count in counts]
    pairs = zip(shares, counts, strict=True)
    errors = [2 * (max(share * (1 - share), 1e-9) / count) ** 0.5 for share, count in pairs]
    axis.errorbar(given, shares, yerr=errors, fmt="none", ecolor=report.GRAY, lw=1)
    axis.scatter(given, shares, s=sizes, color=_BLUE, alpha=0.8, linewidths=0, zorder=3)
    axis.set(xlabel="probability given", ylabel=f"share that was {words}")
    axis.set(xlim=(0, 1 + margin), ylim=(-margin, 1 + margin))
    return figure


def coverage_figure(found: Sequence[dict[str, Any]], n_targets: int) -> Any:
    """Draw observed against nominal coverage."""
    figure, axis = axes()
    covered = [entry["covered"][:n_targets] for entry in found]
    draw_coverage(axis, [entry["level"] for entry in found], covered, [entry["n_rows"] for entry in found])
    return figure


def draw_coverage(axis: Any, levels: Sequence[float], covered: Any, n_rows: Sequence[int]) -> list[Any]:
    """Draw observed coverage [levels, outputs] against nominal coverage, with the range consistent with chance.

    Returns:
        The line of each output.
    """
    bands = [chance_band(level, count) for level, count in zip(levels, n_rows, strict=True)]
    low, high = zip(*bands, strict=True)
    axis.fill_between(levels, low, high, color=report.GRAY, alpha=0.25, linewidth=0)
    axis.plot(levels, levels, color=report.INK, lw=0.8)
    axis.set(xlabel="promised", ylabel="held")
    colors = itertools.cycle(report.PALETTE)
    return [axis.plot(levels, held, marker="o", lw=1.6, color=next(colors))[0] for held in np.asarray(covered).T]


def over_time_figure(found: dict[str, Any], errors: Sequence[float], words: str) -> Any:
    """Draw an error over time."""
    figure, axis = axes((8.4, 3.6))
    times = np.array(found["times"])
    if found["dates"]:
        times = np.datetime64("1970-01-01") + (times * 86_400).round().astype("timedelta64[s]")
    axis.plot(times, errors, color=_BLUE, marker="o", lw=1.6)
    axis.set(xlabel="time", ylabel=words, ylim=(0, None))
    axis.tick_params(axis="x", rotation=20)
    return figure


def training_figure(found: dict[str, Any]) -> Any:
    """Draw loss, distortion and temperature by epoch."""
    figure, axis = axes((8.4, 4.2))
    epochs = range(1, len(found["loss"]) + 1)
    known = [value for name in ("loss", "validation") for value in found[name] or () if value is not None]
    # Scores of densities may be negative; distortions never are.
    scale, words = ("log", "loss and distortion") if min(known, default=1.0) > 0 else ("linear", "score")
    n_trained = max((epoch for epoch, value in zip(epochs, found["loss"], strict=True) if value is not None), default=2)
    axis.set(xlabel="epoch", ylabel=words, yscale=scale, xlim=(1, max(n_trained, 2)))
    kept = found["kept_epoch"] + 1 if found["kept_epoch"] >= 0 else len(found["loss"])
    curves = [
        (found[name], *how) for name, *how in (("loss", report.GRAY, 1.2), ("validation", _BLUE, 1.8)) if found[name]
    ]
    for values, color, width in curves:
        _curve(axis, epochs[:kept], values[:kept], color, width)
    axis.set_ylim(axis.get_ylim())  # discarded epochs are drawn faintly, and do not affect the limits
    for values, color, width in curves:
        _curve(axis, epochs[kept - 1 :], values[kept - 1 :], color, width, alpha=0.3)
    if found["kept_epoch"] >= 0:
        axis.axvline(kept, color=report.INK, lw=0.8)
    if found["temperature"]:
        other = axis.twinx()
        other.set(yscale="log")
        _curve(other, epochs, found["temperature"], _GREEN, 1.6)
        other.set_ylabel("temperature", color=_GREEN)
        other.tick_params(axis="y", colors=_GREEN)
        other.spines["top"].set_visible(False)
    return figure


def _curve(
    axis: Any, places: Sequence[int], values: Sequence[float | None], color: str, width: float, **style: Any
) -> None:
    drawable = axis.get_yscale() != "log"
    known = [(x, y) for x, y in zip(places, values, strict=True) if y is not None and (drawable or y > 0)]
    if known:
        axis.plot(*zip(*known, strict=True), color=color, lw=width, **style)


def axes(size: tuple[float, float] = (6.2, 4.4)) -> tuple[Any, Any]:
    """Return a figure and its axes."""
    figure = report.new_figure(*size, layout="tight")
    axis = figure.add_subplot()
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure, axis


def small_bars(counts: Sequence[float]) -> str:
    """Return a small picture of a distribution, as SVG."""
    top = max([*counts, 1e-12])
    width = 120 / max(len(counts), 8)
    bars = "".join(
        f'<rect x="{place * width:.2f}" y="{27 - 26 * count / top:.2f}" width="{max(width - 1, 1):.2f}" '
        f'height="{26 * count / top:.2f}"/>'
        for place, count in enumerate(counts)
    )
    return f'<svg class="bars" viewBox="0 0 120 27" role="img" aria-label="distribution">{bars}</svg>'


def line_of_answers(values: Sequence[float], shares: Sequence[float], truth: float, usual: tuple[float, float]) -> str:
    """Return answers as discs on a line that spans the usual values of the target, as SVG."""
    low, high = min(*values, truth, usual[0]), max(*values, truth, usual[1])
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return 20 + 360 * (value - low) / span

    discs = "".join(
        f'<circle cx="{place(value):.1f}" cy="22" r="{2 + 18 * share**0.5:.1f}" fill="{_BLUE}" fill-opacity="0.45"/>'
        for value, share in zip(values, shares, strict=True)
    )
    at = place(truth)
    ends = "".join(f"<span>{report.escape(report.number(end, span))}</span>" for end in (low, high))
    return (
        f'<div class="line"><svg viewBox="0 0 400 44" role="img" aria-label="answers on a line">'
        f'<line x1="20" x2="380" y1="22" y2="22" stroke="{report.GRAY}" stroke-width="1"/>{discs}'
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="2" y2="42" stroke="{_ORANGE}" stroke-width="2.5"/></svg>'
        f'<div class="ends">{ends}</div></div>'
    )


# Maximum characters of a label and of all labels in a line, and maximum number of classes for numbers in cells.
_LONGEST, _WIDEST, _MOST_NUMBERS = 18, 60, 12


def top_figure(found: dict[str, Any]) -> Any:
    """Draw the share of rows whose class is among the first k guesses."""
    figure, axis = axes()
    axis.plot(found["numbers"], found["covered"], color=_BLUE, marker="o", lw=2, label="holds the truth")
    axis.plot(found["numbers"], found["expected"], color=report.INK, ls="--", lw=1.2, label="promised")
    axis.set(xlabel="number of guesses", ylabel="share of rows", ylim=(0, 1.02))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=9)
    return figure


def confusion_figure(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Any:
    """Draw the confusion matrix as shares of each class (rows)."""
    figure, axis = axes((6.2, 5.6))
    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axis.set(xlabel="guess", ylabel="truth", xticks=range(len(names)), yticks=range(len(names)))
    labels = [_label(name) for name in names]
    turned = sum(map(len, labels)) > _WIDEST
    axis.set_xticklabels(labels, rotation=90 if turned else 0, fontsize=8, parse_math=False)
    axis.set_yticklabels(labels, fontsize=8, parse_math=False)
    if len(names) <= _MOST_NUMBERS:
        for row, of_row in enumerate(shares):
            for column, share in enumerate(of_row):
                color = "white" if share > 0.6 else report.INK
                axis.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=color)
    return figure


def _label(name: str) -> str:
    """Return the name of a class as a label: printable characters, truncated."""
    text = "".join(mark if mark.isprintable() else "?" for mark in name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
