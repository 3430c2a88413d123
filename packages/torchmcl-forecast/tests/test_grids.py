"""Times on grids: hours, days, business days, weeks, months and numbers."""

import numpy as np
import pandas as pd
import pytest

from grids import for_each
from torchmcl_forecast.frames import Columns, read_panel
from torchmcl_forecast.grids import find_grid

FREQUENCIES = ["h", "30min", "D", "B", "W-WED", "MS", "ME", "BME", "2MS", "6ME", "QS", "YS"]


@for_each("frequency", FREQUENCIES)
def test_the_next_times_are_those_of_pandas(frequency):
    times = pd.date_range("2023-05-31", periods=40, freq=frequency)
    grid = find_grid("fit", [times[:30].to_numpy()])
    np.testing.assert_array_equal(pd.DatetimeIndex(grid.after(times[29], 10)), times[30:])


@for_each("frequency", FREQUENCIES)
def test_places_are_counted_in_steps_whatever_is_missing(frequency):
    times = pd.date_range("2023-05-31", periods=40, freq=frequency)
    kept = times[[0, 1, 2, 7, 8, 20, 39]]
    places = find_grid("fit", [times[:20].to_numpy()]).places(kept)
    np.testing.assert_allclose(places - places[0], [0, 1, 2, 7, 8, 20, 39])


@for_each("kind", [float, object])
@for_each("form, frequency", [("%Y%m%d", "D"), ("%Y%m", "MS"), ("%Y.%m", "MS"), ("%Y%m%d%H", "h"), ("%Y%m%d%H%M", "h")])
def test_numbers_may_be_dates(form, frequency, kind):
    times = pd.date_range("2023-11-01", periods=40, freq=frequency)
    numbers = times.strftime(form).astype(float)
    frame = pd.DataFrame({"ds": (numbers if "." in form else numbers.astype("int64")).astype(kind), "y": 1.0})
    found = read_panel("fit", frame, Columns())
    assert found.values.shape == (1, 40)
    np.testing.assert_array_equal(found.times_after(1), times[-1:] + times.freq)
    numbers = read_panel("fit", frame.assign(ds=202490 + np.arange(40)), Columns())
    assert numbers.times_after(1).tolist() == [202530]


@for_each("parts, n", [(4, 1), (52, 2)])
def test_years_with_quarters_or_weeks_are_no_steps(parts, n):
    times = [10**n * year + part for year in (2023, 2024) for part in range(1, parts + 1)]
    with pytest.raises(ValueError, match="Write quarters and weeks as dates"):
        read_panel("fit", pd.DataFrame({"ds": times, "y": 1.0}), Columns())


@for_each("frequency", ["h", "D", "MS"])
@for_each("start", ["2024-03-29", "2024-10-26"])
def test_times_of_a_zone_are_regular_and_come_back_in_it(frequency, start):
    times = pd.date_range(start, periods=80, freq=frequency, tz="Europe/Berlin")
    panel = read_panel("fit", pd.DataFrame({"ds": times[:3], "y": 1.0}), Columns())
    assert panel.values.shape == (1, 3)
    found = panel.grid.shown(panel.times_after(77))
    assert found.tz is not None
    assert found.tolist() == times[3:].tolist()


@for_each("frequency", ["D", "B", "W-MON", "MS"])
@for_each("zone", ["Europe/Berlin", "America/New_York", "Australia/Sydney"])
def test_local_midnights_in_utc_are_days(frequency, zone):
    times = pd.date_range("2023-09-01", periods=130, freq=frequency, tz=zone)
    for form in (times.tz_convert("UTC"), times.strftime("%Y-%m-%dT%H:%M:%S%z")):
        panel = read_panel("fit", pd.DataFrame({"ds": form[:120], "y": 1.0}), Columns())
        assert panel.values.shape == (1, 120)
        assert panel.grid.shown(panel.times_after(10)).tolist() == times[120:].tolist()
        later = read_panel("forecast", pd.DataFrame({"ds": form, "y": 1.0}), Columns(), grid=panel.grid)
        assert pd.Timestamp(later.ends[0]) == times[-1].tz_localize(None)


def test_times_with_and_without_a_zone_are_not_mixed():
    days = pd.date_range("2024-01-01", periods=5)
    grid = read_panel("fit", pd.DataFrame({"ds": days.tz_localize("Europe/Berlin"), "y": 1.0}), Columns()).grid
    with pytest.raises(ValueError, match="must have times with a time zone, Europe/Berlin, as in the fit"):
        read_panel("fit", pd.DataFrame({"ds": days, "y": 1.0}), Columns(), grid=grid)


def test_the_30th_of_each_month_is_the_last_day_of_february():
    times = [pd.Timestamp("2023-11-30") + pd.DateOffset(months=k) for k in range(8)]
    grid = find_grid("fit", [np.array(times[:5], dtype="datetime64[ns]")])
    np.testing.assert_array_equal(grid.after(times[4], 3), pd.DatetimeIndex(times[5:]))


@for_each("closed", [[6], [0], [2, 6], [0, 1, 2]])
def test_days_on_which_a_shop_is_closed_are_no_steps(closed):
    every = pd.date_range("2024-01-01", periods=120)
    times = every[~every.day_of_week.isin(closed)]
    grid = find_grid("fit", [times[[*range(20), *range(23, 50)]].to_numpy()])
    np.testing.assert_array_equal(pd.DatetimeIndex(grid.after(times[49], 18)), times[50:68])
    places = grid.places(times)
    np.testing.assert_allclose(places - places[0], np.arange(len(times)))
