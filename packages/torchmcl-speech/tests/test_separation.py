"""Separation end to end, on files: mix, train, be killed, go on, evaluate, separate. And a network that can learn."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import torchmcl as mcl
from grids import for_each
from places import PYTHONPATH
from signals import signal_when
from torchmcl.app import main
from torchmcl_speech.nn import DPRNN
from voices import SHARED, recordings, voice

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torchmcl_speech.config import ObjectiveConfig, SeparationConfig, load_config  # noqa: E402
from torchmcl_speech.data import (  # noqa: E402
    AudioFolder,
    AudioPack,
    Mixture,
    SpeechMixtures,
    Track,
    read_audio,
    table_mixtures,
    write_audio,
)
from torchmcl_speech.evaluate import (  # noqa: E402
    MEASURES,
    means_by,
)
from torchmcl_speech.nn.saving import load_model  # noqa: E402
from torchmcl_speech.objectives import rule_of  # noqa: E402

TINY = """
data: {layout: wsj0, n_speakers: [2], crop: 0.4, dynamic: true, samples_per_epoch: 6}
model: {n_outputs: 3, n_filters: 8, segment_size: 20, hidden_size: 6, n_blocks: 1, scores: true}
objective: {rule: amcl, temperature: 0.5, annealing_epochs: 4}
training: {epochs: 6, batch_size: 2, learning_rate: 0.01, patience: 1, ema: 0.9}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with recordings, mixtures of them in the layout of WSJ0-mix, and a configuration."""
    folder = tmp_path_factory.mktemp("separation")
    recordings(folder / "recordings", n_speakers=7, n_utterances=2, n_samples=4000)
    mix = ["data", "mix", str(folder / "recordings"), "--out", str(folder / "mixed"), "--quiet"]
    assert main([*mix, "--counts", "tr=6,cv=3,tt=3"]) == 0
    (folder / "tiny.yaml").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def trained(place):
    """Return the folder of a training that nobody disturbed."""
    assert main(train_command(place, place / "whole")) == 0
    return place / "whole"


def train_command(place, out, *more):
    data = ["--data", str(place / "mixed"), "--out", str(out), "--device", "cpu", "--quiet"]
    return ["separation", "train", str(place / "tiny.yaml"), *data, *more]


def records(folder):
    path = folder / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.slow
def test_train_kill_resume_gives_the_undisturbed_records(place, trained):
    out = place / "killed"
    workers = ["--set", "data.n_workers=1"]  # other processes prepare the samples: the same ones
    command = [sys.executable, "-m", "torchmcl", *train_command(place, out, *workers)]
    paths = PYTHONPATH
    victim = subprocess.Popen(
        command,
        # as many threads as here: how a sum is shared out decides its last digits
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(records(out)) < 2 and victim.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert victim.poll() is None, victim.communicate()[0]
    os.killpg(victim.pid, signal.SIGKILL)  # its workers too
    victim.communicate()
    assert 2 <= len(records(out)) < 6
    assert main(train_command(place, out, *workers)) == 0
    # Sums in another process may differ in their last digits.
    resumed, whole = (
        [[value for value in record.values() if isinstance(value, float)] for record in records(folder)]
        for folder in (out, trained)
    )
    torch.testing.assert_close(resumed, whole, rtol=1e-4, atol=1e-4)
    assert [record["epoch"] for record in records(out)] == list(range(6))
    for kind in ("model", "model-last"):
        (one, _), (other, _) = load_model(out / kind), load_model(trained / kind)
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-3, atol=1e-4)


def test_a_signal_ends_the_training_with_its_code_and_the_same_command_goes_on(place, trained, capsys):
    out, number = place / "stopped", signal.SIGTERM
    sent = signal_when(lambda: len(records(out)) >= 2, number)
    assert main(train_command(place, out)) == 128 + number
    sent.join()
    shown = capsys.readouterr().err
    assert f"torchmcl: Stopped by {signal.Signals(number).name}. " in shown
    assert " epochs are saved in " in shown
    assert "run the same again to resume from there" in shown
    assert 2 <= len(records(out)) < 6
    assert main(train_command(place, out)) == 0
    assert records(out) == records(trained)
    for kind in ("model", "model-last"):
        (one, _), (other, _) = load_model(out / kind), load_model(trained / kind)
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_a_folder_with_another_training_is_refused(place, trained, capsys):
    assert main(train_command(place, trained, "--set", "objective.rule=pit")) == 2
    message = capsys.readouterr().err
    assert "must be empty or contain this training run" in message
    assert "objective.rule" in message


def test_evaluation_prints_the_means_and_writes_records(place, trained, capsys):
    (place / "mixed" / "speakers.csv").write_text(
        "speaker,gender\n" + "".join(f"speaker{i},{'FM'[i % 2]}\n" for i in range(7))
    )
    command = ["separation", "evaluate", "--model", str(trained / "model"), "--data", str(place / "mixed"), "--quiet"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "PIT SI-SDR" in shown
    assert "by gender" in shown
    assert "by speakers, hardest first" in shown
    lines = [json.loads(line) for line in (trained / "model/evaluation-tt.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        sources = [
            read_audio(place / "mixed/wav8k/min/tt" / f"s{i}" / f"{line['mixture']}.wav").astype(np.float64)
            for i in (1, 2)
        ]
        mixture = sources[0] + sources[1]
        ratios = [
            10 * np.log10((s @ mixture) ** 2 / ((s @ s) * (mixture @ mixture) - (s @ mixture) ** 2)) for s in sources
        ]
        assert line["input_si_sdr"] == pytest.approx(np.mean(ratios), abs=0.01)
        assert line["improvement"] == pytest.approx(line["pit_si_sdr"] - line["input_si_sdr"])
        assert line["mcl_si_sdr"] >= line["pit_si_sdr"] - 1e-6
        assert len(set(line["speakers"])) == 2
    overall = means_by(lines, lambda record: "all")["all"]
    assert shown.splitlines()[1].split() == ["all", "3", *(f"{overall[measure]:.2f}" for measure in MEASURES)]
    for line in lines:
        assert " + ".join(sorted(line["speakers"])) in shown


def test_a_recording_is_separated_into_files_ordered_by_score(place, trained, capsys):
    mixture = np.concatenate([voice(1, 9000) + voice(2, 9000), voice(3, 3000)])
    write_audio(place / "long.wav", mixture, 8000)
    out = place / "separated"
    command = ["separation", "separate", str(place / "long.wav"), "--model", str(trained / "model"), "-o", str(out)]
    assert main([*command, "--chunk", "0.5", "--voices", "3"]) == 0
    result = json.loads((out / "separation.json").read_text())
    assert [output["file"] for output in result["outputs"]] == ["long-1.wav", "long-2.wav", "long-3.wav"]
    scores = [output["score"] for output in result["outputs"]]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(sum(n * chance for n, chance in enumerate(result["speakers"])), abs=1e-5)
    assert result["ordered_by"] == "score"
    shown = capsys.readouterr().out
    assert "long-1.wav" in shown
    assert f"Open the report: {(out / 'index.html').resolve().as_uri()}" in shown
    assert "Output 3" in (out / "index.html").read_text()
    assert read_audio(out / result["mixture"]) == pytest.approx(result["gain"] * mixture, abs=1e-4)
    for output in result["outputs"]:
        samples, rate = soundfile.read(out / output["file"])
        assert (rate, samples.shape) == (8000, (12000,))
        assert np.isfinite(samples).all()


def test_recordings_are_packed_by_command(place, tmp_path, capsys):
    command = ["data", "pack", str(place / "recordings"), "--out", str(tmp_path / "pack.npz"), "--quiet"]
    assert main([*command, "--parts", "speaker0,speaker1"]) == 0
    assert "4 recordings in" in capsys.readouterr().out
    assert AudioPack.load(tmp_path / "pack.npz").names == [f"speaker{i}/0{j}.wav" for i in (0, 1) for j in (0, 1)]
    assert main(["data", "pack", str(tmp_path / "nowhere"), "--out", str(tmp_path / "x.npz")]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "mix", str(place), "--out", str(tmp_path), "--counts", "tr"])
    assert "must be like tr=200,cv=20,tt=20" in capsys.readouterr().err


# Configurations and objectives


def test_the_paper_configurations_are_those_of_the_paper():
    for name, n_speakers in (("paper-2spk", 2), ("paper-3spk", 3)):
        config = load_config(name)
        assert config.data.n_speakers == (n_speakers,)
        assert config.model == {"n_outputs": n_speakers}
        assert (config.training.epochs, config.training.batch_size, config.data.crop) == (200, 22, 5.0)
        rule = rule_of(config.objective)
        assert [rule(epoch).temperature for epoch in (0, 50, 100, 150)] == [0.1, 0.05, 0.0, 0.0]


def test_objectives_are_rules_of_the_core():
    names = {"pit": mcl.PIT(), "mcl": mcl.WTA(), "relaxed-wta": mcl.RelaxedWTA(0.05), "sinkhorn": mcl.Sinkhorn(0.1)}
    for name, rule in names.items():
        assert rule_of(ObjectiveConfig(rule=name)) == rule
    exponential = rule_of(ObjectiveConfig(temperature=5.0, decay=0.9, annealing_epochs=10))
    assert exponential(9).temperature == pytest.approx(5.0 * 0.9**9)
    assert exponential(10) == mcl.AnnealedWTA(0.0)


@for_each(
    "options, message",
    [
        ({"trainin": {}}, "configuration: unknown option .*Did you mean 'training'"),
        ({"data": {"crops": 1}}, "data: unknown option .*Did you mean 'crop'"),
        ({"data": {"n_speakers": []}}, "data: `n_speakers`"),
        ({"data": 3}, "configuration: `data`"),
        ({"objective": {"rule": "best"}}, "objective: `rule`"),
        ({"training": {"schedule": "step"}}, "training: `schedule`"),
        ({"training": {"precision": "16"}}, "training: `precision`"),
    ],
)
def test_wrong_configurations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SeparationConfig.from_dict(options)


# Learning


def four_mixtures():
    """Return a batch of four mixtures of half a second: real speech where it is at hand."""
    if SHARED.is_dir():
        dataset = SpeechMixtures(table_mixtures(SHARED, "tr", 2)[:4], AudioFolder(SHARED), crop=0.5)
    else:
        voices = {f"{i}/1": (32768 * voice(i, 8000)).astype(np.int16) for i in range(8)}
        pairs = [Mixture(str(i), (Track(f"{i}/1"), Track(f"{i + 4}/1"))) for i in range(4)]
        dataset = SpeechMixtures(pairs, AudioPack(voices), crop=0.5)
    return default_collate([dataset[i] for i in range(4)])


def test_a_tiny_network_overfits_four_mixtures_beyond_10_decibels():
    torch.manual_seed(0)
    batch = four_mixtures()
    model = DPRNN(n_outputs=2, kernel_size=32, stride=16, segment_size=20, hidden_size=48, n_blocks=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    reached, deadline = -torch.inf, time.monotonic() + 90
    while reached < 10 and time.monotonic() < deadline:
        output = mcl.mcl_step(model, batch, mcl.PIT(), cost_fn=mcl.pairwise_neg_si_sdr)
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        reached = -output.loss.item()
    assert reached >= 10
