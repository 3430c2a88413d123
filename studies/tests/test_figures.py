"""The figures: every claim of a caption holds on the records, and the page shows them in a real browser."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from figure_presets import WITH_INPUT, WITHOUT_INPUT

from browser import console_errors, opened
from grids import for_each
from torchmcl.app import main
from torchmcl_fleet import SGD, Adam
from torchmcl_fleet.demo.gaussians import conditional_covariance, conditional_three_gaussians
from torchmcl_studies.figures import FIGURES
from torchmcl_studies.figures.settings import conditional, unconditional
from torchmcl_studies.reports.figures import write_figure, write_figures_page


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Run all figures at a size of seconds; return their folder and claims."""
    folder = tmp_path_factory.mktemp("figures")
    claims = {}
    for name, figure in FIGURES.items():
        settings = WITH_INPUT if figure.settings is conditional else WITHOUT_INPUT
        claims[name] = figure.run(folder / name, settings, progress=False)
        write_figure(name, folder)
    return folder, claims


def rows_of(folder, name, table):
    with (folder / name / f"{table}.csv").open() as file:
        return list(csv.DictReader(file))


def by_method(rows, column):
    methods = dict.fromkeys(row["method"] for row in rows)
    return [[float(row[column]) for row in rows if row["method"] == method] for method in methods]


@for_each("name", FIGURES)
def test_every_claim_of_the_caption_holds_on_the_records(figures, name):
    _, claims = figures
    assert len(claims[name]) >= 4
    assert [claim.text for claim in claims[name] if not claim.holds] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", FIGURES)
def test_the_claims_hold_on_a_gpu_too(name, tmp_path):
    small = WITH_INPUT if FIGURES[name].settings is conditional else replace(WITHOUT_INPUT, targets_per_row=25)
    claims = FIGURES[name].run(tmp_path / name, replace(small, device="cuda"), progress=False)
    assert [claim.text for claim in claims if not claim.holds] == []


def test_figure1_annealing_wins_with_every_seed(figures):
    folder, _ = figures
    rows = rows_of(folder, "figure1", "results")
    mcl, relaxed, annealed = by_method(rows, "distortion")
    assert max(annealed) < min(mcl) < min(relaxed)
    mcl, relaxed, annealed = by_method(rows, "starved")
    assert max(annealed) < min(mcl) <= min(relaxed)
    _, relaxed, annealed = by_method(rows, "pulled_to_the_middle")
    assert max(annealed) == 0 < 0.5 < min(relaxed)


def test_rate_distortion_no_state_is_below_the_curve(figures):
    folder, _ = figures
    curve = [(float(r["distortion"]), float(r["rate"])) for r in rows_of(folder, "rate-distortion", "curve")]
    for row in rows_of(folder, "rate-distortion", "trajectories"):
        distortion = float(row["soft_distortion"])
        bound = max((rate for d, rate in curve if d >= distortion), default=0.0)
        assert float(row["rate"]) > bound - 0.12


def test_rate_distortion_the_plus_is_on_the_curve_and_the_lower_bound_below(figures):
    folder, _ = figures
    marks = json.loads((folder / "rate-distortion" / "summary.json").read_text())["marks"]
    # Two directions of deviations 0.3 and 0.15: R = log2(2 * 0.3 * 0.15 / D).
    assert marks["best_distortion"] == pytest.approx(0.09 / 49)
    assert marks["max_distortion"] == pytest.approx(0.1125)
    for row in rows_of(folder, "rate-distortion", "curve"):
        assert float(row["shannon_lower_bound"]) <= float(row["rate"]) + 1e-5


def test_distortion_falls_below_the_bound_and_not_above(figures):
    folder, _ = figures
    rows = [
        (float(r["temperature"]), float(r["distortion"])) for r in rows_of(folder, "distortion-vs-temperature", "curve")
    ]
    marks = json.loads((folder / "distortion-vs-temperature" / "summary.json").read_text())["marks"]
    assert (marks["critical"], marks["local"]) == pytest.approx((0.501, 0.464), abs=1e-3)
    assert marks["of_one_gaussian"] == pytest.approx(0.02)
    plateau = [d for t, d in rows if marks["critical"] < t < 0.8]
    assert min(plateau) > 0.8 * max(plateau)
    assert max(d for t, d in rows if t < 0.2) < 0.5 * min(plateau)


def test_phase_transitions_of_larger_variance_come_first(figures):
    folder, _ = figures
    rows = rows_of(folder, "phase-transitions", "splits")
    for seed in {row["seed"] for row in rows}:
        observed = [float(row["observed_temperature"]) for row in rows if row["seed"] == seed]
        predicted = [float(row["predicted_temperature"]) for row in rows if row["seed"] == seed]
        assert observed == sorted(observed)
        assert predicted == sorted(predicted)
        assert min(observed) > 0


def test_annealed_epsilon_leaves_hypotheses_in_the_middle(figures):
    folder, _ = figures
    epsilon, annealed = by_method(rows_of(folder, "annealed-epsilon", "results"), "in_the_middle")
    assert min(epsilon) > 20
    assert max(annealed) == 0


@for_each("name", FIGURES)
def test_a_figure_is_written_as_picture_table_and_caption(figures, name):
    folder, claims = figures
    assert (folder / name / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / name / f"{name}.svg").read_text()
    assert list((folder / name).glob("*.csv"))
    caption = (folder / name / "caption.txt").read_text()
    assert all(claim.text in caption for claim in claims[name])


def test_a_picture_is_drawn_from_the_records_alone(figures, tmp_path):
    folder, _ = figures
    for name in ("figure1", "distortion-vs-temperature"):
        (tmp_path / name).mkdir()
        for file in [*(folder / name).glob("*.csv"), folder / name / "summary.json"]:
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
        assert write_figure(name, tmp_path).read_bytes() == (folder / name / f"{name}.png").read_bytes()


@pytest.mark.slow
def test_the_page_shows_all_figures_and_the_film(figures):
    folder, claims = figures
    with opened(write_figures_page(folder)) as driver:
        pictures = driver.find_elements("css selector", "img")
        assert len(pictures) == len(FIGURES)
        assert all(int(picture.get_property("naturalWidth")) > 500 for picture in pictures)
        assert len(driver.find_elements("css selector", ".claims li")) == sum(map(len, claims.values()))
        move = (
            "const s = document.getElementById('film-frame'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('input'));"
        )
        pixels = "return document.getElementById('film').toDataURL()"
        driver.execute_script(move, 0)
        first = driver.execute_script(pixels)
        driver.execute_script(move, 10)
        assert driver.execute_script(pixels) != first
        labels = "return document.getElementById('film').film.methods.map(m => m.label)"
        assert driver.execute_script(labels) == ["MCL", "Relaxed-WTA", "annealed MCL"]
        assert console_errors(driver) == []
        driver.set_window_size(500, 1600)
        assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")


# ------------------------------------------------------------------ settings and the command


def test_the_paper_preset_is_that_of_the_appendix():
    for settings in (unconditional("paper"), conditional("paper")):
        assert (settings.n_epochs, settings.n_points, settings.hidden, settings.n_hypotheses) == (
            1000,
            100_000,
            (256, 256),
            49,
        )
        assert settings.learning_rate == 0.01
        assert settings.n_held_out == 25_000
        assert settings.record_every == 5
    assert unconditional("paper").optimizer == SGD()
    assert unconditional("paper").n_seeds == 10
    assert conditional("paper").optimizer == Adam()
    cooling = unconditional("paper").exponential()
    assert cooling(0) == 0.6
    assert cooling(1) == pytest.approx(0.6 * 0.99)
    assert conditional("paper").linear(1.0)(744) == pytest.approx(0.256)


def test_the_quick_cooling_covers_the_same_temperatures():
    quick, paper = unconditional("quick"), unconditional("paper")
    assert quick.exponential()(quick.n_epochs) == pytest.approx(paper.exponential()(paper.n_epochs))


def test_a_training_too_short_to_show_anything_says_so(tmp_path):
    name = "figure1"
    short = {"n_epochs": 3, "n_points": 1000, "batch_size": 500, "n_held_out": 500, "n_seeds": 1}
    settings = replace(FIGURES[name].settings("paper", "cpu"), **short)
    claims = FIGURES[name].run(tmp_path / name, settings, progress=False)
    assert not all(claim.holds for claim in claims)
    write_figure(name, tmp_path)
    assert "Not confirmed by this run" in (tmp_path / name / "caption.txt").read_text()


def test_the_command_runs_a_figure_and_joins_the_page(tmp_path, capsys):
    options = ["--epochs", "3", "--preset", "quick", "--quiet"]
    assert main(["reproduce", "annealed-epsilon", "--out", str(tmp_path), *options]) == 0
    out = capsys.readouterr().out
    assert "annealed-epsilon.png" in out
    assert "still there when epsilon has reached 0" in out
    assert (tmp_path / "index.html").exists()


# ------------------------------------------------------------------ the data


def test_the_conditional_covariance_is_that_of_the_samples():
    batch = conditional_three_gaussians(400_000, torch.Generator().manual_seed(0))
    near = (batch.inputs[:, 0] - 0.9).abs() < 0.02
    sample = torch.cov(batch.targets[near, 0].mT)
    torch.testing.assert_close(sample, conditional_covariance(torch.tensor(0.9)), atol=6e-3, rtol=0)
