"""Forecasts in the forms of gluonts and sktime."""

import numpy as np
import pandas as pd
import pytest
from quick_sales import UNTRAINED, sales

from grids import for_each
from torchmcl_forecast import Forecaster, adapters

# Other packages warn of their own future.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_dataset_of_gluonts_is_a_long_frame():
    start = pd.Period("2024-01", "M")
    frame = adapters.frame_of_dataset(
        [{"start": start, "target": [1.0, 2.0]}, {"start": start, "target": [[3.0], [4.0]]}]
    )
    assert frame.unique_id.tolist() == ["0", "0", "1/0", "1/1"]
    assert frame.ds.tolist() == list(pd.to_datetime(["2024-01-01", "2024-02-01", "2024-01-01", "2024-01-01"]))
    with pytest.raises(ValueError, match="`dataset`"):
        adapters.frame_of_dataset([])


@pytest.mark.slow
def test_forecasts_of_gluonts_have_the_same_numbers(fitted):
    pytest.importorskip("gluonts", reason="gluonts is not installed")
    forecast = fitted.forecast()
    of_samples = adapters.sample_forecasts(forecast, 50)
    assert [one.item_id for one in of_samples] == ["shop 0", "shop 1", "shop 2"]
    assert of_samples[2].samples.shape == (50, 7)
    np.testing.assert_allclose(of_samples[2].samples[4], forecast.sample(50)["sample_5"][14:])


def tiny(frame, horizon=2, **parameters):
    return Forecaster(**{**UNTRAINED, "hidden": (4,)}, **parameters).fit(frame, horizon=horizon)


@pytest.mark.slow
@for_each(
    "frequency",
    [*("s", "15min", "h", "2h", "D", "10D", "B", "W-SUN", "W-WED", "M", "2M", "Q-DEC", "Q-JAN", "Y-DEC", "Y-MAR")],
)
def test_forecasts_of_a_gluonts_dataset_have_its_periods(frequency):
    pytest.importorskip("gluonts", reason="gluonts is not installed")
    dataset = [{"start": pd.Period("2015-02-02", frequency), "target": np.arange(30.0)}]
    index = adapters.sample_forecasts(tiny(adapters.frame_of_dataset(dataset)).forecast(), 3)[0].index
    expected = pd.period_range(dataset[0]["start"], periods=32, freq=dataset[0]["start"].freq)[-2:]
    pd.testing.assert_index_equal(index, expected)


@pytest.mark.slow
@for_each("frequency", ["ME", "QE-DEC", "YE-MAR", "BME"])
def test_last_days_are_ends_of_gluonts_periods(frequency):
    pytest.importorskip("gluonts", reason="gluonts is not installed")
    frame = pd.DataFrame({"ds": pd.date_range("2001-01-01", periods=30, freq=frequency), "y": np.arange(30.0)})
    forecast = tiny(frame).forecast()
    ends = adapters.sample_forecasts(forecast, 3)[0].index.to_timestamp(how="end")
    assert ((ends - forecast.mean().ds) < pd.Timedelta(days=3)).all()


@pytest.mark.slow
def test_numbers_are_no_periods():
    pytest.importorskip("gluonts", reason="gluonts is not installed")
    forecast = Forecaster(**UNTRAINED).fit(pd.DataFrame({"ds": range(30), "y": range(30)}), horizon=2)
    with pytest.raises(ValueError, match="`forecast`"):
        adapters.sample_forecasts(forecast.forecast())


@pytest.mark.slow
def test_weeks_without_sundays_are_no_periods():
    pytest.importorskip("gluonts", reason="gluonts is not installed")
    days = pd.date_range("2024-01-01", periods=70)
    frame = pd.DataFrame({"ds": days[days.day_of_week != 6]}).assign(y=1.0)
    forecast = Forecaster(**UNTRAINED).fit(frame, horizon=2).forecast()
    with pytest.raises(ValueError, match="dates of all days, or of Monday to Friday, got the week 1111110"):
        adapters.sample_forecasts(forecast)


@pytest.mark.slow
@for_each("joint", [False, True])
def test_the_forecaster_of_sktime_is_the_forecaster(joint):
    pytest.importorskip("sktime", reason="sktime is not installed")
    frame = sales(100, 2)
    wide = frame.pivot(index="ds", columns="unique_id", values="y").asfreq("D")
    ours = Forecaster(**UNTRAINED, joint=joint)
    theirs = adapters.SktimeForecaster(ours).fit(wide, fh=[1, 3])
    expected = ours.fit(frame, horizon=3).forecast()
    np.testing.assert_allclose(theirs.predict()["shop 1"], expected.mean()["mean"].to_numpy()[[3, 5]])
    quantiles = theirs.predict_quantiles(alpha=[0.1, 0.9])
    np.testing.assert_allclose(quantiles[("shop 0", 0.9)], expected.quantiles([0.9])["q0.9"][[0, 2]])
    assert len(theirs.forecast().futures()) == 6


@pytest.mark.slow
@for_each("periods", [False, True])
def test_panels_of_sktime_are_one_network_and_keep_their_order(periods):
    pytest.importorskip("sktime", reason="sktime is not installed")
    frame = sales(60, 2).assign(unique_id=lambda f: f.unique_id.replace({"shop 0": "z", "shop 1": "a"}))
    forecaster = adapters.SktimeForecaster(Forecaster(**UNTRAINED))
    found = forecaster.fit(frame.set_index(["unique_id", "ds"]), fh=[1, 2]).predict()
    assert found.index.get_level_values(0).tolist() == ["a", "a", "z", "z"]
    assert found.loc["a"].y.min() > found.loc["z"].y.max()  # shop 1 sells twice as much


# Checks that depend on the values of forecasts; the others are about the class, which a joint forecaster shares.
OF_VALUES = [
    "test_predict_time_index",
    "test_predict_quantiles",
    "test_fit_idempotent",
    "test_hierarchical_with_exogeneous",
]


@pytest.mark.slow
@for_each("joint, tests, n_least", [(False, None, 400), (True, OF_VALUES, 60)])
def test_the_forecaster_of_sktime_passes_its_checks(joint, tests, n_least):
    checks = pytest.importorskip("sktime.utils.estimator_checks", reason="sktime is not installed")
    forecaster = adapters.SktimeForecaster.create_test_instances_and_names()[0][joint]
    assert forecaster.forecaster.joint is joint
    found = checks.check_estimator(forecaster, tests_to_run=tests, verbose=False)
    assert {name: error for name, error in found.items() if error != "PASSED"} == {}
    assert len(found) > n_least


def panel_of(*lengths):
    keys = [(name, time) for name, n in enumerate(lengths) for time in pd.period_range("2015-01", periods=n, freq="M")]
    return pd.DataFrame({"y": np.arange(len(keys)) * 1.0}, index=pd.MultiIndex.from_tuples(keys, names=["i", "t"]))


@pytest.mark.slow
@for_each(
    "name, index",
    {
        "instances with different ends": panel_of(60, 50).index,
        "weekdays in daily periods": pd.bdate_range("2024-01-01", periods=60).to_period("D"),
        "quarters in monthly periods": pd.period_range("2005-01", periods=60, freq="Q").asfreq("M"),
        "every second integer": pd.RangeIndex(0, 120, 2),
    }.items(),
)
def test_sktime_indexes_with_other_steps_are_refused(name, index):
    pytest.importorskip("sktime", reason="sktime is not installed")
    with pytest.raises(ValueError, match="`y` must have a value at each time of its index frequency"):
        adapters.SktimeForecaster(Forecaster(**UNTRAINED)).fit(
            pd.DataFrame({"y": np.arange(len(index)) * 1.0}, index=index), fh=[1, 2]
        )


@pytest.mark.slow
@for_each("frequency", ["s", "15min", "h", "D", "W", "M", "Q", "Y", "business days", "month starts", "integers"])
def test_sktime_indexes_have_the_times_of_the_forecast(frequency):
    pytest.importorskip("sktime", reason="sktime is not installed")
    special = {"business days": "B", "month starts": "MS"}
    if frequency == "integers":
        index = pd.RangeIndex(5, 35)
    elif frequency in special:
        index = pd.date_range("2020-01-01", periods=30, freq=special[frequency])
    else:
        index = pd.period_range("2020-01-01", periods=30, freq=frequency)
    model = adapters.SktimeForecaster(Forecaster(**UNTRAINED)).fit(pd.Series(np.arange(30.0), index=index), fh=[1, 3])
    times = model.predict().index
    times = times.to_timestamp() if isinstance(times, pd.PeriodIndex) else times
    assert list(times) == model.forecast().mean().ds.tolist()[::2]
