"""The page of a forecast: history, futures with widths by probability, tube, and what they mean."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchmcl._pages.numbers import number, percent
from torchmcl._pages.page import escape, image, page, table
from torchmcl._pages.pictures import GREY, INK, PALETTE, new_figure
from torchmcl.persistence.writing import write_atomically
from torchmcl_forecast.forecast import Forecast

__all__ = ["draw_forecast", "write_page"]

# Series that are drawn; more would make the page too long to read.
_MOST_SERIES = 12
# Steps of the past that are drawn, in horizons.
_PAST_HORIZONS = 4


def draw_forecast(forecast: Forecast, series: int, axis: Any) -> None:
    """Draw one series on a matplotlib axis.

    Args:
        forecast: of all series.
        series: its place.
        axis: to draw on.
    """
    panel, horizon = forecast.panel, forecast.horizon
    shown = panel.values[series, -_PAST_HORIZONS * horizon :]
    ahead = np.asarray(panel.grid.after(panel.ends[series], horizon))
    before = np.asarray(panel.grid.around(panel.ends[series], np.arange(1 - len(shown), 1)))
    rows = slice(series * horizon, (series + 1) * horizon)
    futures = _columns(forecast.futures(), rows)
    axis.plot(before, shown, color=INK, linewidth=1.2, label="history")
    if forecast.tube_level is not None:
        tube = _columns(forecast.tube(), rows)
        label = f"tube of {percent(forecast.coverage)}"
        axis.fill_between(ahead, tube["low"], tube["high"], color=GREY, alpha=0.2, linewidth=0, label=label)
    names = [name for name in futures if name.startswith("future_")]
    for place, name in enumerate(names):
        share = float(futures[f"probability_{place + 1}"][0])
        label = f"future {place + 1}, {percent(share)}"
        color = PALETTE[place % len(PALETTE)]
        axis.plot(ahead, futures[name], color=color, linewidth=0.6 + 5 * share, alpha=0.85, label=label)
    axis.set_title(str(panel.names[series]), loc="left", fontsize=11)
    axis.legend(loc="upper left", fontsize=7, frameon=False, ncols=2)
    axis.tick_params(labelsize=8)


def write_page(path: Path, forecast: Forecast, *, source: str, value: str, trained: Sequence[str]) -> None:
    """Write the page.

    Args:
        path: of the file.
        forecast: to show.
        source: the name of the table.
        value: the name of the column of values.
        trained: sentences about the training, for the end of the page.
    """
    names = list(forecast.panel.names[:_MOST_SERIES])
    left_out = len(forecast.panel.names) - len(names)
    pictures = []
    for series, name in enumerate(names):
        figure = new_figure(8.5, 3.2)
        draw_forecast(forecast, series, figure.subplots())
        pictures.append(image(figure, f"History and futures of {name}", _caption(forecast, series, value)))
    more = f"<p>{left_out:,} more series are in the files beside this page.</p>" if left_out else ""
    body = f"""<h1>{escape(source)}: the next {forecast.horizon} steps</h1>
<p class="lead">Each line is one way in which <b>{escape(value)}</b> may go on, from the first step to the last;
the thicker it is, the more probable. {_tube_words(forecast)}</p>
{"".join(pictures)}{more}
<h2>Totals of the horizon</h2>
{_totals(forecast, names)}
<h2>Files</h2>
<p><code>futures.csv</code> has the lines, <code>quantiles.csv</code> the values that each step stays below with a
probability of 10 to 90 %, and the tube. <code>model/</code> holds the trained forecaster.</p>
<p class="note">{escape(" ".join(trained))}</p>"""
    write_atomically(path, page(f"Futures of {source}", body, command="torchmcl forecast"))


def _tube_words(forecast: Forecast) -> str:
    if forecast.tube_level is None:
        return "The series are too short to calibrate a tube around them."
    often = percent(forecast.coverage)
    return (
        f"The whole path stays inside the grey tube in {often} of cases, as measured on the last parts of the series."
    )


def _caption(forecast: Forecast, series: int, value: str) -> str:
    horizon = forecast.horizon
    rows = _columns(forecast.futures(), slice(series * horizon, (series + 1) * horizon))
    total, share = float(rows["future_1"].sum()), float(rows["probability_1"][0])
    return f"The most probable future ({percent(share)}) adds up to {number(total)} {escape(value)}."


def _totals(forecast: Forecast, names: list[Any]) -> str:
    """Return a table of the sums over the horizon: what is to be ordered, by future."""
    futures = _columns(forecast.futures(), slice(None))
    n = sum(name.startswith("future_") for name in futures)
    horizon, lines = forecast.horizon, []
    for series, name in enumerate(names):
        rows = slice(series * horizon, (series + 1) * horizon)
        totals = [float(futures[f"future_{k}"][rows].sum()) for k in range(1, n + 1)]
        shares = [float(futures[f"probability_{k}"][rows][0]) for k in range(1, n + 1)]
        lines.append([name, *(f"{number(t)} | {percent(s)}" for t, s in zip(totals, shares, strict=True))])
    return table(["series", *(f"future {k}" for k in range(1, n + 1))], lines)


def _columns(frame: Any, rows: slice) -> dict[str, Any]:
    return {name: np.asarray(frame[name])[rows] for name in frame.columns}
