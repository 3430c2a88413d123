"""The benchmark of robustness: conditions do what they say, and the tables of the documentation are its record's."""

import json
import runpy
import subprocess
import sys

import numpy as np
import pytest

from places import PYTHONPATH, ROOT

pytest.importorskip("soundfile")
from torchmcl_speech import shipped_models
from voices import SHARED, voice


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return runpy.run_path(str(ROOT / "benchmarks" / "robustness.py"))
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def sources():
    return np.stack([voice(1, 20000), voice(2, 20000)])


def ratio_db(signal, other):
    return 10 * np.log10(np.square(signal).sum() / np.square(other).sum())


def test_every_condition_gives_a_mixture_and_as_many_targets(bench, sources):
    for name, condition in bench["CONDITIONS"].items():
        mixture, targets = condition(sources.copy(), np.random.default_rng(0))
        assert mixture.shape == targets.shape[1:], name
        assert targets.shape[0] == 2
        assert np.isfinite(mixture).all()
        again, _ = condition(sources.copy(), np.random.default_rng(0))
        assert np.array_equal(mixture, again)


def test_conditions_change_what_they_say(bench, sources):
    made = {name: f(sources.copy(), np.random.default_rng(0)) for name, f in bench["CONDITIONS"].items()}
    mixture = sources.sum(axis=0)
    assert np.array_equal(made["clean"][0], mixture)
    assert abs(ratio_db(*made["levels"][1])) == pytest.approx(6, abs=0.01)
    assert ratio_db(mixture, made["noise"][0] - mixture) == pytest.approx(20, abs=0.3)
    assert ratio_db(sources[0], made["reverberation"][1][0] - sources[0]) == pytest.approx(6, abs=2)
    assert np.abs(made["clipped"][0]).max() == pytest.approx(0.3 * np.abs(mixture).max())
    assert ratio_db(mixture, made["codec"][0] - mixture) > 25
    assert made["short"][0].shape == (8000,)


def test_a_signal_survives_other_rates(bench):
    sound = voice(1, 16000)
    wide = bench["resampled"](sound, 8000, 44100, 88200)
    back = bench["resampled"](wide, 44100, 8000, 16000)
    assert ratio_db(sound, back - sound) > 30


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/speech")
def test_the_script_runs(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/robustness.py"), "--data", str(SHARED), "--limit", "1"]
    options = ["--model", "two-speakers", "--conditions", "short,16 kHz"]
    environment = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    subprocess.run([*command, *options, "--out", str(tmp_path / "a.json")], check=True, env=environment)
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert {row["condition"] for row in rows} == {"short", "16 kHz", "silence and one voice"}
    bad = subprocess.run(
        [*command, "--conditions", "rain"], env=environment, capture_output=True, text=True, check=False
    )
    assert "--conditions: unknown ['rain']" in bad.stderr


def test_the_speed_is_that_of_the_command_and_goes_into_a_record(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/separate_speed.py"), "--models", "", "--untrained", "1x6"]
    options = [
        "--seconds",
        "1",
        "--repeats",
        "1",
        "--threads",
        "1,2",
        "--chunk",
        "0.5",
        "--out",
        str(tmp_path / "a.json"),
    ]
    environment = {"PYTHONPATH": PYTHONPATH, "PATH": "/usr/bin:/bin"}
    subprocess.run([*command, *options], check=True, env=environment, capture_output=True)
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [row["what"] for row in rows] == ["start", "separate", "separate"]
    assert all(row["times_real_time"] > 0 and row["times_real_time_lstm_of_torch"] > 0 for row in rows[1:])


def test_the_tables_of_the_documentation_are_those_of_the_records_and_the_cards():
    made = runpy.run_path(str(ROOT / "docs" / "_robustness_tables.py"))["tables"]()
    assert made.keys() == {"models", "tested", "counting", "conditions", "edges", "speed"}
    for name, text in made.items():
        assert (ROOT / "docs" / f"separation_models_{name}.inc").read_text() == text
    assert all(f"``{name}``" in made["tested"] and f"``{name}``" in made["models"] for name in shipped_models())


def test_groups_of_mixtures_are_put_into_words():
    voices = runpy.run_path(str(ROOT / "docs" / "_robustness_tables.py"))["voices"]
    assert [voices(group) for group in ("all", "F+M", "M+M", "F+F+M", "2 speakers")] == [
        "all",
        "a woman and a man",
        "two men",
        "two women and a man",
        "2 speakers",
    ]
