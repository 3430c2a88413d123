"""The demonstration of speech: what it writes, what it gains, and its page in a browser."""

import json

import pytest

pytest.importorskip("soundfile")

from test_separation_page import durations

from browser import console_errors, opened
from torchmcl.app import main
from torchmcl_speech.reports.separation_page import write_separation_page


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "speech"
    assert main(["separation", "demo", "--out", str(out), "--model", "two-speakers", "--device", "cpu", "--quiet"]) == 0
    return out


def test_both_voices_gain_and_are_credited(demo):
    records = json.loads((demo / "separation.json").read_text())
    assert sorted(voice["name"] for voice in records["references"]) == ["man", "woman"]
    assert all(voice["after"] > voice["before"] + 5 for voice in records["references"])
    assert len({voice["output"] for voice in records["references"]}) == 2
    page = (demo / "index.html").read_text()
    assert "CC BY 4.0" in page
    assert "True voice of output 1" in page
    assert "Content-Security-Policy" in page


@pytest.mark.slow
def test_the_page_plays_mixture_outputs_and_true_voices(demo):
    with opened(demo / "index.html") as driver:
        assert durations(driver) == pytest.approx([5.76] * 5)
        rows = driver.find_elements("css selector", "#references tbody tr")
        assert [row.text.split()[0] for row in rows] == ["woman", "man"]
        assert console_errors(driver) == []


@pytest.mark.parametrize(
    "change", [{"speakers": "many"}, {"references": [{"output": 0}]}, {"model_rate": "x"}, {"outputs": [{}]}]
)
def test_records_that_were_changed_are_refused(demo, tmp_path, change):
    records = json.loads((demo / "separation.json").read_text()) | change
    for path in demo.glob("*.wav"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "separation.json").write_text(json.dumps(records))
    with pytest.raises(ValueError, match=r"`separation\.json`"):
        write_separation_page(tmp_path)
    assert not (tmp_path / "index.html").exists()
