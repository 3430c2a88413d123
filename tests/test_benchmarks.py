"""One cheap run of each benchmark that the documentation quotes; its tables are those of the stored records."""

import runpy
import sys
import time

import numpy as np
import psutil
import pytest
import torch

from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))


def test_a_method_of_the_tabular_benchmark_gives_finite_measures_that_are_stored(tmp_path):
    tabular = pytest.importorskip("tabular", reason="needs scikit-learn and scipy")
    records = tabular.Records(tmp_path / "records.csv")
    tabular.run(records, {"inverse": 2}, ["kmeans-residuals"], n_rows=150)
    values = records.rows["inverse", 0, "kmeans-residuals"]
    assert set(values) == set(tabular.MEASURES)
    assert all(np.isfinite(value) for value in values.values() if value is not None)
    assert tabular.Records(tmp_path / "records.csv").rows.keys() == records.rows.keys()
    (row,) = tabular.summary(records.rows)
    assert row["distortion"]["mean"] > 0


def test_every_condition_of_the_robustness_benchmark_gives_a_mixture_and_two_targets():
    pytest.importorskip("soundfile")
    from robustness import CONDITIONS
    from voices import voice

    sources = np.stack([voice(1, 20000), voice(2, 20000)])
    for name, condition in CONDITIONS.items():
        mixture, targets = condition(sources.copy(), np.random.default_rng(0))
        assert targets.shape == (2, *mixture.shape), name
        assert np.isfinite(mixture).all(), name


def test_the_benchmark_of_series_measures_all_methods_on_the_same_windows():
    series = pytest.importorskip("series", reason="needs torchmcl-forecast")
    rng = np.random.default_rng(0)
    frame = series.pd.DataFrame(rng.normal(size=(300, 2)), index=series.pd.date_range("2024-01-01", periods=300))
    for joint in (False, True):
        task = series.rolled(frame.cumsum() + 100, 4, 1, inner=False, joint=joint)
        options = {"n_steps": 10, "n_members": 1, "hidden": (8,), "batch_size": 32}
        forecaster, answers, more = series.ours(task, options)
        units = [series.ends(forecaster, history).unit.view(-1, 1) for history in task.histories]
        rivals = [name for name in series.RIVALS if name != "tide"]
        found = [answers, *(series.RIVALS[name](task, forecaster) for name in rivals)]
        found = [series.measures(task, given, units) for given in found]
        assert len(answers) == series.N_WINDOWS
        assert 0 <= more["coverage_of_tubes"] <= 1
        assert all(np.isfinite(list(values.values())).all() and values["crps"] < 0.2 for values in found)


def test_the_benchmark_of_inverse_problems_simulates_fits_draws_and_compares():
    inverse = pytest.importorskip("inverse_problems", reason="needs scikit-learn")
    torch.manual_seed(0)
    for task in inverse.TASKS.values():
        assert task.simulate(torch.zeros(5, task.dim)).isfinite().all()
    theta = 2 * torch.rand(1000, 2) - 1
    mirrored = -theta.flip(-1)  # the other preimage of the two moons
    torch.manual_seed(1)
    seen = inverse.two_moons(theta)
    torch.manual_seed(1)
    torch.testing.assert_close(inverse.two_moons(mirrored), seen, rtol=1e-5, atol=1e-5)
    task = inverse.TASKS["gaussian_mixture"]
    theta = theta * task.bound
    options = {"annealed": True, "n_steps": 25, "n_networks": 2}
    fitted = inverse.fit(task, theta, task.simulate(theta), spread=True, **options)
    drawn = inverse.posterior_samples(fitted, torch.zeros(2), 200)
    assert np.isfinite(fitted.likelihood)
    assert drawn.abs().max() <= task.bound
    rows = np.random.default_rng(0).normal(size=(40, 2))
    assert inverse.c2st(rows[:20], rows[20:] + 9) == 1


def test_the_arms_of_the_benchmark_of_robots_have_several_postures_for_a_pose():
    robots = pytest.importorskip("robot_poses")
    angles = 3 * torch.rand(50, 6, dtype=torch.float64) - 1.5
    turned = angles.clone()
    turned[:, 3:] = angles[:, 3:] * torch.tensor([1.0, -1.0, 1.0]) + torch.tensor([torch.pi, 0.0, torch.pi])
    torch.testing.assert_close(
        robots.space_hand(turned.float()), robots.space_hand(angles.float()), rtol=1e-4, atol=1e-5
    )
    pose = robots.space_hand(angles.float())[:, 3:]
    assert (pose[:, :3] * pose[:, 3:]).sum(-1).abs().max() < 1e-5
    straight = robots.plane_hand(torch.zeros(1, 3))
    torch.testing.assert_close(straight, torch.tensor([[sum(robots.LENGTHS), 0.0]]))


def test_the_tables_of_the_documentation_are_those_of_the_records():
    tables = runpy.run_path(str(ROOT / "docs" / "_robustness_tables.py"))["tables"]()
    for name, text in tables.items():
        assert (ROOT / "docs" / f"separation_models_{name}.inc").read_text() == text
    for name, text in runpy.run_path(str(ROOT / "docs" / "_series_tables.py"))["tables"]().items():
        assert (ROOT / "docs" / f"results_series_{name}.inc").read_text(encoding="utf-8") == text
    contest = runpy.run_path(str(ROOT / "docs" / "_contest_tables.py"))["contest"]()
    assert (ROOT / "docs" / "contest.inc").read_text(encoding="utf-8") == contest, "run python docs/_contest_tables.py"


def least(count, enough=-1, seconds=3.0):
    """Return the lowest count within some seconds: helper threads end a moment after their work."""
    end, lowest = time.monotonic() + seconds, count()
    while lowest > enough and time.monotonic() < end:
        time.sleep(0.1)
        lowest = min(lowest, count())
    return lowest


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_soak_of_8_threads_leaves_no_files_or_threads_open(tmp_path):
    soak = pytest.importorskip("soak", reason="needs polars")
    process = psutil.Process()
    assert soak.estimator_round(0, tmp_path) == 8 * 15  # makes what later rounds share
    files, threads = least(process.num_fds, seconds=1.0), least(process.num_threads, seconds=1.0)
    assert soak.estimator_round(1, tmp_path) == 8 * 15
    assert least(process.num_fds, files) <= files
    assert least(process.num_threads, threads) <= threads
