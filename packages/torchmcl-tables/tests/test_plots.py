"""Plots draw predictions on the axes of users, and return them."""

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from tables import QUICK, forked, two_outputs
from torchmcl_tables import DensityRegressor
from torchmcl_tables.plots import plot_calibration, plot_density, plot_intervals

PLOTS = {"density": plot_density, "intervals": plot_intervals, "calibration": plot_calibration}
SHORT = {**QUICK, "n_epochs": 5, "n_restarts": 1, "n_bins": 0}


@pytest.fixture(scope="module", params=["one", "two", "integers"])
def fitted(request):
    X, y = two_outputs(150) if request.param == "two" else forked(150)
    y = np.round(2 * y) if request.param == "integers" else y
    return DensityRegressor(**SHORT).fit(X, y), X, y


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_draws_on_given_axes_and_returns_them(fitted, name):
    model, X, y = fitted
    axis = Figure().subplots()
    n = 3 if name == "density" else len(X)
    assert PLOTS[name](model, X[:n], y[:n], ax=axis) is axis
    assert axis.has_data()
    axis.figure.canvas.draw()


@pytest.fixture(scope="module")
def model():
    return DensityRegressor(**SHORT).fit(*forked(80))


def test_new_axes_are_the_default(model):
    figures = pyplot.get_fignums()
    axis = plot_calibration(model, *forked(80))
    try:
        assert pyplot.get_fignums() == [*figures, axis.figure.number]
        assert axis.has_data()
    finally:
        pyplot.close(axis.figure)


def test_curves_are_densities_and_points_answers(fitted):
    model, X, y = fitted
    axis = plot_density(model, X[:2], y[:2], ax=Figure().subplots())
    curve = axis.get_lines()[0]
    mass = np.trapezoid(curve.get_ydata(), curve.get_xdata())
    assert 0.9 < mass < 1.05
    answers = model.predict_hypotheses(X[:2])
    for row, points in enumerate(axis.collections):
        np.testing.assert_allclose(points.get_offsets()[:, 0], answers.values[row, :, 0])
        np.testing.assert_allclose(points.get_sizes(), 10 + 250 * answers.probabilities[row])


def test_bars_are_the_sets(fitted):
    model, X, y = fitted
    axis = plot_intervals(model, X, y, coverage=0.5, ax=Figure().subplots())
    sets = model.predict_interval(X, 0.5)
    lowest = np.nanmin(sets.lower.reshape(len(X), -1, sets.lower.shape[-1])[:, 0])
    drawn = np.concatenate([path.vertices[:, 1] for path in axis.collections[0].get_paths()])
    assert np.nanmin(drawn) == pytest.approx(lowest)
    words = " ".join(text.get_text() for text in axis.get_legend().get_texts())
    inside = sets.contains(y).reshape(len(X), -1)[:, 0].mean()
    assert f"inside: {100 * inside:.0f} %" in words


def test_coverage_and_frequencies_are_those_of_the_rows(fitted):
    model, X, y = fitted
    axis = plot_calibration(model, X, y, levels=(0.3, 0.6), ax=Figure().subplots())
    held = axis.get_lines()[1].get_ydata()
    expected = [model.predict_interval(X, level).contains(y).reshape(len(X), -1)[:, 0].mean() for level in (0.3, 0.6)]
    np.testing.assert_allclose(held, expected)


@pytest.mark.parametrize("fitted", ["two"], indirect=True)
def test_the_second_output_is_drawn_on_demand(fitted):
    model, X, y = fitted
    axis = plot_intervals(model, X, y, output=np.int64(1), ax=Figure().subplots())
    np.testing.assert_allclose(axis.get_lines()[0].get_ydata(), np.sort(model.predict(X)[:, 1]))
    axis = plot_density(model, X[:1], y[:1], output=1, ax=Figure().subplots())
    assert axis.get_lines()[1].get_xdata()[0] == y[0, 1]
    axis = Figure().subplots()
    axis.plot([0, 1], [0, 1])  # of the user
    words = [text.get_text() for text in plot_calibration(model, X, y, ax=axis).get_legend().get_texts()]
    assert words == ["y0", "y1"]


def test_infinite_sets_are_drawn_to_the_edge(model):
    X, y = forked(80)
    axis = plot_intervals(model, X, y, coverage=0.999, ax=Figure().subplots())
    low, high = axis.get_ylim()
    assert low < y.min() < y.max() < high
    drawn = axis.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(drawn, [low, high])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, X, y: plot_density(model, X), "plot_density: `X` must have at most 6 rows, got 80"),
        (lambda model, X, y: plot_intervals(model, X, y, output=1), "`output` must be an integer from 0 to 0, got 1"),
        (lambda model, X, y: plot_intervals(model, X, y[:5]), "`y` must have 80 rows, as X"),
        (lambda model, X, y: plot_calibration(model, X, y[:1]), "`y` must have the shape"),
        (lambda model, X, y: plot_calibration(model, X, y, levels=()), "`levels` must have at least one level"),
        (lambda model, X, y: plot_calibration(model, X, y, levels=[1.0]), "plot_calibration: `levels` must"),
    ],
)
def test_bad_input_is_named(model, call, message):
    X, y = forked(80)
    with pytest.raises(ValueError, match=message):
        call(model, X, y)
