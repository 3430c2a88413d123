"""Conversion of forecasts to gluonts forecasts, and of gluonts datasets to frames."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from torchmcl.errors import bad_value
from torchmcl_forecast.forecast import LEVELS, Forecast
from torchmcl_forecast.grids import Grid

__all__ = ["frame_of_dataset", "quantile_forecasts", "sample_forecasts"]

_SECOND = 10**9
_DAY = 24 * 3600 * _SECOND


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
    kinds = _kinds("sample_forecasts")
    paths = forecast.sample_paths(n, random_state).numpy()  # [groups, n, channels, horizon]
    samples = [path[:, 0] if path.shape[1] == 1 else path.swapaxes(1, 2) for path in paths]
    names = forecast.panel.names if paths.shape[2] == 1 else [None]
    starts = _starts("sample_forecasts", forecast)
    return [
        kinds.SampleForecast(samples=one, start_date=start, item_id=None if name is None else str(name))
        for one, start, name in zip(samples, starts, names, strict=False)
    ]


def quantile_forecasts(forecast: Forecast, levels: Any = LEVELS) -> list[Any]:
    """Return a gluonts `QuantileForecast` for each series, including the mean.

    Args:
        forecast: Forecast whose times are dates, because numbers have no period.
        levels: Quantile levels between 0 and 1.
    """
    kinds = _kinds("quantile_forecasts")
    frame = forecast.quantiles(levels)
    columns = [np.asarray(frame[name]) for name in frame.columns[2:]] + [np.asarray(forecast.mean()["mean"])]
    arrays = np.stack(columns).reshape(len(columns), -1, forecast.horizon).swapaxes(0, 1)
    keys = [*(f"{float(level):g}" for level in np.atleast_1d(levels)), "mean"]
    starts = _starts("quantile_forecasts", forecast)
    return [
        kinds.QuantileForecast(forecast_arrays=one, forecast_keys=keys, start_date=start, item_id=str(name))
        for one, start, name in zip(arrays, starts, forecast.panel.names, strict=True)
    ]


def _kinds(owner: str) -> Any:
    try:
        from gluonts.model import forecast
    except ImportError as error:
        raise ImportError(f"{owner} needs gluonts: pip install gluonts.") from error
    return forecast


def _starts(owner: str, forecast: Forecast) -> list[pd.Period]:
    """Return the period of the first step of the forecast of each series."""
    grid, ends = forecast.panel.grid, forecast.panel.ends
    if not grid.is_calendar:
        raise ValueError(bad_value(owner, "forecast", "have dates", "numbers", "gluonts requires calendar periods."))
    if grid.kind == "business" and grid.week != Grid.week:
        rule, advice = "have dates of all days, or of Monday to Friday", "gluonts has no periods of other weeks."
        raise ValueError(bad_value(owner, "forecast", rule, f"the week {grid.week}", advice))
    firsts = [pd.Timestamp(grid.after(end, 1)[0]) for end in ends]
    return [pd.Period(first, _frequency(grid, first)) for first in firsts]


def _frequency(grid: Grid, first: pd.Timestamp) -> str:
    """Return the pandas period frequency; weeks end on the weekday of the first timestamp.

    Example:
        >>> _frequency(Grid("month", 3), pd.Timestamp("2024-01-01")), _frequency(Grid("time", 900e9), pd.Timestamp(0))
        ('3M', '900s')
    """
    if grid.kind == "month":
        return "M" if grid.step == 1 else f"{int(grid.step)}M"
    if grid.kind == "business":
        return "B"
    if grid.step == 7 * _DAY:
        return f"W-{first.day_name()[:3].upper()}"
    return {3600 * _SECOND: "h", _DAY: "D"}.get(int(grid.step), f"{int(grid.step) // _SECOND}s")
