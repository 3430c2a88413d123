"""One cheap run of each benchmark that the documentation quotes; its tables are those of the stored records."""

import argparse
import gzip
import json
import runpy
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import torchmcl as mcl
from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["skpro-mdn", "xgboostlss", "treeffuser"])
def test_a_rival_with_its_own_package_gives_a_distribution_of_each_row(method):
    rivals = pytest.importorskip("_rivals", reason="needs scikit-learn and scipy")
    pytest.importorskip(rivals.PACKAGES[method])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    forecast = rivals.DENSITIES[method](x[:100], x[:100, 0], 0)(x[100:])
    assert forecast.points.shape == (20, 5)
    assert (np.diff(forecast.fine, axis=1) >= 0).all()
    assert forecast.mixture.crps(x[100:, 0]).mean() < 0.4  # 0.56 without the inputs


@pytest.mark.slow
def test_the_benchmark_of_large_tables_times_a_fit_and_scores_it(monkeypatch):
    large_table = pytest.importorskip("large_table", reason="needs torchmcl-tables")
    monkeypatch.setattr(large_table, "_N_TEST", 100)
    name, inputs, targets = next(large_table.tables(200, None))
    found = large_table.measured(name, inputs, targets, "cpu", n_epochs=5, n_restarts=1)
    assert (found["n_rows"], found["n_columns"]) == (200, 20)
    assert found["fit_seconds"] > 0
    assert found["rmse"] < 1.2


def test_every_condition_of_the_robustness_benchmark_gives_a_mixture_and_two_targets():
    pytest.importorskip("soundfile")
    from robustness import CONDITIONS
    from voices import voice

    sources = np.stack([voice(1, 20000), voice(2, 20000)])
    for name, condition in CONDITIONS.items():
        mixture, targets = condition(sources.copy(), np.random.default_rng(0))
        assert targets.shape == (2, *mixture.shape), name
        assert np.isfinite(mixture).all(), name


@pytest.mark.slow
def test_the_benchmark_of_series_measures_all_methods_on_the_same_windows(monkeypatch):
    series = pytest.importorskip("series", reason="needs torchmcl-forecast")
    monkeypatch.setattr(series, "N_WINDOWS", 4)
    rng = np.random.default_rng(0)
    frame = series.pd.DataFrame(rng.normal(size=(300, 2)), index=series.pd.date_range("2024-01-01", periods=300))
    for joint in (False, True):
        task = series.rolled(frame.cumsum() + 100, 4, 1, inner=False, joint=joint)
        options = {"n_steps": 10, "n_members": 1, "hidden": (8,), "batch_size": 32}
        forecaster, answers, more = series.ours(task, options)
        units = [series.ends(forecaster, history).unit.view(-1, 1) for history in task.histories]
        rivals = [name for name in series.RIVALS if name not in ("tide", "patch_tst")]
        found = [answers, *(series.RIVALS[name](task, forecaster) for name in rivals)]
        found = [series.measures(task, given, units) for given in found]
        assert len(answers) == series.N_WINDOWS
        assert 0 <= more["coverage_of_tubes"] <= 1
        assert all(np.isfinite(list(values.values())).all() and values["crps"] < 0.2 for values in found)


@pytest.mark.slow
def test_the_benchmark_of_tubes_measures_coverage_after_the_fit(monkeypatch):
    tubes = pytest.importorskip("series_tubes", reason="needs torchmcl-forecast")
    for kind in tubes.KINDS.values():
        assert np.isfinite(kind.made(np.random.default_rng(0), 2, np.arange(50))).all()
    monkeypatch.setattr(tubes, "N_WINDOWS", 2)
    options = {"random_state": 0, "n_steps": 8, "hidden": (8,), "batch_size": 32}
    found = tubes.measured(tubes.KINDS["walk"]._replace(n_series=4), options)
    assert found["n_paths"] == 8
    assert 0.5 <= found["coverage"] <= 1


@pytest.mark.slow
def test_the_benchmark_of_inverse_problems_simulates_fits_draws_and_compares(tmp_path):
    inverse = pytest.importorskip("inverse_problems")
    torch.manual_seed(0)
    for task in inverse.TASKS.values():
        assert task.simulate(torch.zeros(5, task.dim)).isfinite().all()
    theta = 2 * torch.rand(1000, 2) - 1
    mirrored = -theta.flip(-1)  # the other preimage of the two moons
    torch.manual_seed(1)
    seen = inverse.two_moons(theta)
    torch.manual_seed(1)
    torch.testing.assert_close(inverse.two_moons(mirrored), seen, rtol=1e-5, atol=1e-5)
    options = argparse.Namespace(
        simulations=300, steps=8, members=2, starts=[1.0, 3.0], decays=[0.02], samples=50, seed=0, device="cpu"
    )
    observations = {f"gaussian_mixture_{i}_observation": np.zeros((1, 2), np.float32) for i in range(1, 11)}
    inverse.run("gaussian_mixture", observations, argparse.Namespace(**vars(options), out=tmp_path))
    with np.load(tmp_path / "gaussian_mixture-300-0.npz") as draws:
        assert {values.shape for values in draws.values()} == {(50, 2)}
        assert max(np.abs(values).max() for values in draws.values()) <= inverse.TASKS["gaussian_mixture"].bound
    record = json.loads((tmp_path / "gaussian_mixture-300-0.json").read_text())
    assert record["annealed"]["held_out"] == pytest.approx(
        max(row[-1] for row in record["annealed"]["tried"]), abs=1e-3
    )
    for spread in (False, True):
        space = inverse.Space(3.0, spread)
        z = torch.randn(7, 2, dtype=torch.float64)
        volume = torch.stack([torch.autograd.functional.jacobian(space.back, row).diag().log().sum() for row in z])
        torch.testing.assert_close(space.log_volume(z), volume)
        torch.testing.assert_close(space.forward(space.back(z / 2)), z / 2)


@pytest.mark.slow
def test_the_classifier_of_draws_tells_distant_points_apart():
    c2st = pytest.importorskip("inverse_c2st", reason="needs scikit-learn").c2st
    rows = np.random.default_rng(0).normal(size=(40, 2))
    assert c2st(rows[:20], rows[20:] + 9) == 1


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
    postures, weights = robots.solutions(robots.space_hand(angles.float()[:3]), 6, robots.space_hand, n_starts=24)
    reached = robots.space_hand(postures[weights > 0])
    assert weights.sum() >= 3  # at least one posture for each pose
    torch.testing.assert_close(
        reached, robots.space_hand(angles.float()[:3])[torch.where(weights > 0)[0]], rtol=0, atol=2e-3
    )
    straight = robots.plane_hand(torch.zeros(1, 3))
    torch.testing.assert_close(straight, torch.tensor([[sum(robots.LENGTHS), 0.0]]))


def nested_pictures(segmentation, n=2):
    """Return pictures of three stripes; a second annotator drew one region, a third none."""
    line = torch.arange(96)
    labels = torch.zeros(n, 3, 96, 96, dtype=torch.uint8)
    labels[:, 0, :64] = (1 + (line >= 30) + (line >= 60)).to(torch.uint8)
    labels[:, 1, :64] = 1
    pixels = torch.zeros(n, 4, 96, 96)
    pixels[:, 0], pixels[:, 3, :64] = labels[:, 0].float(), 1
    return segmentation.Pictures(pixels, labels, torch.tensor([[64, 96]] * n))


def test_the_targets_of_a_click_are_the_regions_of_the_annotators_that_contain_it():
    segmentation = pytest.importorskip("segmentation")
    torch.manual_seed(0)
    data = nested_pictures(segmentation)
    straight = segmentation.windows(data, torch.tensor([0]), torch.tensor([[10.0, 31.0]]), torch.eye(2)[None])
    middle = segmentation.SIDE // 2
    columns = straight.targets[0, 0, middle].nonzero().flatten() - middle + 31  # of the picture
    assert columns.tolist() == list(range(30, 60))
    assert straight.targets[0, 1].sum() == 42 * 63  # rows 0 to 41 and columns 0 to 62 of the picture
    assert straight.mask.tolist() == [[True, True, False]]
    for batch in (straight, segmentation.training_batch(data, 6), segmentation.clicked(data, 1)):
        assert batch.targets[..., middle, middle].min() == 1
        assert not batch.mask[:, 2].any()
    moved = segmentation.training_batch(
        data._replace(pixels=data.pixels.roll(1, dims=1)), 6
    )  # light keeps this channel
    inside = moved.inputs[:, 0] > 0.99
    torch.testing.assert_close(moved.targets[:, 1][inside], torch.ones(int(inside.sum())))


@pytest.mark.slow
def test_every_method_of_the_benchmark_of_segmentations_learns_answers_and_is_measured():
    segmentation = pytest.importorskip("segmentation")
    data = nested_pictures(segmentation, 1)
    options = segmentation.Options(steps=2, batch=1, widths=(8,))
    for name, method in segmentation.METHODS.items():
        small = replace(method, n_members=2) if name == "ensemble of five" else method
        record = segmentation.measured(name, small, {"train": data, "held-out": data}, 0, options)
        assert 0 <= record["16"]["energy distance"][0] < 2, name
        assert 0 <= record["16"]["best"][0] <= 1, name


def test_the_trained_energy_distance_is_that_of_the_metric_without_the_part_of_the_annotators():
    segmentation = pytest.importorskip("segmentation")
    torch.manual_seed(0)
    truth, mask = torch.rand(3, 4, 5, 5).round(), torch.tensor([[True, True, True, False]] * 3)
    logits, scores = 50 * torch.randn(3, 6, 5, 5).sign(), torch.randn(3, 6)
    found = segmentation.energy_distance(mcl.Predictions(logits, scores), truth, mask)
    given = {"mask": mask, "scores": mcl.SoftmaxScores()}
    own = mcl.metrics.generalized_energy_distance(mcl.Predictions(logits, scores), truth, **given)
    everywhere = mcl.Predictions(torch.ones(3, 1, 5, 5))  # d(Y, Y') from the distance of a constant answer
    far = segmentation.pairwise_iou(hypotheses=everywhere.hypotheses, targets=truth, hard=True, smooth=1e-6)
    constant = mcl.metrics.generalized_energy_distance(everywhere, truth, mask)
    among = 2 * far.squeeze(-1)[mask].mean() - constant
    torch.testing.assert_close(found, own + among, rtol=0, atol=2e-3)


def test_reduced_annotations_keep_regions_and_reduced_pictures_mean_colors():
    reduction = pytest.importorskip("segmentation_data")
    labels = np.full((321, 481), 7)
    labels[:, 300:] = 3
    reduced = reduction.reduced_labels(labels)
    assert reduced.shape == (64, 96)
    assert reduced[0].tolist() == [2] * 60 + [1] * 36
    picture = np.zeros((481, 321, 3), dtype=np.uint8)
    picture[:5, :5] = np.arange(25).reshape(5, 5, 1)
    small = reduction.reduced_picture(picture)
    assert small.shape == (96, 64, 3)
    assert small[0, 0].tolist() == [12, 12, 12]
    assert reduction.lying(small).shape == (64, 96, 3)


@pytest.mark.slow
def test_the_benchmark_of_fleets_of_models_compares_a_fleet_with_loops_and_a_floor(monkeypatch):
    fleet_models = pytest.importorskip("fleet_models")
    monkeypatch.setattr(fleet_models, "WINDOW", 3)
    monkeypatch.setattr(fleet_models, "BATCH", 8)
    limits = {"flops": 1e9, "bytes": 1e9}
    row = fleet_models.compared("GRU", 2, 1, "cpu", limits)
    assert {
        "fleet_ms",
        "loop_ms",
        "loop_of_fleets_of_one_ms",
        "floor_ms",
    } <= row.keys()  # not their values: others may be busy
    # The products of the gates of all rows and steps, forward and backward, but for the gradient of the inputs.
    gates = 3 * fleet_models.WIDTH * (2 * fleet_models.CHANNELS + 3 * fleet_models.WIDTH)
    n_operations, _ = fleet_models.work_of_step(fleet_models.recurrent, fleet_models.rows_of_step())
    assert 2 * gates * fleet_models.WINDOW * fleet_models.BATCH == pytest.approx(n_operations, rel=0.1)


def test_the_tables_of_the_documentation_are_those_of_the_records():
    tables = runpy.run_path(str(ROOT / "docs" / "_robustness_tables.py"))["tables"]()
    for name, text in tables.items():
        assert (ROOT / "docs" / f"separation_models_{name}.inc").read_text() == text
    for name, text in runpy.run_path(str(ROOT / "docs" / "_inverse_tables.py"))["tables"]().items():
        assert (ROOT / "docs" / f"inverse_{name}.inc").read_text(encoding="utf-8") == text
    for name, text in runpy.run_path(str(ROOT / "docs" / "_segmentation_tables.py"))["tables"]().items():
        assert (ROOT / "docs" / f"segmentation_{name}.inc").read_text(encoding="utf-8") == text
    for name, text in runpy.run_path(str(ROOT / "docs" / "_series_tables.py"))["tables"]().items():
        assert (ROOT / "docs" / f"series_results_{name}.inc").read_text(encoding="utf-8") == text
    for name, text in runpy.run_path(str(ROOT / "docs" / "_speed_tables.py"))["tables"]().items():
        assert (ROOT / "docs" / f"speed_{name}.inc").read_text(encoding="utf-8") == text
    script = runpy.run_path(str(ROOT / "docs" / "_contest_tables.py"))
    for name in ("contest", "pmlb"):
        text = script["contest"](script[name.upper()])
        found = (ROOT / "docs" / f"{name}.inc").read_text(encoding="utf-8")
        assert found == text, "run python docs/_contest_tables.py"


def test_the_halves_of_pmlb_have_no_table_in_common():
    from pmlb import CHOOSING, KEPT_APART

    assert len({*CHOOSING, *KEPT_APART}) == len(CHOOSING) + len(KEPT_APART) == 39


def test_a_table_of_pmlb_is_packed_with_its_folds(tmp_path):
    from pmlb import packed

    lines = ["a\tb\ttarget", *(f"{i}\t{i % 3}\t{2 * i}" for i in range(20))]
    (tmp_path / "datasets").mkdir()
    with gzip.open(tmp_path / "datasets" / "some.tsv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    found = packed(tmp_path, "some")
    assert found["X"].shape == (20, 2)
    assert (found["y"] == 2 * found["X"][:, 0]).all()
    assert (found["test"].sum(axis=0) == 1).all()
    assert len(packed(tmp_path, "some", n_rows=10)["y"]) == 10
    with pytest.raises(FileNotFoundError, match=r"other\.tsv\.gz is not below"):
        packed(tmp_path, "other")


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
    soak, psutil = pytest.importorskip("soak", reason="needs polars"), pytest.importorskip("psutil")
    process = psutil.Process()
    assert soak.estimator_round(0, tmp_path) == 8 * 15  # makes what later rounds share
    files, threads = least(process.num_fds, seconds=1.0), least(process.num_threads, seconds=1.0)
    assert soak.estimator_round(1, tmp_path) == 8 * 15
    assert least(process.num_fds, files) <= files
    assert least(process.num_threads, threads) <= threads
