"""Whatever stands in records, names and cells is shown by the pages and never run."""

import copy
import json

import numpy as np
import pytest

from browser import opened
from torchmcl.app.report import escape, html_report
from torchmcl_fleet.demo import report as demo
from torchmcl_speech.reports import separation_page

# Runs as an element, out of an attribute, out of a script, and as the target of a link.
PAYLOAD = (
    "\"'></title></script></style><script>window.ran=1</script><img src=x onerror='window.ran=2'><svg onload=ran=3>"
)
RAN = "return window.ran === undefined ? 'nothing' : String(window.ran)"


def leaves(value, place=()):
    """Return the places of all values that are no list or dictionary; of long lists the first two."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*place, key))]
    if isinstance(value, list):
        return [leaf for key, item in enumerate(value[:2]) for leaf in leaves(item, (*place, key))]
    return [place]


def changed(value, place, new):
    """Return a copy with another value at one place."""
    made = copy.deepcopy(value)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return made


def poisoned_everywhere(records, written):
    """Put the payload at each place by itself; return records with it wherever a page came out, and where that is.

    `written` writes the page of records and returns its text; a ValueError is a refusal, anything else a bug.
    """
    accepted = []
    for place in leaves(records):
        try:
            text = written(changed(records, place, PAYLOAD))
        except ValueError:
            continue
        assert "<script>window.ran" not in text, place
        assert "<img src=x" not in text, place
        accepted.append(place)
    for place in accepted:
        records = changed(records, place, PAYLOAD)
    return records, accepted


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    empty = tmp_path_factory.mktemp("browser") / "empty.html"
    empty.write_text("<title>empty</title>")
    with opened(empty) as driver:
        yield driver


def assert_nothing_runs(browser, path):
    browser.get(path.as_uri())
    assert browser.execute_script(RAN) == "nothing"
    assert browser.find_elements("css selector", "img[src=x], svg[onload]") == []
    assert browser.title not in ("", "empty")


@pytest.fixture
def quick_pictures(monkeypatch):
    """Pictures are as slow as they are harmless: a place for each of them will do while places are tried."""
    monkeypatch.setattr(demo.report, "image", lambda figure, alternative, caption="": f"<p>{caption}</p>")


def demo_records():
    frame = [[0.1, 0.2, 0.5], [0.3, 0.1, 0.5]]
    method = {"distortion": [0.1], "starved": [0], "curves": [[0.2, 0.1]], "frames": [frame] * 2}
    return {
        "settings": {
            "n_hypotheses": 2, "n_seeds": 1, "n_restarts": 3, "n_held_out": 100, "n_points": 100, "n_epochs": 2,
        },
        "methods": [
            {"key": key, "label": label, "temperature": [heat, heat], **method}
            for key, label, heat in (("mcl", "MCL", 0.0), ("relaxed", "Relaxed", 0.0), ("amcl", "Annealed", 0.5))
        ],
        "kmeans": {"distortion": 0.09, "starved": 0},
        "points": [[0.0, 0.1], [0.2, 0.3]],
        "epochs": [0, 1],
        "seconds": 1.0,
        "conditional": {
            "code": "def f(): ...", "points": [[0.0, 0.1]], "grid": [0.0],
            "answers": {"1": [[[0.1, 1.0]]], "2": [[[0.1, 0.5], [0.2, 0.5]]]},
        },
    }  # fmt: skip


def test_records_of_the_demonstration_cannot_run_in_its_page(browser, tmp_path, quick_pictures, monkeypatch):
    monkeypatch.setattr(demo, "_predictions", lambda records: None)
    monkeypatch.setattr(demo, "_curves", lambda records: None)
    monkeypatch.setattr(demo, "_forks", lambda found: None)
    monkeypatch.setattr(demo.animation, "write_animation", lambda film, path: path)

    def written(records):
        (tmp_path / "records.json").write_text(json.dumps(records))
        return demo.write_demo_report(tmp_path).read_text()

    records, accepted = poisoned_everywhere(demo_records(), written)
    texts = {("settings", "n_restarts"), ("methods", 0, "label"), ("kmeans", "starved"), ("conditional", "code")}
    assert texts <= set(accepted)
    written(records)
    assert_nothing_runs(browser, tmp_path / "index.html")


def test_records_of_a_separation_cannot_run_in_its_page_or_read_other_files(browser, tmp_path):
    pytest.importorskip("soundfile")
    from torchmcl_speech.data import write_audio

    inside = tmp_path / "inside"
    for path in (inside / "a.wav", inside / "b.wav", tmp_path / "secret.wav"):
        write_audio(path, 0.1 * np.sin(np.arange(4000)), 8000)
    records = {
        "recording": "talk.wav", "seconds": 0.5, "sample_rate": 8000, "gain": 1.0, "ordered_by": "score",
        "mixture": "a.wav", "outputs": [{"file": "b.wav", "output": 0, "score": 1.0}],
    }  # fmt: skip

    def written(records):
        (inside / "separation.json").write_text(json.dumps(records))
        return separation_page.write_separation_page(inside).read_text()

    poisoned, accepted = poisoned_everywhere(records, written)
    assert ("recording",) in accepted
    written(poisoned)
    assert_nothing_runs(browser, inside / "index.html")
    for name in ("../secret.wav", str(tmp_path / "secret.wav"), "..", "", "a.wav\0", 3, ["a.wav"]):
        for place in (("mixture",), ("outputs", 0, "file")):
            with pytest.raises(ValueError, match="name a file in the same folder"):
                written(changed(records, place, name))


def with_payloads(value, key=""):
    """Return records whose texts are payloads, but for words that decide what is drawn."""
    if isinstance(value, dict):
        return {name: with_payloads(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_payloads(item, key) for item in value]
    return PAYLOAD if isinstance(value, str) and key not in ("kind", "by") else value


def test_records_of_a_table_cannot_run_in_its_page(browser, tmp_path):
    pl = pytest.importorskip("polars")
    from house_tables import houses
    from torchmcl_tables.data import Table
    from torchmcl_tables.model import TableFit, fit_table, table_records
    from torchmcl_tables.reports import write_report

    how = TableFit(["price"], drop=["days"], parameters={"n_epochs": 2, "hidden": (4,), "n_hypotheses": 2})
    records = table_records(fit_table(Table("houses.csv", pl.DataFrame(houses(120))), how))
    records["member_weights"] = {PAYLOAD: 0.5, "forest": 0.5}
    path = write_report(with_payloads(records), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8").count(str(escape(PAYLOAD))) > 5, "texts of the records are on the page"
    assert_nothing_runs(browser, path)


def test_a_forgotten_escape_would_still_run_nothing(browser, tmp_path):
    for script in ("", "window.own = 1;"):
        path = tmp_path / "page.html"
        path.write_text(html_report("title", PAYLOAD.replace("</script>", "", 1), script))
        browser.get(path.as_uri())
        assert browser.execute_script(RAN) == "nothing"
        assert browser.execute_script("return window.own || 0") == (1 if script else 0)


def test_the_browser_would_run_it(browser, tmp_path):
    (tmp_path / "page.html").write_text(PAYLOAD)
    browser.get((tmp_path / "page.html").as_uri())
    assert browser.execute_script(RAN) != "nothing"
