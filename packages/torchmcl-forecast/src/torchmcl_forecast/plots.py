"""Plots of a forecast: history, tube, and futures with line widths by probability."""

from typing import Any

import numpy as np

from torchmcl.app import report
from torchmcl.errors import bad_value

__all__ = ["draw_forecast"]

# Line widths in points: the minimum, and the additional width at probability 1.
_THINNEST, _WIDER = 0.7, 5.0


def draw_forecast(forecast: Any, series: Any, axis: Any, n: int | None, n_past: int | None) -> None:
    """Plot one series on a matplotlib axis; see `Forecast.plot`."""
    panel, horizon = forecast.panel, forecast.horizon
    place = _place(panel.names, series)
    shown = panel.values[place, -(2 * horizon if n_past is None else n_past) or panel.values.shape[1] :]
    before, ahead = (
        np.asarray(panel.grid.shown(panel.grid.around(panel.ends[place], steps)))
        for steps in (np.arange(1 - len(shown), 1), np.arange(1, horizon + 1))
    )
    group, channel = divmod(place, forecast.paths.shape[2])
    axis.plot(before, shown, color=report.INK, linewidth=1.2, label="history")
    if forecast.tube_level is not None:
        low, high = (end[group, channel].numpy() for end in forecast.tube_ends())
        label = f"tube of {report.percent(forecast.coverage)}"
        axis.fill_between(ahead, low, high, color=report.GRAY, alpha=0.25, linewidth=0, label=label)
    paths, probabilities = forecast.reduced(n)
    for k, probability in enumerate(probabilities[group].tolist()):
        axis.plot(
            ahead,
            paths[group, k, channel].numpy(),
            color=report.PALETTE[k % len(report.PALETTE)],
            linewidth=_THINNEST + _WIDER * probability,
            alpha=0.85,
            zorder=3 - k / len(probabilities[group]),  # the most probable future on top
            label=f"future {k + 1}, {report.percent(probability)}",
        )
    axis.set_title(str(panel.names[place]), loc="left")


def _place(names: Any, series: Any) -> int:
    """Return the index of the series with a name; the first series by default."""
    if series is None:
        return 0
    matches = np.flatnonzero(names == series)
    if not len(matches):
        rule = f"be one of {', '.join(map(repr, names[:5].tolist()))}{', ...' if len(names) > 5 else ''}"
        raise ValueError(bad_value("Forecast.plot", "series", rule, repr(series)))
    return int(matches[0])
