"""The demonstration: annealing wins on the records, and the page shows it in a real browser."""

import statistics

import pytest

from browser import console_errors, opened
from torchmcl_fleet.demo.report import write_demo_report
from torchmcl_fleet.demo.training import DemoSettings, run_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    settings = DemoSettings(n_seeds=2, n_epochs=60, n_held_out=2000, n_restarts=3, n_frames=4)
    records = run_demo(folder, settings, progress=False)
    return folder, records, write_demo_report(folder)


def test_annealing_has_the_lowest_distortion_and_the_fewest_starved_hypotheses(demo):
    _, records, _ = demo
    mcl, relaxed, annealed = records["methods"]
    assert max(annealed["distortion"]) < min(mcl["distortion"]) < min(relaxed["distortion"])
    assert statistics.mean(annealed["starved"]) < statistics.mean(mcl["starved"])
    assert max(annealed["distortion"]) < 1.15 * records["kmeans"]["distortion"]


def test_cooling_begins_above_the_first_critical_temperature_and_ends_hard():
    _, _, rule_at = DemoSettings().methods()[-1]
    assert rule_at(0).temperature > 0.501
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
