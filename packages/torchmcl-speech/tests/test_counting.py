"""Numbers of speakers: probabilities from scores, one answer for long recordings, silence, calibration."""

import json

import numpy as np
import pytest
import torch

from grids import for_each

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

import torchmcl as mcl  # noqa: E402
from torchmcl.app import main  # noqa: E402
from torchmcl_speech import (  # noqa: E402
    DataConfig,
    calibrate_counts,
    count_log_loss,
    count_speakers,
    evaluate_separator,
    fit_count_temperature,
    separate_recording,
)
from torchmcl_speech.nn import DPRNN, load_model, save_model, separate_long  # noqa: E402
from voices import recordings, voice  # noqa: E402


def saved(folder, *, logit=None, scores=True, n_outputs=3, **notes):
    """Save a small network; with a logit, all its outputs get it as their score."""
    torch.manual_seed(0)
    model = DPRNN(n_outputs, n_filters=8, segment_size=20, hidden_size=6, n_blocks=1, scores=scores)
    if logit is not None:
        with torch.no_grad():
            model.score.weight.zero_()
            model.score.bias.fill_(logit)
    save_model(folder, model, {"sample_rate": 8000} | notes)
    return folder


@pytest.fixture
def talk(tmp_path):
    soundfile.write(tmp_path / "talk.wav", voice(1, 20000), 8000)
    return tmp_path / "talk.wav"


@pytest.mark.parametrize(("logit", "n_voices"), [(9.0, 3), (-9.0, 0)])
def test_as_many_files_are_written_as_voices_are_likely(tmp_path, talk, capsys, logit, n_voices):
    model = saved(tmp_path / "model", logit=logit)
    command = ["separation", "separate", str(talk), "--model", str(model), "-o", str(tmp_path / "out"), "--quiet"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"{n_voices}: 100 %" in shown
    assert ("No output is likely to be a voice" in shown) == (n_voices == 0)
    assert len(list((tmp_path / "out").glob("talk-[0-9].wav"))) == n_voices
    result = json.loads((tmp_path / "out" / "separation.json").read_text())
    assert len(result["outputs"]) == n_voices
    page = (tmp_path / "out" / "index.html").read_text()
    assert f"most likely {n_voices}" in page
    assert ("of audio, no voice." in page) == (n_voices == 0)
    assert main([*command, "--voices", "2"]) == 0
    assert len(json.loads((tmp_path / "out" / "separation.json").read_text())["outputs"]) == 2


@pytest.mark.parametrize(("scores", "level"), [(True, 0.0), (False, 1e-6)])
def test_silence_has_no_voices_and_it_is_said(tmp_path, capsys, scores, level):
    model = saved(tmp_path / "model", logit=9.0 if scores else None, scores=scores)
    soundfile.write(tmp_path / "a.wav", np.full(9000, level), 8000, subtype="FLOAT")
    out = tmp_path / "out"
    assert main(["separation", "separate", str(tmp_path / "a.wav"), "--model", str(model), "-o", str(out)]) == 0
    assert "The recording is silent and contains no voices." in capsys.readouterr().out
    result = json.loads((out / "separation.json").read_text())
    assert result["silent"]
    assert result["speakers"] == ([1, 0, 0, 0] if scores else None)
    assert len(result["outputs"]) == (0 if scores else 3)  # a model without scores gives all it has
    assert "The recording is silent." in (out / "index.html").read_text()
    if scores:
        assert count_speakers(tmp_path / "a.wav", model) == {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}


def test_counting_writes_nothing_and_agrees_with_separating(tmp_path, talk):
    model = saved(tmp_path / "model", score_temperature=0.5)
    before = sorted(tmp_path.rglob("*"))
    found = count_speakers(talk, model, chunk_seconds=0.5)
    assert sorted(tmp_path.rglob("*")) == before
    assert sum(found.values()) == pytest.approx(1)
    result = separate_recording(talk, tmp_path / "out", model, chunk_seconds=0.5)
    assert list(found.values()) == pytest.approx(result["speakers"])
    assert len(result["outputs"]) == max(found, key=found.get)


def test_a_chunk_counts_by_the_energy_of_the_output_in_it():
    def model(piece):  # the first output is the sound and a voice where it is loud, the second nothing
        logit = 4.0 if piece.abs().max() > 0.5 else -4.0
        return mcl.Predictions(torch.stack([piece, 0 * piece], dim=1), torch.tensor([[logit, -4.0]]))

    sound = torch.cat([torch.full((1, 100), 0.9), torch.full((1, 900), 0.01)], dim=-1)
    logits = separate_long(model, sound, chunk=100, overlap=10).score_logits
    assert logits[0, 0] > 3.5  # a tenth of the time, nearly all of the energy
    assert logits[0, 1] == pytest.approx(-4, abs=1e-5) or logits[0, 1] > -4  # without energy all chunks count alike
    assert torch.isfinite(separate_long(model, torch.zeros(1, 500), chunk=100).score_logits).all()


# ---------------------------------------------------------------------------- calibration


@for_each("temperature", [0.4, 3.0])
def test_the_temperature_that_made_the_counts_is_found(temperature):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * temperature * torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    chances = torch.sigmoid(logits / temperature)
    counts = torch.bernoulli(chances, generator=generator).sum(dim=-1).long()
    found = fit_count_temperature(logits, counts)
    assert found == pytest.approx(temperature, rel=0.08)  # more than three standard errors, 2.4 %
    assert count_log_loss(logits / found, counts) <= count_log_loss(logits, counts)


@pytest.mark.filterwarnings("ignore:SpeechMixtures")
def test_calibrating_keeps_the_weights_and_lowers_the_loss(tmp_path):
    for part in ("tr", "cv"):
        recordings(tmp_path / "speech" / part, n_speakers=4, n_utterances=2, n_samples=4000)
    data = DataConfig(root=str(tmp_path / "speech"), n_speakers=(1, 2))
    model = saved(tmp_path / "model")
    before = load_model(model)[0].state_dict()
    found = calibrate_counts(model, data, limit=4, progress=False)
    records = evaluate_separator(model, data, part="cv", limit=4, progress=False)
    network, notes = load_model(model)
    assert notes["score_temperature"] == found["temperature"]
    assert found["log_loss"] <= found["log_loss_before"]
    assert calibrate_counts(model, data, limit=4, progress=False)["log_loss_before"] == found["log_loss"]
    assert found["mixtures"] == 4
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())
    assert sorted(len(record["speakers"]) for record in records) == [1, 1, 2, 2]  # as many of each number
    assert np.mean([record["n_voices"] == len(record["speakers"]) for record in records]) == found["accuracy"]
