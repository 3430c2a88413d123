"""The demonstration: annealing wins on the records, and the page shows it in a real browser."""

import csv
import io
import json
import statistics
from urllib.parse import unquote

import pytest
import torch

import torchmcl
from browser import console_errors, opened
from places import ROOT
from torchmcl_fleet.demo.report import write_demo_report
from torchmcl_fleet.demo.training import DemoSettings, run_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    settings = DemoSettings(n_seeds=2, n_epochs=60, n_held_out=4000, n_restarts=5, n_frames=20)
    records = run_demo(folder, settings, progress=False)
    return folder, records, write_demo_report(folder)


def test_annealing_has_the_lowest_distortion_and_the_fewest_starved_hypotheses(demo):
    _, records, _ = demo
    mcl, relaxed, annealed = records["methods"]
    assert max(annealed["distortion"]) < min(mcl["distortion"]) < min(relaxed["distortion"])
    assert statistics.mean(annealed["starved"]) < statistics.mean(mcl["starved"])
    assert max(annealed["distortion"]) < 1.15 * records["kmeans"]["distortion"]


def test_the_records_on_disk_are_those_returned(demo):
    folder, records, _ = demo
    assert json.loads((folder / "records.json").read_text()) == json.loads(json.dumps(records))


def test_cooling_begins_above_the_first_critical_temperature_and_ends_hard():
    _, _, rule_at = DemoSettings().methods()[-1]
    assert rule_at(0).temperature > 0.46
    assert rule_at(DemoSettings().n_epochs - 1).temperature == 0


@pytest.mark.slow
def test_the_page_shows_pictures_and_table_without_console_errors(demo):
    _, records, page = demo
    with opened(page) as driver:
        pictures = driver.find_elements("css selector", "img")
        assert len(pictures) == 3
        assert all(int(picture.get_property("naturalWidth")) > 500 for picture in pictures)
        rows = driver.find_elements("css selector", "#results tbody tr")
        assert len(rows) == 4
        mean = statistics.mean(records["methods"][2]["distortion"])
        assert f"{mean:.5f}" in driver.find_element("css selector", "tr.best").text
        assert console_errors(driver) == []


@pytest.mark.slow
def test_the_animation_plays_and_follows_the_slider(demo):
    _, records, page = demo
    with opened(page) as driver:
        script = (
            "const s = document.getElementById('film-frame'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('input'));"
        )
        pixels = "return document.getElementById('film').toDataURL()"
        driver.execute_script(script, 0)
        first = driver.execute_script(pixels)
        driver.execute_script(script, len(records["epochs"]) - 1)
        assert driver.find_element("id", "film-label").text == f"epoch {records['epochs'][-1]}"
        assert driver.execute_script(pixels) != first


@pytest.mark.slow
def test_the_page_fits_a_phone(demo):
    _, _, page = demo
    with opened(page, width=500) as driver:
        assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_the_film_is_a_moving_picture_small_enough_for_a_readme(demo):
    images = pytest.importorskip("PIL.Image")
    folder, records, _ = demo
    with images.open(folder / "film.gif") as film:
        assert film.n_frames == len(records["epochs"])
        assert film.size == (900, 334)
    shipped = ROOT / "docs" / "_static" / "film.gif"
    assert shipped.stat().st_size < 1_000_000


def test_the_code_on_the_page_is_the_code_that_ran(demo):
    _, records, _ = demo
    namespace = {}
    exec("import torch\nimport torchmcl as mcl\n" + records["conditional"]["code"], namespace)
    with torch.random.fork_rng():
        _, _, model = namespace["train_fork"](4)
    grid = torch.tensor(records["conditional"]["grid"]).unsqueeze(-1)
    answers = torch.tensor(records["conditional"]["answers"]["4"])[..., :1]
    torch.testing.assert_close(model(grid).hypotheses.detach(), answers, rtol=0, atol=2e-3)
    far = grid.flatten() > 0.5  # where the branches are apart there are answers on both
    assert (answers[far].amax((1, 2)) > 0.5).all()
    assert (answers[far].amin((1, 2)) < -0.5).all()


@pytest.mark.slow
def test_the_film_comes_first_and_pictures_tell_their_values(demo):
    _, records, page = demo
    with opened(page, width=1400) as driver:
        first = driver.find_element("css selector", "main canvas, main img, main table")
        assert first.get_attribute("id") == "film"
        header = driver.find_element("css selector", "body > header").text
        assert f"torchmcl {torchmcl.__version__}" in header
        assert "torchmcl demo --seeds 2 --epochs 60" in header
        hover(driver, ".plot:has(img[alt^='Temperature'])")
        assert "epoch" in driver.find_element("css selector", ".plot .value:not([hidden])").text
        link = driver.find_elements("css selector", ".plot a")[1].get_attribute("href")
        rows = list(csv.DictReader(io.StringIO(unquote(link.partition(",")[2]))))
        values = [float(row["y"]) for row in rows if row["series"] == records["methods"][2]["label"]]
        assert values == pytest.approx(records["methods"][2]["curves"][0], rel=1e-5)
        assert console_errors(driver) == []


def hover(driver, selector):
    """Move the pointer onto the first point of a picture."""
    driver.execute_script(
        "const plot = document.querySelector(arguments[0]), img = plot.querySelector('img');"
        "const { box, limits, log, series } = JSON.parse(plot.dataset.plot).axes[1];"
        "const share = (v, a, b, l) => l ? Math.log(v / a) / Math.log(b / a) : (v - a) / (b - a);"
        "const x = box[0] + share(series[0].x[3], limits[0], limits[1], log[0]) * (box[1] - box[0]);"
        "const y = box[2] + share(series[0].y[3], limits[2], limits[3], log[1]) * (box[3] - box[2]);"
        "const at = img.getBoundingClientRect();"
        "img.dispatchEvent(new PointerEvent('pointermove', { clientX: at.left + x * at.width,"
        "  clientY: at.top + y * at.height }));",
        selector,
    )
