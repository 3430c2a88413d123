"""The page of a separated recording, in a real browser: pictures and players, whatever the files are called."""

import json

import numpy as np
import pytest

from browser import console_errors, opened
from grids import for_each
from torchmcl_speech.reports.separation_page import (
    decibels_over_time,
    write_separation_page,
)
from voices import voice

pytest.importorskip("soundfile")

from torchmcl_speech.data import write_audio

# Ends an attribute, a tag and a script, and is no plain address either.
HOSTILE = "\"'><script>document.title='run'<\u2044script><img src=x onerror=document.title='run'>#a?b=%41 &amp;"
RATE = 8000


def separated(folder, *, stem="long talk", n_samples=12000, scores=(0.625, 0.25, 0.125), **changes):
    """Write what `separate` leaves: the mixture, the outputs, and the record about them."""
    voices = [voice(seed, n_samples) for seed in range(len(scores))]
    files = [f"{stem}-{place}.wav" for place in range(1, len(scores) + 1)]
    for file, sound in zip(files, voices, strict=True):
        write_audio(folder / file, sound, RATE)
    write_audio(folder / f"{stem}-mixture.wav", sum(voices), RATE)
    records = {
        "recording": f"somewhere/{stem}.wav",
        "seconds": n_samples / RATE,
        "sample_rate": RATE,
        "gain": 1.0,
        "ordered_by": "score",
        "mixture": f"{stem}-mixture.wav",
        "outputs": [{"file": f, "output": i, "score": s} for i, (f, s) in enumerate(zip(files, scores, strict=True))],
    }
    (folder / "separation.json").write_text(json.dumps(records | changes))
    return write_separation_page(folder)


def durations(driver):
    """Return the duration of each player once it knows it, or the error that it met."""
    return driver.execute_async_script("""
        const done = arguments[0];
        Promise.all([...document.querySelectorAll("audio")].map(audio => new Promise(found => {
          const look = () => {
            if (audio.error) found("error " + audio.error.code);
            else if (audio.readyState > 0) found(audio.duration);
            else setTimeout(look, 20);
          };
          look();
        }))).then(done);""")


@pytest.mark.slow
def test_the_page_shows_and_plays_mixture_and_outputs_in_order(tmp_path):
    page = separated(tmp_path)
    with opened(page) as driver:
        assert durations(driver) == pytest.approx([1.5] * 4)
        heads = [head.text.split() for head in driver.find_elements("css selector", "h2")]
        assert heads == [
            ["Mixture"],
            *(["Output", str(i), "score", s] for i, s in enumerate(["0.625", "0.250", "0.125"], 1)),
        ]
        pictures = driver.find_elements("css selector", ".sound img")
        assert [int(picture.get_property("naturalWidth")) > 100 for picture in pictures] == [True] * 4
        drawn = "return [...document.querySelectorAll('path')].map(path => path.getBBox().height)"
        assert min(driver.execute_script(drawn)) > 5
        links = [link.get_attribute("href") for link in driver.find_elements("css selector", ".sound a")]
        assert links == [(tmp_path / f"long talk-{name}.wav").as_uri() for name in ("mixture", 1, 2, 3)]
        assert "1.5 s of audio, 3 outputs, highest score first" in driver.find_element("css selector", ".lead").text
        assert console_errors(driver) == []


@pytest.mark.slow
def test_a_hostile_file_name_is_shown_and_not_run(tmp_path):
    page = separated(tmp_path, stem=HOSTILE, scores=(0.6, 0.4))
    with opened(page, width=400) as driver:
        assert durations(driver) == pytest.approx([1.5] * 3)
        assert driver.title == f"Separated: {HOSTILE}.wav"
        assert driver.find_element("css selector", "h1").text == f"{HOSTILE}.wav"
        assert len(driver.find_elements("css selector", "img")) == 3
        assert len(driver.find_elements("css selector", "script")) == 1
        width = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1]
        assert console_errors(driver) == []


@pytest.mark.slow
def test_long_recordings_are_played_from_the_files_beside_the_page(tmp_path):
    n_samples = 130 * RATE
    page = separated(tmp_path, stem=HOSTILE, n_samples=n_samples, scores=(1.0,), ordered_by="energy", gain=0.5)
    assert page.stat().st_size < 500_000
    with opened(page, width=400) as driver:
        assert durations(driver) == pytest.approx([130.0] * 2)
        assert driver.find_element("css selector", ".marks").text.split() == ["0:00", "0:32", "1:05", "1:38", "2:10"]
        text = driver.find_element("css selector", "main").text
        assert "fraction of the energy 1.000" in text
        assert "All files are scaled by 0.50" in text
        assert console_errors(driver) == []


# The pictures


@for_each("n_samples", [1, 5, 300, 8000, 3_000_000])
def test_a_tone_is_a_line_at_its_frequency_in_recordings_of_any_length(n_samples):
    tone = np.sin(2 * np.pi * 1000 * np.arange(n_samples) / RATE + 1)
    decibels = decibels_over_time(tone, RATE)
    assert decibels.shape[0] == 129
    assert 1 <= decibels.shape[1] <= 1000
    assert np.isfinite(decibels).all()
    if n_samples > 2000:
        inner = decibels[:, 3:-3]
        assert (inner.argmax(axis=0) == 32).all()  # 1000 Hz of 4000, in 128 steps
        # A tone of amplitude 1 has, under this window, a quarter of its 256 samples as its magnitude.
        assert inner[32] == pytest.approx(20 * np.log10(64), abs=0.1)
