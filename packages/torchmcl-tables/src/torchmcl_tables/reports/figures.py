"""Figures of the HTML report. They contain no text from tables; names are escaped in the report."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchmcl.app import report

_BLUE, _ORANGE, _GREEN, *_ = report.PALETTE


def predictions_figure(found: dict[str, Any], place: int) -> Any:
    """Plot all predictions of a target against the true values."""
    figure, axis = _axes()
    truth = np.array(found["truth"])[:, place]
    values = np.array(found["hypotheses"])[:, :, place]
    probabilities = np.array(found["probabilities"])
    nearest = np.take_along_axis(values, np.abs(values - truth[:, None]).argmin(axis=1)[:, None], axis=1)
    shades = 0.06 + 0.74 * probabilities / max(probabilities.max(), 1e-9)
    goals = np.broadcast_to(truth[:, None], values.shape)
    axis.scatter(goals.ravel(), values.ravel(), s=10, c=_BLUE, alpha=shades.ravel(), linewidths=0)
    axis.scatter(truth, nearest, s=18, facecolors="none", edgecolors=_ORANGE, linewidths=0.6, alpha=0.7)
    low, high = truth.min(), truth.max()
    axis.plot([low, high], [low, high], color=report.INK, lw=0.8)
    # Outlying predictions must not determine the limits of the axis.
    inner = np.quantile(values, (0.005, 0.995))
    bottom, top = min(low, inner[0]), max(high, inner[1])
    pad = 0.05 * (top - bottom) or 1.0
    axis.set(xlabel="true value", ylabel="predictions", ylim=(bottom - pad, top + pad))
    if 1e4 <= max(abs(bottom), abs(top)) < 1e9 and min(high - low, top - bottom) > 100:
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def values_figure(found: dict[str, Any], mean: float) -> Any:
    """Plot the distortion by number of predictions, with the lower bound expected by the model if it is known."""
    figure, axis = _axes()
    axis.plot(found["numbers"], found["distortion"], color=_BLUE, marker="o", lw=2, label="n predictions")
    axis.axhline(mean, color=report.GRAY, ls=":", lw=1.5, label="mean")
    if min(found["distortion"]) > 0:
        axis.set_yscale("log")
    if found["floor"]:
        _curve(axis, found["numbers"], found["floor"], report.INK, 1.2, ls="--", label="expected at best")
    return _numbered(figure, axis, "number of predictions", "distortion")


def top_figure(found: dict[str, Any]) -> Any:
    """Plot the fraction of rows whose class is among the first k guesses."""
    figure, axis = _axes()
    axis.plot(found["numbers"], found["covered"], color=_BLUE, marker="o", lw=2, label="observed")
    axis.plot(found["numbers"], found["expected"], color=report.INK, ls="--", lw=1.2, label="expected")
    axis.set_ylim(0, 1.02)
    return _numbered(figure, axis, "number of guesses", "fraction of rows")


def _numbered(figure: Any, axis: Any, x: str, y: str) -> Any:
    axis.set(xlabel=x, ylabel=y)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=9)
    return figure


def calibration_figure(
    predicted: Sequence[float], observed: Sequence[float], counts: Sequence[int], margin: float = 0.0
) -> Any:
    """Plot observed frequencies against predicted probabilities, with two standard errors."""
    figure, axis = _axes()
    axis.plot([0, 1], [0, 1], color=report.INK, lw=0.8)
    sizes = [20 + 180 * count / max(counts) for count in counts]
    pairs = zip(observed, counts, strict=True)
    errors = [2 * (max(value * (1 - value), 1e-9) / count) ** 0.5 for value, count in pairs]
    axis.errorbar(predicted, observed, yerr=errors, fmt="none", ecolor=report.GRAY, lw=1)
    axis.scatter(predicted, observed, s=sizes, color=_BLUE, alpha=0.8, linewidths=0, zorder=3)
    axis.set(xlabel="predicted probability", ylabel="observed frequency")
    axis.set(xlim=(0, 1 + margin), ylim=(-margin, 1 + margin))
    return figure


def over_time_figure(found: dict[str, Any], errors: Sequence[float]) -> Any:
    """Plot an error over time."""
    figure, axis = _axes((8.4, 3.6))
    times = np.array(found["times"])
    if found["dates"]:
        times = np.datetime64("1970-01-01") + (times * 86_400).round().astype("timedelta64[s]")
    axis.plot(times, errors, color=_BLUE, marker="o", lw=1.6)
    axis.set(xlabel="time", ylabel=found["measure"], ylim=(0, None))
    axis.tick_params(axis="x", rotation=20)
    return figure


def training_figure(found: dict[str, Any]) -> Any:
    """Plot loss, distortion and temperature by epoch."""
    figure, axis = _axes((8.4, 4.2))
    epochs = range(1, len(found["loss"]) + 1)
    known = [value for name in ("loss", "validation") for value in found[name] or () if value is not None]
    # Scores of densities may be negative; distortions never are.
    scale, words = ("log", "loss and distortion") if min(known, default=1.0) > 0 else ("linear", "score")
    axis.set(xlabel="epoch", ylabel=words, yscale=scale)
    for name, color, width in (("loss", report.GRAY, 1.2), ("validation", _BLUE, 1.8)):
        if found[name]:
            _curve(axis, epochs, found[name], color, width)
    if found["kept_epoch"] >= 0:
        axis.axvline(found["kept_epoch"] + 1, color=report.INK, lw=0.8)
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


def _axes(size: tuple[float, float] = (6.2, 4.4)) -> tuple[Any, Any]:
    """Create a figure and its axes."""
    figure = report.new_figure(*size, layout="tight")
    axis = figure.add_subplot()
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure, axis


def small_bars(counts: Sequence[float]) -> str:
    """Draw a small bar plot of a distribution, as SVG."""
    top = max([*counts, 1e-12])
    width = 120 / max(len(counts), 8)
    bars = "".join(
        f'<rect x="{place * width:.2f}" y="{27 - 26 * count / top:.2f}" width="{max(width - 1, 1):.2f}" '
        f'height="{26 * count / top:.2f}"/>'
        for place, count in enumerate(counts)
    )
    return f'<svg class="bars" viewBox="0 0 120 27" role="img" aria-label="distribution">{bars}</svg>'
