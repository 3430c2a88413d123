"""Every benchmark answers --help, a few run in small, and the tables of the documentation are those of the records."""

import argparse
import gzip
import importlib
import json
import runpy
import sys

import numpy as np
import pytest
import torch

from grids import for_each
from places import ROOT

SCRIPTS = sorted(path.relative_to(ROOT) for path in (ROOT / "benchmarks").rglob("[!_]*.py"))
TABLES = {
    "robustness": "separation_models_{}",
    "inverse": "inverse_{}",
    "segmentation": "segmentation_{}",
    "series": "series_results_{}",
    "speed": "speed_{}",
}


@pytest.fixture(autouse=True)
def found_from_the_root(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a script sets it when it is imported


def benchmark(name):
    """Return the module of a benchmark."""
    try:
        return importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name.startswith(("benchmarks", "torchmcl.")):
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_benchmark_answers_help(script, monkeypatch, capsys):
    module = ".".join(script.with_suffix("").parts)
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    benchmark(module.partition(".")[2])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


@for_each("name", TABLES)
def test_the_tables_of_the_documentation_are_those_of_the_records(name):
    for table, text in runpy.run_path(str(ROOT / "docs" / f"_{name}_tables.py"))["tables"]().items():
        page = ROOT / "docs" / f"{TABLES[name].format(table)}.inc"
        assert page.read_text(encoding="utf-8") == text, f"run python docs/_{name}_tables.py"


@for_each("name", ["contest", "pmlb"])
def test_the_tables_of_the_contest_are_those_of_the_records(name):
    script = runpy.run_path(str(ROOT / "docs" / "_contest_tables.py"))
    page = ROOT / "docs" / f"{name}.inc"
    assert page.read_text(encoding="utf-8") == script["contest"](script[name.upper()])


@pytest.mark.slow
def test_a_method_for_tables_is_measured_and_its_record_is_kept(tmp_path):
    tabular = benchmark("tables.tabular")
    records = tabular.Records(tmp_path / "records.csv")
    tabular.run(records, {"inverse": 2}, ["kmeans-residuals"], n_rows=150)
    values = records.rows["inverse", 0, "kmeans-residuals"]
    assert set(values) == set(tabular.MEASURES)
    assert all(np.isfinite(value) for value in values.values() if value is not None)
    assert tabular.Records(tmp_path / "records.csv").rows.keys() == records.rows.keys()


@pytest.mark.slow
def test_a_fit_of_a_large_table_is_timed_and_scored(monkeypatch):
    large_table = benchmark("tables.large_table")
    monkeypatch.setattr(large_table, "_N_TEST", 100)
    name, inputs, targets = next(large_table.tables(200, None))
    found = large_table.measured(name, inputs, targets, "cpu", n_epochs=5, n_restarts=1)
    assert found["fit_seconds"] > 0
    assert found["rmse"] < 1.2


def test_a_table_of_pmlb_is_packed_with_its_folds(tmp_path):
    pmlb = benchmark("tables.pmlb")
    assert len({*pmlb.CHOOSING, *pmlb.KEPT_APART}) == len(pmlb.CHOOSING) + len(pmlb.KEPT_APART) == 39
    lines = ["a\tb\ttarget", *(f"{i}\t{i % 3}\t{2 * i}" for i in range(20))]
    (tmp_path / "datasets").mkdir()
    with gzip.open(tmp_path / "datasets" / "some.tsv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    found = pmlb.packed(tmp_path, "some")
    assert (found["y"] == 2 * found["X"][:, 0]).all()
    assert (found["test"].sum(axis=0) == 1).all()


@pytest.mark.slow
def test_forecasts_are_measured_on_the_same_windows(monkeypatch):
    series = benchmark("series.series")
    monkeypatch.setattr(series, "N_WINDOWS", 4)
    values = np.random.default_rng(0).normal(size=(300, 2)).cumsum(axis=0) + 100
    frame = series.pd.DataFrame(values, index=series.pd.date_range("2024-01-01", periods=300))
    task = series.rolled(frame, 4, 1, inner=False, joint=True)
    options = {"n_steps": 10, "n_members": 1, "hidden": (8,), "batch_size": 32}
    forecaster, answers, _ = series.ours(task, options)
    units = [series.ends(forecaster, history).unit.view(-1, 1) for history in task.histories]
    values = series.measures(task, answers, units)
    assert len(answers) == 4
    assert np.isfinite(list(values.values())).all()
    assert values["crps"] < 0.2


@pytest.mark.slow
def test_posteriors_are_drawn_for_a_simulator(tmp_path):
    inverse = benchmark("inverse.inverse_problems")
    options = argparse.Namespace(simulations=300, steps=8, members=2, starts=[1.0, 3.0], decays=[0.02], samples=50)
    vars(options).update(seed=0, device="cpu", out=tmp_path)
    observations = {f"gaussian_mixture_{i}_observation": np.zeros((1, 2), np.float32) for i in range(1, 11)}
    inverse.run("gaussian_mixture", observations, options)
    with np.load(tmp_path / "gaussian_mixture-300-0.npz") as draws:
        assert {values.shape for values in draws.values()} == {(50, 2)}
    assert json.loads((tmp_path / "gaussian_mixture-300-0.json").read_text())["annealed"]["tried"]


@pytest.mark.slow
def test_the_postures_found_for_a_robot_reach_the_pose():
    robots = benchmark("inverse.robot_poses")
    poses = robots.space_hand(3 * torch.rand(3, 6) - 1.5)
    postures, weights = robots.solutions(poses, 6, robots.space_hand, n_starts=24)
    assert weights.sum() >= 3  # at least one posture for each pose
    reached = robots.space_hand(postures[weights > 0])
    torch.testing.assert_close(reached, poses[torch.where(weights > 0)[0]], rtol=0, atol=2e-3)


@pytest.mark.slow
def test_methods_of_the_segmentation_benchmark_are_trained_and_measured():
    segmentation = benchmark("segmentation.segmentation")
    line = torch.arange(96)
    labels = torch.zeros(1, 3, 96, 96, dtype=torch.uint8)  # three stripes, one region and nothing, by three people
    labels[:, 0, :64] = (1 + (line >= 30) + (line >= 60)).to(torch.uint8)
    labels[:, 1, :64] = 1
    data = segmentation.Pictures(torch.rand(1, 4, 96, 96), labels, torch.tensor([[64, 96]]))
    options = segmentation.Options(steps=2, batch=1, widths=(8,))
    name, method = next(iter(segmentation.METHODS.items()))
    record = segmentation.measured(name, method, {"train": data, "held-out": data}, 0, options)
    assert 0 <= record["16"]["energy distance"][0] < 2
