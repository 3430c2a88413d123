"""Times on grids: hours, days, business days, weeks, months and numbers."""

import numpy as np
import pandas as pd
import pytest

from torchmcl_forecast.grids import find_grid

FREQUENCIES = ["h", "30min", "D", "B", "W-WED", "MS", "ME", "BME", "2MS", "6ME", "QS", "YS"]


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_the_next_times_are_those_of_pandas(frequency):
    times = pd.date_range("2023-05-31", periods=40, freq=frequency)
    grid = find_grid("fit", [times[:30].to_numpy()])
    np.testing.assert_array_equal(pd.DatetimeIndex(grid.after(times[29], 10)), times[30:])


@pytest.mark.parametrize("frequency", FREQUENCIES)
def test_places_are_counted_in_steps_whatever_is_missing(frequency):
    times = pd.date_range("2023-05-31", periods=40, freq=frequency)
    kept = times[[0, 1, 2, 7, 8, 20, 39]]
    places = find_grid("fit", [times[:20].to_numpy()]).places(kept)
    np.testing.assert_allclose(places - places[0], [0, 1, 2, 7, 8, 20, 39])


def test_numbers_have_the_step_of_their_smallest_distance():
    grid = find_grid("fit", [np.array([0, 5, 15])])
    assert grid.after(15, 2).tolist() == [20, 25]


def test_a_time_zone_with_daylight_saving_is_regular():
    from torchmcl_forecast.frames import Columns, read_panel

    times = pd.date_range("2024-03-30", periods=72, freq="h", tz="Europe/Berlin")
    assert read_panel("fit", pd.DataFrame({"ds": times, "y": 1.0}), Columns()).values.shape == (1, 72)
