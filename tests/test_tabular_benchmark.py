"""The benchmark of tables: its measures against plain definitions, and each method on a tiny case."""

import functools
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import _rivals
from _forecasts import FINE_LEVELS, Forecast, Mixture, best_points, measures, one_interval
from _rivals import METHODS, PACKAGES, WEIGHTS
from _tree_rivals import QuantileForest
from tabular import MEASURES, Records, complete, overall, run, summary, table_of
from torchmcl_tables import DensityRegressor


def mixture():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), size=4)
    return Mixture(weights, rng.normal(size=(4, 3)), rng.uniform(0.2, 1.0, size=(4, 3)))


def test_crps_is_the_integral_of_the_squared_error_of_the_distribution_function():
    given, targets = mixture(), np.array([-1.0, 0.0, 0.5, 3.0])
    grid = np.linspace(-8, 8, 20_001)
    steps = grid >= targets[:, None]
    integral = np.trapezoid((given.cdf(np.tile(grid, (4, 1))) - steps) ** 2, grid, axis=1)
    np.testing.assert_allclose(given.crps(targets), integral, atol=1e-3)


def test_crps_of_one_atom_is_the_distance():
    atoms = Mixture.of_atoms(np.array([[2.0], [3.0]]))
    np.testing.assert_allclose(atoms.crps(np.array([0.0, 7.0])), [2.0, 4.0])


def test_atoms_have_no_likelihood_and_kernels_that_of_their_density():
    assert Mixture.of_atoms(np.zeros((2, 3))).log_likelihood(np.zeros(2)) is None
    one = Mixture(np.ones((1, 1)), np.array([[1.0]]), np.array([[2.0]]))
    np.testing.assert_allclose(one.log_likelihood(np.array([0.5])), norm.logpdf(0.5, 1, 2))


def test_quantiles_invert_the_distribution_function():
    given = mixture()
    found = given.quantiles(np.array([0.1, 0.5, 0.9]))
    np.testing.assert_allclose(given.cdf(found), np.tile([0.1, 0.5, 0.9], (4, 1)), atol=1e-9)


def test_best_points_of_a_normal_are_its_optimal_quantiser():
    points = best_points(norm.ppf((np.arange(2000) + 0.5) / 2000)[None], n_rounds=400)
    np.testing.assert_allclose(points[0], [-1.724, -0.764, 0.0, 0.764, 1.724], atol=0.01)


def test_best_points_of_few_atoms_are_the_atoms():
    quantiles = np.repeat([-3.0, -1.0, 0.0, 2.0, 5.0], 20)[None]
    np.testing.assert_allclose(best_points(quantiles), [[-3.0, -1.0, 0.0, 2.0, 5.0]])


def test_measures_are_in_the_units_of_the_target():
    targets = np.array([0.0, 1.0])
    points = np.array([[0.5, 3.0], [1.0, 2.0]])
    given = Mixture(np.ones((2, 1)), np.zeros((2, 1)), np.ones((2, 1)))
    found = measures(Forecast(points, points, np.zeros(2), given, one_interval(-np.ones(2), np.ones(2))), targets, 10.0)
    assert found["distortion"] == pytest.approx(0.125 * 100)
    assert found["rmse"] == pytest.approx(10 * np.sqrt(0.5))
    assert found["width"] == pytest.approx(20)
    assert found["coverage"] == 1
    assert found["log_likelihood"] == pytest.approx(norm.logpdf([0.0, 10.0], 0, 10).mean())


def test_quantile_forest_of_one_leaf_gives_the_quantiles_of_the_table():
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(100, 2)), rng.normal(size=100)
    forest = QuantileForest(inputs, targets, leaf=100, seed=0)
    found = forest.quantiles(inputs[:2], np.array([0.25, 0.5]))
    expected = np.quantile(targets, [0.25, 0.5], method="inverted_cdf")
    np.testing.assert_allclose(found, np.tile(expected, (2, 1)), atol=0.2)  # each tree has rows of its own


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_each_method_gives_finite_measures(method, tmp_path, monkeypatch):
    monkeypatch.setattr(_rivals, "N_STEPS", 60)  # about 30 epochs of this small table
    monkeypatch.setattr(_rivals, "DensityRegressor", functools.partial(DensityRegressor, n_epochs=30))
    if method in PACKAGES:
        reason = f"{PACKAGES[method]} is a rival: pip install 'torchmcl[rivals]'"
        pytest.importorskip(PACKAGES[method], reason=reason)
    if method in WEIGHTS and WEIGHTS[method] not in os.environ:
        pytest.skip(f"{method} needs weights: {WEIGHTS[method]} names their file")
    records = Records(tmp_path / "records.csv")
    run(records, {"inverse": 1}, [method], n_rows=150)
    values = records.rows["inverse", 0, method]
    assert set(values) == set(MEASURES)
    assert all(np.isfinite(value) for value in values.values() if value is not None)
    assert values["distortion"] < 0.1


def stored(path, methods=("ours", "mdn"), n_folds=4):
    records = Records(path)
    for fold in range(n_folds):
        for place, method in enumerate(methods):
            values = {name: (1 + place) * (1 + 0.1 * fold) for name in MEASURES}
            records.add(("yacht", fold, method), values | {"log_likelihood": None})
    return records


def test_records_are_read_again_and_only_missing_ones_are_computed(tmp_path, monkeypatch):
    records = stored(tmp_path / "records.csv")
    again = Records(tmp_path / "records.csv")
    assert again.rows == records.rows
    monkeypatch.setattr("tabular.table_of", lambda *_: pytest.fail("nothing is missing"))
    run(again, {"yacht": 4}, ["ours", "mdn"])


def test_a_line_cut_off_is_left_out(tmp_path):
    path = tmp_path / "records.csv"
    stored(path)
    path.write_text(path.read_text() + "yacht,9,ours,0.5")
    assert ("yacht", 9, "ours") not in Records(path).rows


def test_forgotten_methods_are_gone_from_the_file(tmp_path):
    stored(tmp_path / "records.csv").forget(["mdn"])
    assert {key[2] for key in Records(tmp_path / "records.csv").rows} == {"ours"}


def test_summary_has_means_errors_and_paired_tests(tmp_path):
    records = stored(tmp_path / "records.csv")
    ours, rival = summary(records.rows)
    values = [1.0, 1.1, 1.2, 1.3]
    assert ours["distortion"]["mean"] == pytest.approx(np.mean(values))
    assert ours["distortion"]["standard_error"] == pytest.approx(np.std(values, ddof=1) / 2)
    assert "log_likelihood" not in ours
    assert ours["p_distortion"] is None
    assert rival["p_distortion"] == pytest.approx(0.125)  # all of four signs alike
    (row,) = overall(records.rows)
    assert row["distortion"]["ratio"] == pytest.approx(2)


def test_only_folds_of_all_methods_are_summed_up(tmp_path):
    records = stored(tmp_path / "records.csv")
    del records.rows["yacht", 2, "mdn"]
    assert {key[1] for key in complete(records.rows)} == {0, 1, 3}


def test_the_inverse_problem_is_standardised_by_its_training_part():
    table = table_of("inverse", 0, None, 200)
    assert table.test_inputs.shape == (20, 2)
    np.testing.assert_allclose(table.train_inputs.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(table.train_targets.std(), 1)
    assert len(FINE_LEVELS) == 99
