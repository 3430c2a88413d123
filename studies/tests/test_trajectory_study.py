"""The study of pedestrians: rows and frames, drawing, records that resume, the command and its page."""

import json
import os

import numpy as np
import pytest
import torch

import places
from browser import console_errors, opened
from grids import for_each
from torchmcl.app import main
from torchmcl.types import Distributions
from torchmcl_studies.data import pedestrians
from torchmcl_studies.reports.trajectories import overall_rows, paired_rows, results_of, write_trajectories_page
from torchmcl_studies.trajectories import study, training
from torchmcl_studies.trajectories.methods import METHODS
from torchmcl_studies.trajectories.network import N_INPUTS, Drawing, PathNetwork, Rows, load_rows, own_frame, rows_of
from walkers import write_walkers

SHARED = places.SHARED / "pedestrians"


@pytest.fixture(scope="module")
def walkers(tmp_path_factory):
    return write_walkers(tmp_path_factory.mktemp("walkers"))


def recording(n_people=9, n_frames=24):
    generator = np.random.default_rng(3)
    rows = [
        (10 * (i + person % 3), person, *generator.normal(size=2))
        for person in range(n_people)
        for i in range(n_frames)
    ]
    return pedestrians.Recording.from_rows(np.array(rows))


def nearest_by_loops(one, frame, person, direction):
    """Return the people around somebody as plain loops find them."""
    at = {(f, p): xy for f, p, xy in zip(one.frames, one.persons, one.positions, strict=True)}
    here = at[frame, person]
    others = [p for f, p in at if f == frame and p != person]
    others.sort(key=lambda p: ((at[frame, p] - here) ** 2).sum())
    out = np.zeros((6, 5))
    for place, p in enumerate(others[:6]):
        before = at.get((frame - direction * one.step, p))
        out[place] = [*(at[frame, p] - here), *(np.zeros(2) if before is None else at[frame, p] - before), 1]
    return out


@for_each("backwards", [False, True])
def test_rows_have_the_nearest_people_at_their_present(backwards):
    one = recording()
    samples, rows = pedestrians.windows(one), rows_of([one], backwards=backwards)
    whole = torch.cat([samples.observed, samples.future], dim=1)
    torch.testing.assert_close(rows.paths, whole.flip(1) if backwards else whole)
    for row in range(len(samples)):
        frame = int(samples.frame[row]) + one.step * (12 if backwards else 7)
        expected = nearest_by_loops(one, frame, int(samples.person[row]), -1 if backwards else 1)
        np.testing.assert_allclose(rows.near[row], expected, atol=1e-5)


def turned(positions, angle):
    c, s = np.cos(angle), np.sin(angle)
    return positions @ torch.tensor([[c, s], [-s, c]], dtype=positions.dtype)


def test_a_turned_and_shifted_scene_looks_the_same():
    rows = rows_of([recording()])
    observed, near = rows.paths[:, :8].double(), rows.near.double()
    inputs, frame = own_frame(observed, near)
    around = torch.cat([turned(near[..., :2], 0.7), turned(near[..., 2:4], 0.7), near[..., 4:]], dim=-1)
    others, other_frame = own_frame(turned(observed, 0.7) + 5, around)
    assert inputs.shape[-1] == N_INPUTS
    torch.testing.assert_close(inputs, others)
    offsets = torch.randn(len(rows.paths), 3, 12, 2, dtype=torch.float64)
    positions = frame.positions(offsets)
    torch.testing.assert_close(turned(positions, 0.7) + 5, other_frame.positions(offsets))
    torch.testing.assert_close(frame.offsets(positions[:, 0]), offsets[:, 0])


def test_who_stands_still_has_finite_inputs():
    inputs, frame = own_frame(torch.zeros(2, 8, 2), torch.zeros(2, 6, 5))
    assert inputs.isfinite().all()
    assert frame.positions(torch.zeros(2, 1, 12, 2)).abs().max() == 0


def test_an_absent_person_has_no_influence():
    network = PathNetwork().eval()
    rows = rows_of([recording()])
    hidden = rows.near.clone()
    hidden[..., 4] = 0
    other = torch.randn_like(hidden)
    other[..., 4] = 0
    first, second = (network(own_frame(rows.paths[:, :8], near)[0]).hypotheses for near in (hidden, other))
    torch.testing.assert_close(first, second)
    assert isinstance(PathNetwork(scales=True)(torch.zeros(2, N_INPUTS)), Distributions)


def test_batches_of_scenes_hold_whole_scenes(walkers):
    train, backwards, _ = load_rows("eth", walkers)
    drawing = Drawing(train, backwards, group_size=32)
    batch = drawing(128, torch.Generator().manual_seed(0))
    assert batch.mask.view(4, 32).sum(-1).tolist() == [4] * 4  # four people walk in all scenes
    assert drawing.scenes(128, "cpu").bincount().tolist() == [32] * 4
    again = drawing(128, torch.Generator().manual_seed(0))
    assert torch.equal(batch.inputs, again.inputs)


def test_recordings_are_drawn_by_the_power_of_their_size():
    n = torch.tensor([100, 1600])
    paths = torch.zeros(1700, 20, 2)
    paths[:100] += 7  # tells the recordings apart
    rows = Rows(paths, torch.zeros(1700, 6, 5), torch.arange(1700), torch.arange(2).repeat_interleave(n))
    drawing = Drawing(rows, rows)
    drawing._paths[:, 8:] += torch.cat([torch.ones(100), torch.zeros(1600)] * 2)[:, None, None]
    batch = drawing(20_000, torch.Generator().manual_seed(0))
    share = float((batch.targets.abs().amax((1, 2, 3)) > 0.5).float().mean())
    assert share == pytest.approx(100**0.7 / (100**0.7 + 1600**0.7), abs=0.015)


def test_a_perfect_forecast_scores_perfectly():
    rows = rows_of([recording()])
    paths = rows.paths[:, None, 8:].repeat(1, 3, 1, 1)
    paths[:, 1:] += 10
    scores = torch.tensor([1.0, 0.0, 0.0]).expand(len(paths), 3)
    numbers = training.numbers_of(training.Forecast(paths, scores), rows)
    for name in ("min_ade", "min_fde", "min_ade_of_final", "top1_ade", "top1_fde", "misses", "brier_fde", "joint_ade"):
        assert numbers[name] == 0
    assert numbers["calibration"] == [[0.0, 0.0, 2 * len(paths)], [1.0, 1.0, len(paths)]]


def test_a_rerun_trains_only_what_is_missing(walkers, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "STEPS_PER_EPOCH", 2)
    small = {"scenes": ("hotel",), "n_epochs": 1, "batch_size": 32, "data": walkers}
    first = study.run_study(study.TrajectoryStudy(**small, methods=("mcl",)), tmp_path, progress=False)
    lines = (tmp_path / "records.jsonl").read_text()
    trained = []
    real = study._trained

    def spy(kind, models, *rest):
        trained.extend((method.name, seed) for method, seed in models)
        return real(kind, models, *rest)

    monkeypatch.setattr(study, "_trained", spy)
    both = study.TrajectoryStudy(**small, methods=("constant-velocity", "mcl"), n_seeds=2)
    records = study.run_study(both, tmp_path, progress=False)
    assert trained == [("constant-velocity", 0), ("mcl", 1)]
    assert (tmp_path / "records.jsonl").read_text().startswith(lines)
    assert records.rows.keys() - first.rows.keys() == {("hotel", "constant-velocity", 0), ("hotel", "mcl", 1)}
    with pytest.raises(ValueError, match="was made with 1 epochs, not 2"):
        study.run_study(study.TrajectoryStudy(**{**small, "n_epochs": 2}), tmp_path, progress=False)


@pytest.fixture(scope="module")
def folder(walkers, tmp_path_factory):
    """The command with every method, on recordings that are made up."""
    out = tmp_path_factory.mktemp("trajectories")
    command = ["reproduce", "trajectories", "--quick", "--epochs", "2", "--quiet", "--data", str(walkers)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "STEPS_PER_EPOCH", 2)
        assert main([*command, "--out", str(out)]) == 0
    return out


def test_the_command_writes_records_and_page(folder):
    rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert [row["method"] for row in rows] == list(METHODS)
    assert all(np.isfinite(row["min_fde"]) and row["min_ade"] <= row["top1_ade"] for row in rows)
    assert [row["nll"] is not None for row in rows] == [METHODS[row["method"]].kind == "mixture" for row in rows]
    assert "<h1>Where people walk next</h1>" in (folder / "index.html").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["forks.jsonl", "index.html", "records.jsonl"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recordings of ETH/UCY are not beside the repository")
def test_a_network_learns_something_from_the_recordings_in_a_few_steps(tmp_path):
    command = ["reproduce", "trajectories", "--quick", "--epochs", "2", "--quiet", "--data", os.fspath(SHARED)]
    assert main([*command, "--methods", "constant-velocity,mcl", "--out", str(tmp_path)]) == 0
    straight, learnt = (json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines())
    assert straight["windows"] == 364
    assert straight["min_ade"] == pytest.approx(1.08, abs=0.01)
    assert learnt["min_ade"] < 0.7 * straight["min_ade"]


def made_up_records():
    metrics = ("min_ade", "min_fde", "min_ade_of_final", "top1_ade", "top1_fde", "misses", "brier_fde")
    metrics += ("joint_ade", "joint_fde", "collisions")
    rows = []
    for place, (name, method) in enumerate(METHODS.items()):
        for number, scene in enumerate(pedestrians.SCENES):
            for seed in range(1 if method.kind == "none" else 3):
                value = 0.1 + 0.1 * number + 0.01 * place + 0.001 * seed
                row = {"scene": scene, "method": name, "seed": seed, "epochs": 370, "windows": 100, "seconds": 1.0}
                row |= dict.fromkeys(metrics, value)
                row |= {"nll": value if method.kind == "mixture" else None, "calibration": [[0.1, 0.2, 50]]}
                rows.append(row)
    return rows


def test_tables_are_means_over_scenes_with_the_spread_of_seeds():
    results = results_of(made_up_records())
    rows = {row[0]: row for row in overall_rows(results)}
    mcl = rows["MCL (WTA)"]
    assert mcl[1:3] == ["3", "0.311 / 0.311 | ± 0.001 / 0.001"]
    assert mcl[-1] == ""
    tested = {row[0]: row[1] for row in paired_rows(results)}
    assert tested["Relaxed-WTA (ε = 0.1)"].startswith("+0.0100 | p = ")
    assert "constant velocity" not in tested


@pytest.mark.slow
def test_the_page_shows_everything_without_console_errors(folder, tmp_path):
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made_up_records()))
    (tmp_path / "forks.jsonl").write_text((folder / "forks.jsonl").read_text())
    with opened(write_trajectories_page(tmp_path), width=500) as driver:
        text = driver.find_element("tag name", "body").text
        for title in ("All methods", "Published results", "Paired tests", "Joint winners", "Forks", "By scene"):
            assert title in text
        pictures = driver.find_elements("css selector", "img")
        assert [int(picture.get_property("naturalWidth")) > 500 for picture in pictures] == [True, True]
        assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")
        assert console_errors(driver) == []
