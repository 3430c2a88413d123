"""All pages share one head and one way to tell the values of their pictures."""

import html
import json
import re

import pytest

import torchmcl
from grids import for_each
from places import PACKAGES
from torchmcl._pages.page import image, page
from torchmcl._pages.pictures import new_figure

pytest.importorskip("matplotlib")
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))


def values_in(text):
    return json.loads(html.unescape(re.search(r'data-plot="([^"]*)"', text)[1]))


def drawn():
    figure = new_figure(6, 3)
    left, right = figure.subplots(1, 2)
    left.plot([1, 2, 3], [1.0, float("nan"), 100.0], label="loss")
    left.axhline(5)
    left.set(yscale="log", xlabel="epoch", ylabel="loss", title="two\nlines")
    right.bar([1, 2], [3, 4], label="wins")
    right.scatter([1.5], [2.5], label="mean")
    right.errorbar([1], [3], yerr=[1], fmt="none")
    return figure


def test_a_page_begins_with_the_version_and_the_command():
    text = page("title", "<p>body</p>", command="torchmcl demo --seeds <1>")
    head = text.partition("<main>")[0]
    assert f"torchmcl {torchmcl.__version__}" in head
    assert "torchmcl demo --seeds &lt;1&gt;" in head
    assert "<script" not in text


@for_each("path", [p for p in SOURCES if re.search(r"return page\(", p.read_text())])
def test_every_page_of_the_package_names_its_command(path):
    assert re.search(r'return page\((?:.|\n)*?command=(?:"torchmcl|command)', path.read_text())


def test_lines_bars_and_points_of_a_picture_are_its_values():
    found = values_in(image(drawn(), "a picture"))
    left, right = found["axes"]
    assert left["series"] == [{"label": "loss", "x": [1, 2, 3], "y": [1, None, 100]}]
    assert left["title"] == "two, lines"
    assert (left["log"], left["x"], left["y"]) == ([False, True], "epoch", "loss")
    assert {series["label"]: series["y"] for series in right["series"]} == {"wins": [3, 4], "mean": [2.5]}
    for axis in (left, right):
        x0, x1, low, high = axis["box"]
        assert 0 < x0 < x1 < 1
        assert 0 < high < low < 1


def test_of_many_points_every_nth_is_kept_and_that_is_said():
    figure = new_figure(4, 3)
    figure.add_subplot().plot(range(10_000), range(10_000))
    found = values_in(image(figure, "many"))
    assert found["every"] == 4
    assert len(found["axes"][0]["series"][0]["x"]) == 2500


def test_labels_from_outside_stay_text():
    figure = new_figure(4, 3)
    figure.add_subplot().plot([1, 2], [1, 2], label='"><img src=x onerror=ran=1>')
    text = image(figure, "hostile")
    assert "<img src=x" not in text
    assert values_in(text)["axes"][0]["series"][0]["label"] == '"><img src=x onerror=ran=1>'


def test_only_pages_with_pictures_have_their_script():
    assert page("title", image(drawn(), "a picture")).count("<script") == 1
