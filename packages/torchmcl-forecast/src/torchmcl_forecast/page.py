"""HTML report of a forecast: a summary, plots of history and futures, and sums over the horizon."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.dates import ConciseDateFormatter

from torchmcl import io
from torchmcl.app import report
from torchmcl_forecast.forecast import Forecast
from torchmcl_forecast.grids import Grid

__all__ = ["tube_note", "write_page"]

# Maximum number of plotted series; with more, the report would be too long to read.
_MOST_SERIES = 12
# Quantile levels of the likely range, which contains the sum with a probability of 80 %.
_LIKELY = (0.1, 0.9)
_N_SAMPLES = 1000
_HOUR = 3600 * 10**9
_UNITS = {_HOUR // 60: "minute", _HOUR: "hour", 24 * _HOUR: "day", 7 * 24 * _HOUR: "week"}
_MONTHS = {1: "month", 3: "quarter", 12: "year"}


def write_page(path: Path, forecast: Forecast, *, source: str, value: str, trained: Sequence[str]) -> None:
    """Write the HTML report.

    Args:
        path: Path of the report.
        forecast: Forecast to show.
        source: Name of the table.
        value: Name of the value column.
        trained: Sentences about the training run, for the end of the report.
    """
    names = list(forecast.panel.names[:_MOST_SERIES])
    left_out = len(forecast.panel.names) - len(names)
    sums = _sums(forecast)[: len(names)]
    steps = f"{forecast.horizon:,} {_unit(forecast.panel.grid)}{'s' if forecast.horizon > 1 else ''}"
    plots = []
    for name, (mean, low, high) in zip(names, sums, strict=True):
        figure = report.new_figure(7.2, 3.8)
        axis = figure.subplots()
        forecast.plot(name, axis)
        axis.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12))
        axis.tick_params(labelsize=9)
        if forecast.panel.grid.is_calendar:
            axis.xaxis.set_major_formatter(ConciseDateFormatter(axis.xaxis.get_major_locator()))
        axis.spines[["top", "right"]].set_visible(False)
        expected, least, most = (report.number(each, high - low) for each in (mean, low, high))
        total = f"about {expected} {report.escape(value)} in total"
        caption = f"In {steps}: {total}, {least} to {most} with a probability of 80 %."
        plots.append(report.image(figure, f"History and futures of {name}", caption))
    more = f"<p>The files beside this report contain {left_out:,} more series.</p>" if left_out else ""
    body = f"""<h1>{report.escape(source)}: the next {steps}</h1>
<p class="lead">{_period(forecast)}. Each colored line is one possible future of <b>{report.escape(value)}</b>, from
the first {_unit(forecast.panel.grid)} to the last. Thicker lines are more probable. {tube_note(forecast)}</p>
{"".join(plots)}{more}
<h2>Sums over {steps}</h2>
<p>The expected sum, the range that contains it with a probability of 80 %, and the sum and the probability of each
future.</p>
{_table(forecast, names, sums)}
<h2>Files</h2>
<p><code>futures.csv</code> contains the futures. <code>quantiles.csv</code> contains the quantiles of each step from
5 to 95 %, and the tube. <code>model/</code> contains the trained forecaster.</p>
<p class="note">{report.escape(" ".join(trained))}</p>"""
    io.write_atomically(path, report.html_report(f"Futures of {source}", body, command="torchmcl forecast"))


def _unit(grid: Grid) -> str:
    """Return the word for one step.

    Example:
        >>> _unit(Grid("month", 3)), _unit(Grid("business", 1.0)), _unit(Grid("time", 900e9))
        ('quarter', 'working day', 'step')
    """
    if grid.kind == "month":
        return _MONTHS.get(int(grid.step), "step")
    return {"business": "working day", "number": "step"}.get(grid.kind, _UNITS.get(int(grid.step), "step"))


def _period(forecast: Forecast) -> str:
    """Return the period of the forecast as text; series may end at different times."""
    times = forecast.panel.times_after(forecast.horizon).reshape(-1, forecast.horizon)
    first, last = times[:, 0].min(), times[:, -1].max()
    if forecast.panel.grid.kind == "number":
        return f"From {first} to {last}"
    form = "%-d %B %Y, %H:%M" if forecast.panel.grid.per_day > 1 else "%-d %B %Y"
    first, last = (pd.Timestamp(time).strftime(form) for time in forecast.panel.grid.shown(np.array([first, last])))
    return f"From {first} to {last}"


def tube_note(forecast: Forecast) -> str:
    """Return a sentence about the coverage of the tubes."""
    if forecast.tube_level is None:
        return "No tubes: the series are too short to calibrate them."
    probability = report.percent(forecast.coverage)
    return f"The gray tube, calibrated on the last windows, contains the whole path with probability {probability}."


def _sums(forecast: Forecast) -> list[tuple[float, float, float]]:
    """Return the mean and the likely range of the sum over the horizon for each series."""
    drawn = forecast.sample_paths(_N_SAMPLES).sum(dim=-1).transpose(1, 2).flatten(0, 1)  # [series, samples]
    low, high = (drawn.quantile(level, dim=1) for level in _LIKELY)
    return list(zip(drawn.mean(dim=1).tolist(), low.tolist(), high.tolist(), strict=True))


def _table(forecast: Forecast, names: list[Any], sums: list[tuple[float, float, float]]) -> str:
    paths, probabilities = forecast.reduced()
    totals = paths.sum(dim=-1).transpose(1, 2).flatten(0, 1).tolist()  # [series, futures]
    n_channels = forecast.paths.shape[2]
    lines = []
    for place, (name, (mean, low, high)) in enumerate(zip(names, sums, strict=True)):
        of_futures = zip(totals[place], probabilities[place // n_channels].tolist(), strict=True)
        expected, least, most = (report.number(each, high - low) for each in (mean, low, high))
        cells = [f"{report.number(total, high - low)} | {report.percent(weight)}" for total, weight in of_futures]
        lines.append([name, expected, f"{least} to {most}", *cells])
    futures = [f"future {k}" for k in range(1, probabilities.shape[1] + 1)]
    return report.table(["series", "expected", "80 % interval", *futures], lines)
