"""Conversion of forecasts to gluonts forecasts, and of gluonts datasets to frames."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset

from torchmcl.errors import bad_value
from torchmcl_forecast.forecast import Forecast
from torchmcl_forecast.grids import Grid

__all__ = ["frame_of_dataset", "sample_forecasts"]

_MONTHS = ("DEC", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV")


def frame_of_dataset(dataset: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Convert a gluonts dataset to a long frame. Entries have `start` (a period), `target` and optionally `item_id`.

    The rows of a multivariate target [channels, times] become separate series.

    Example:
        >>> entry = {"item_id": "shop", "start": pd.Period("2024-01-01", "D"), "target": [3.0, 4.0]}
        >>> frame_of_dataset([entry]).values.tolist()
        [['shop', Timestamp('2024-01-01 00:00:00'), 3.0], ['shop', Timestamp('2024-01-02 00:00:00'), 4.0]]
    """
    parts = []
    for place, entry in enumerate(dataset):
        targets = np.atleast_2d(np.asarray(entry["target"], dtype=float))
        name, start = str(entry.get("item_id", place)), entry["start"]
        times = pd.period_range(start, periods=targets.shape[1], freq=start.freq).to_timestamp()
        for channel, values in enumerate(targets):
            series = name if len(targets) == 1 else f"{name}/{channel}"
            parts.append(pd.DataFrame({"unique_id": series, "ds": times, "y": values}))
    if not parts:
        raise ValueError(bad_value("frame_of_dataset", "dataset", "have at least one entry", "none"))
    return pd.concat(parts, ignore_index=True)


def sample_forecasts(forecast: Forecast, n: int = 200, random_state: int = 0) -> list[Any]:
    """Return a gluonts `SampleForecast` for each series; for joint series, one for all of them, [n, horizon, series].

    Args:
        forecast: Forecast whose times are dates, because numbers have no period.
        n: Number of paths to sample.
        random_state: Random seed.
    """
    try:
        from gluonts.model.forecast import SampleForecast
    except ImportError as error:
        raise ImportError("sample_forecasts needs gluonts: pip install gluonts.") from error
    paths = forecast.sample_paths(n, random_state).numpy()  # [groups, n, channels, horizon]
    samples = [path[:, 0] if path.shape[1] == 1 else path.swapaxes(1, 2) for path in paths]
    names = forecast.panel.names if paths.shape[2] == 1 else [None]
    return [
        SampleForecast(samples=one, start_date=start, item_id=None if name is None else str(name))
        for one, start, name in zip(samples, _starts(forecast), names, strict=False)
    ]


def _starts(forecast: Forecast) -> list[pd.Period]:
    """Return the period of the first step of the forecast of each series."""
    owner, grid, ends = "sample_forecasts", forecast.panel.grid, forecast.panel.ends
    if not grid.is_calendar:
        raise ValueError(bad_value(owner, "forecast", "have dates", "numbers", "gluonts requires calendar periods."))
    if grid.kind == "business" and grid.week != Grid.week:
        rule, advice = "have dates of all days, or of Monday to Friday", "gluonts has no periods of other weeks."
        raise ValueError(bad_value(owner, "forecast", rule, f"the week {grid.week}", advice))
    firsts = [pd.Timestamp(grid.after(end, 1)[0]) for end in ends]
    return [pd.Period(first, _frequency(grid, first)) for first in firsts]


def _frequency(grid: Grid, first: pd.Timestamp) -> str:
    """Return the pandas period frequency. Periods begin at the times, or end at them for the last days of months.

    Example:
        >>> _frequency(Grid("month", 3), pd.Timestamp("2024-01-01")), _frequency(Grid("time", 900e9), pd.Timestamp(0))
        ('Q-DEC', '15min')
    """
    if grid.kind == "month":
        last = first.month - (grid.day not in (0, 31))  # last month of a quarter or year, 0 for December
        return {1: "M", 3: f"Q-{_MONTHS[last % 3]}", 12: f"Y-{_MONTHS[last % 12]}"}.get(int(grid.step), f"{grid.step}M")
    if grid.kind == "business":
        return "B"
    step = pd.Timedelta(int(grid.step))
    if step == pd.Timedelta(days=7):
        return f"W-{(first - pd.Timedelta(days=1)).day_name()[:3].upper()}"
    return f"{step.days}D" if step == pd.Timedelta(days=step.days) else str(to_offset(step).freqstr)
