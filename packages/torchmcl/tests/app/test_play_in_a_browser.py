"""The page to play with works by clicks, drags and keys in a real browser."""

import math
import time

import pytest

from browser import console_errors, opened
from torchmcl.app.play import write_play_page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_play_page(tmp_path_factory.mktemp("play") / "play.html")


@pytest.fixture(scope="module")
def browser(page):
    with opened(page, width=1400) as driver:
        yield driver


@pytest.fixture
def fresh(browser, page):
    """The page as first seen."""
    browser.get("about:blank")
    browser.get(page.as_uri())
    yield browser
    assert console_errors(browser) == []


def state(driver, expression):
    return driver.execute_script(f"const page = torchmclPlay.page; return {expression}")


def wait_for(driver, expression, seconds=20):
    end = time.monotonic() + seconds
    while not state(driver, expression):
        assert time.monotonic() < end, f"never: {expression}"
        time.sleep(0.05)


def click(driver, selector):
    driver.find_element("css selector", selector).click()


def test_play_stop_step_and_restart_by_clicks(fresh):
    click(fresh, "#story-steps li:nth-child(6) button")
    click(fresh, "#play")
    wait_for(fresh, "page.simulation.step > 5")
    assert fresh.find_element("id", "play").text == "Stop"
    click(fresh, "#play")
    step = state(fresh, "page.simulation.step")
    click(fresh, "#step")
    assert state(fresh, "page.simulation.step") == step + 1
    assert f"Step {step + 1}." in fresh.find_element("id", "status").text
    assert len(fresh.find_elements("css selector", "#measures tbody tr")) == 3
    click(fresh, "#restart")
    assert state(fresh, "page.simulation.step") == 0


def test_the_temperature_is_dragged_and_hypotheses_split_below_the_mark(fresh):
    from selenium.webdriver import ActionChains

    click(fresh, "#story-steps li:nth-child(5) button")
    dial = fresh.find_element("id", "heat")
    mark, box = fresh.find_element("id", "mark").rect, dial.rect
    at = (mark["x"] + mark["width"] / 2 - box["x"]) / box["width"]
    assert at == pytest.approx(math.sqrt(1 / 1.5), abs=0.02)
    hot = math.sqrt(1.1 / 1.5)
    offset = round((hot - 0.5) * (box["width"] - 16))
    drag = ActionChains(fresh).move_to_element_with_offset(dial, offset, 0).click_and_hold()
    drag.move_by_offset(round((math.sqrt(0.6 / 1.5) - hot) * box["width"]), 0).release().perform()
    assert 0.4 < state(fresh, "page.state.heat") < 0.8
    assert state(fresh, "page.playing")
    wait_for(fresh, "torchmclPlay.distinctPlaces(page.simulation.panels[0].hypotheses, page.critical / 2) > 1")
    assert "below the local critical temperature" in dial.get_attribute("aria-valuetext")


def test_points_are_drawn_by_pointer_and_by_keys_and_links_keep_them(fresh, page):
    from selenium.webdriver import ActionChains, Keys

    click(fresh, "#draw")
    canvas = fresh.find_element("css selector", "canvas.picture")
    ActionChains(fresh).move_to_element(canvas).click_and_hold().move_by_offset(60, 30).move_by_offset(
        30, -60
    ).release().perform()
    drawn = state(fresh, "page.simulation.points.length / 2")
    assert drawn >= 15
    assert state(fresh, "page.state.data") == "own"
    canvas.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ENTER)
    assert state(fresh, "page.simulation.points.length / 2") == drawn + 5
    time.sleep(0.5)  # the address follows a moment later
    link = fresh.current_url
    fresh.get("about:blank")
    fresh.get(link)
    assert state(fresh, "page.simulation.points.length / 2") == drawn + 5
    click(fresh, "#clear")
    assert state(fresh, "page.state.own.length") == 0


def test_the_story_the_choices_and_the_keys(fresh):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import Select

    for number in (3, 7):
        ActionChains(fresh).send_keys(str(number)).perform()
        assert fresh.find_element("id", "story-title").text.startswith(f"{number}.")
        assert f"story={number}" in fresh.current_url
    ActionChains(fresh).send_keys(" ").perform()
    wait_for(fresh, "page.simulation.step > 2")
    ActionChains(fresh).send_keys(" ").perform()
    assert not state(fresh, "page.playing")
    ActionChains(fresh).send_keys(".").send_keys("r").perform()
    assert state(fresh, "page.simulation.step") == 0
    ActionChains(fresh).send_keys("[").perform()
    assert state(fresh, "page.state.cooling") == "hand"
    click(fresh, "#story-back")
    assert fresh.find_element("id", "story-title").text.startswith("6.")
    for data in ("ring", "spiral", "circle", "tree", "rare"):
        Select(fresh.find_element("id", "data")).select_by_value(data)
        assert state(fresh, "page.state.data") == data
    Select(fresh.find_element("css selector", "#panels select")).select_by_value("top")
    assert state(fresh, "page.state.rules")[0] == "top"
    Select(fresh.find_element("id", "panel-count")).select_by_visible_text("1")
    assert len(fresh.find_elements("css selector", "#panels figure")) == 1
    unlabelled = (
        "return [...document.querySelectorAll('canvas')].filter((c) => !c.ariaLabel && !c.ariaHidden).map((c) => c.id)"
    )
    click(fresh, "#step")
    assert fresh.execute_script(unlabelled) == []


def test_the_network_trains_live(fresh):
    before = fresh.execute_script("return document.getElementById('net-annealed').toDataURL()")
    click(fresh, "#net-play")
    wait_for(fresh, "torchmclPlay.networkPage.step > 5")
    click(fresh, "#net-play")
    assert "distortion" in fresh.find_element("id", "net-wta-text").text
    assert fresh.execute_script("return document.getElementById('net-annealed').toDataURL()") != before


def test_hostile_links_run_nothing_and_the_page_fits_a_phone_in_the_dark(fresh, page):
    fresh.get("about:blank")
    fresh.get(f"{page.as_uri()}#data=<img src=x onerror=window.ran=1>&k=<svg onload=ran=2>&own=zz&rules=,,&story=99")
    assert fresh.execute_script("return window.ran === undefined")
    assert state(fresh, "page.state.story") == 7
    fresh.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    fresh.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        time.sleep(0.3)
        assert fresh.execute_script("return document.documentElement.scrollWidth <= 391")
        corner = "return [...document.querySelector('canvas.picture').getContext('2d').getImageData(3, 3, 1, 1).data]"
        click(fresh, "#step")
        assert max(fresh.execute_script(corner)[:3]) < 110
    finally:
        fresh.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        fresh.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
