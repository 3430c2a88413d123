"""Frames of users become panels: long, wide, pandas and polars; bad ones get an error that names the place."""

import numpy as np
import pandas as pd
import pytest

from grids import for_each
from torchmcl_forecast.frames import Columns, read_panel

LONG = pd.DataFrame({"unique_id": ["a", "a", "a", "b", "b"], "ds": [1, 2, 3, 2, 3], "y": [1.0, 2.0, 3.0, 5.0, 6.0]})


def panel(frame, **options):
    return read_panel("fit", frame, Columns(), **options)


def test_series_end_in_the_last_column_and_begin_with_nan():
    found = panel(LONG)
    assert found.names.tolist() == ["a", "b"]
    np.testing.assert_array_equal(found.values, [[1, 2, 3], [np.nan, 5, 6]])
    assert found.ends.tolist() == [3, 3]


def test_the_order_of_rows_does_not_matter():
    np.testing.assert_array_equal(panel(LONG.iloc[[4, 0, 3, 2, 1]]).values[::-1], panel(LONG).values)


def test_a_wide_frame_is_read_as_a_long_one():
    wide = LONG.pivot(index="ds", columns="unique_id", values="y").reset_index()
    np.testing.assert_array_equal(panel(wide).values, panel(LONG).values)


def test_a_frame_of_polars_is_read_as_one_of_pandas():
    polars = pytest.importorskip("polars")
    found = panel(polars.DataFrame(LONG.to_dict("list")))
    np.testing.assert_array_equal(found.values, panel(LONG).values)
    assert found.like == "polars"


def test_series_that_stop_early_end_at_their_own_time_or_at_that_of_all():
    frame = pd.DataFrame({"unique_id": list("aab"), "ds": [1, 2, 1], "y": [1.0, 2.0, 5.0]})
    assert panel(frame).ends.tolist() == [2, 1]
    np.testing.assert_array_equal(panel(frame, aligned=True).values, [[1, 2], [5, np.nan]])


def dated(*days):
    return pd.DataFrame({"ds": days, "y": range(len(days))})


@for_each(
    "frame, message",
    [
        (dated("2024-01-01", "2024-01-01"), "`ds` must have each time of a series once, got 2024-01-01 00:00:00 twice"),
        (dated("2024-01-01 00:00", "2024-01-01 02:00", "2024-01-01 05:00"), "`ds` must be regular, got 2024-01-01"),
        (dated("2024-01-01", None), "`ds` must have a time in every row, got none in row 1"),
        (
            dated("today", "yesterday or so"),
            "`ds` must contain numbers or dates between 1678 and 2262, got 'yesterday or so' in row 1",
        ),
        (dated("2024-01-01"), "`frame` must have a series with at least two times"),
        (LONG.assign(y="many"), "`y` must contain numbers, got 'many'"),
        (LONG.assign(y=np.inf), "`y` must be finite .*, got inf in row 0"),
        (LONG.assign(unique_id=["a", None, "a", "b", "b"]), "`unique_id` must name a series in every row"),
        (LONG.rename(columns={"y": "sold"}), "`frame` must have the value column 'y', or be wide"),
        (LONG.iloc[:0], "`frame` must have at least one row"),
        (LONG.set_axis(["unique_id", "ds", "ds"], axis=1), "`frame` must have distinct .*, got 'ds' twice"),
        (dated("01/02/2024", "02/02/2024", "03/02/2024"), "`ds` must distinguish days from months, got '01/02/2024'"),
        (
            dated(*(pd.Timestamp(2024, 1, day, 0, 0, int(day == 4)) for day in range(1, 6))),
            "`ds` must .*, got 2024-01-04 00:00:01 in series 'y', 1 days 00:00:01 after .* most steps are 1 days",
        ),
        (
            dated(*map(pd.Timestamp, ("2024-01-01 00:00:01", "2024-01-01 00:00:02", "1900-01-01"))),
            "`ds` must span at most 200,000,000 steps .* 1900-01-01 00:00:00 to 2024",
        ),
    ],
)
def test_a_bad_frame_is_named(frame, message):
    with pytest.raises(ValueError, match=f"^fit: {message}"):
        panel(frame)


def test_times_of_another_kind_than_in_the_fit_are_refused():
    with pytest.raises(ValueError, match="`ds`"):
        panel(dated("2024-01-01", "2024-01-02"), grid=panel(LONG).grid)


def test_steps_other_than_those_of_the_fit_are_refused():
    hours = dated(*pd.date_range("2024-01-01", periods=5, freq="h"))
    with pytest.raises(ValueError, match="`ds` must be regular, got steps of 01:00:00 in series 'y'"):
        panel(hours, grid=panel(dated("2024-01-01", "2024-01-02")).grid)
    with pytest.raises(ValueError, match="`ds` must have the steps of the fit, got steps of 24 of them"):
        panel(dated(*pd.date_range("2024-01-01", periods=9)), grid=panel(hours).grid)


@for_each("form", ["%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S+02:00"])
def test_dates_are_read_in_all_usual_forms(form):
    days = pd.date_range("2024-01-01", periods=40)
    assert panel(dated(*days.strftime(form))).values.shape == (1, 40)


def shop(n_days=140, special=()):
    days = pd.date_range("2024-01-01", periods=n_days)
    days = days[(days.day_of_week != 6) | days.isin(pd.DatetimeIndex(special))]
    return pd.DataFrame({"ds": days, "y": np.arange(len(days), dtype=float)})


def test_special_openings_are_left_out_with_a_warning():
    usual, special = shop(), shop(special=["2024-03-31"])
    with pytest.warns(UserWarning, match=r"usually closed are left out: 2024-03-31 \(Sunday\)\.$"):
        found = read_panel("fit", special, Columns())
    assert found.values.shape == read_panel("fit", usual, Columns()).values.shape
    assert 78.0 not in found.values  # the value of that Sunday
    with pytest.warns(UserWarning, match="2024-05-12.*and 1 more"):
        late = read_panel("fit", shop(special=["2024-05-12", "2024-05-19"]), Columns(), grid=found.grid)
    assert pd.Timestamp(late.ends[0]) == pd.Timestamp("2024-05-18")  # the forecast begins on the Monday after it
