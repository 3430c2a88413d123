"""The page of a separated recording, in a real browser: pictures and players, whatever the files are called."""

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from browser import console_errors, opened
from torchmcl_speech.reports.separation_page import (
    decibels_over_time,
    extremes_over_time,
    spectrogram_png,
    waveform_path,
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
        assert "1.5 s of sound and 3 outputs, highest score first" in driver.find_element("css selector", ".lead").text
        assert console_errors(driver) == []


@pytest.mark.slow
def test_a_click_into_a_picture_goes_there_and_one_sound_plays_at_a_time(tmp_path):
    with opened(separated(tmp_path)) as driver:
        durations(driver)
        driver.find_elements("css selector", ".pictures")[1].click()  # its middle
        time, left, paused = driver.execute_async_script("""
            const done = arguments[0], players = [...document.querySelectorAll("audio")];
            const look = async () => {
              const time = players[1].currentTime, left = document.querySelectorAll(".head")[1].style.left;
              if (players[1].seeking || !left) return setTimeout(look, 20);
              await players[0].play(); await players[1].play();
              done([time, parseFloat(left), players.map(player => player.paused)]);
            };
            look();""")
        assert time == pytest.approx(0.75, abs=0.01)
        assert left == pytest.approx(50, abs=1)
        assert paused == [True, False, True, True]
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
        assert "share of the energy 1.000" in text
        assert "All files are scaled by 0.50" in text
        assert console_errors(driver) == []


def test_names_that_are_no_text_and_silence_get_a_page(tmp_path):
    name = b"caf\xe9".decode(errors="surrogateescape")
    write_audio(tmp_path / f"{name}-mixture.wav", np.zeros(7), RATE)
    write_audio(tmp_path / f"{name}-1.wav", np.zeros(7), RATE)
    records = {"recording": f"{name}.wav", "seconds": 7 / RATE, "sample_rate": RATE, "gain": 1.0, "ordered_by": "score"}
    records |= {"mixture": f"{name}-mixture.wav", "outputs": [{"file": f"{name}-1.wav", "output": 0, "score": 1.0}]}
    (tmp_path / "separation.json").write_text(json.dumps(records))
    text = write_separation_page(tmp_path).read_text()
    assert "caf?.wav" in text
    assert 'href="./caf%E9-1.wav"' in text
    assert "nan" not in text


# The pictures


@pytest.mark.parametrize("n_samples", [1, 5, 300, 8000, 3_000_000])
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


def test_the_picture_is_a_valid_png_with_low_frequencies_at_the_bottom():
    data = spectrogram_png(np.array([[0.0, -200.0, -35.0], [-70.0, -200.0, 0.0]]), loudest=0.0)
    parts, place = {}, 8
    while place < len(data):
        (size,), kind = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        parts[kind] = data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size]) == (zlib.crc32(kind + parts[kind]),)
        place += 12 + size
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert list(parts) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(2, 4)
    assert rows.tolist() == [[0, 0, 0, 255], [0, 255, 0, 128]]
    palette = np.frombuffer(parts[b"PLTE"], np.uint8).reshape(256, 3).astype(float)
    assert (np.diff(palette @ [0.2126, 0.7152, 0.0722]) > -0.5).all()  # louder is lighter


@settings(deadline=None, max_examples=30)
@given(length=st.integers(1, 5000), seed=st.integers(0, 10))
def test_no_sample_leaves_the_waveform(length, seed):
    samples = np.random.default_rng(seed).standard_normal(length)
    extremes = extremes_over_time(samples)
    assert extremes.shape == (2, min(length, 1000))
    assert extremes[0].min() == samples.min()
    assert extremes[1].max() == samples.max()
    points = [point.split() for point in waveform_path(extremes, np.abs(samples).max())[1:-1].split("L")]
    assert all(0 <= float(x) <= 1000 and abs(float(y) - 50) < 50 + 1e-9 for x, y in points)
