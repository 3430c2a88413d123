"""Separators by name: they are intact, say what they are, and refuse what is not."""

import hashlib
import json
import shutil
import subprocess
import sys

import pytest
import torch

from places import PYTHONPATH, ROOT
from torchmcl_speech.nn import DPRNN, save_model
from torchmcl_speech.separation import (
    count_probabilities,
    load_separator,
    model_card,
    models_table,
    shipped,
    shipped_models,
)
from torchmcl_speech.separation.start import begin_with
from voices import recordings

MODELS = ROOT / "packages/torchmcl-speech/src/torchmcl_speech/separation/models"


@pytest.mark.parametrize("name", shipped_models())
def test_each_is_small_intact_and_described_without_a_path(name):
    card, file = model_card(name), MODELS / name / "model.safetensors"
    content = file.read_bytes()
    assert card["name"] == name
    assert card["sha256"] == hashlib.sha256(content).hexdigest()
    assert card["bytes"] == len(content) <= 8_000_000
    assert {"data", "training", "results", "limits", "license", "attribution"} <= card.keys()
    assert "CC BY 4.0" in card["attribution"]
    separator, notes = load_separator(name)
    assert not separator.training
    data = notes["configuration"]["data"]
    assert (data["root"], data["pack"], data["tables"]) == (None, None, {})
    assert notes["sample_rate"] == card["sample_rate"]
    assert sum(weight.numel() for weight in separator.parameters()) == card["parameters"]
    assert all(torch.isfinite(weight).all() for weight in separator.parameters())
    with torch.inference_mode():
        assert separator(torch.randn(1, 400)).hypotheses.shape == (1, card["n_outputs"], 400)


def test_the_default_is_shipped():
    assert "two-speakers" in shipped_models()


def test_an_unknown_name_lists_the_names():
    with pytest.raises(
        ValueError, match=r"`model` must be the folder of a saved model or one of .*two-speakers.*, got"
    ):
        load_separator("two-speakrs")
    with pytest.raises(ValueError, match="Did you mean 'two-speakers'"):
        model_card("two-speakrs")


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    shutil.copytree(MODELS / "two-speakers", tmp_path / "two-speakers")
    monkeypatch.setattr(shipped, "_MODELS", tmp_path)
    path = tmp_path / "two-speakers" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"`two-speakers` must have the sha256 [0-9a-f]{64}, got .* install torchmcl"):
        load_separator("two-speakers")
    path.unlink()
    with pytest.raises(ValueError, match="got no file"):
        load_separator("two-speakers")
    (tmp_path / "two-speakers" / "card.json").write_text("{}")
    with pytest.raises(ValueError, match=r"`card\.json` must be as the package wrote it"):
        load_separator("two-speakers")


def test_a_folder_is_a_model_too_also_with_the_name_of_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model("two-speakers", DPRNN(3, n_filters=8, segment_size=10, hidden_size=6, n_blocks=1), {"sample_rate": 5})
    assert load_separator("./two-speakers")[1] == {"sample_rate": 5}
    assert load_separator(tmp_path / "two-speakers")[1] == {"sample_rate": 5}
    assert load_separator("two-speakers")[1]["sample_rate"] == 8000


def test_a_training_begins_with_a_shipped_model_of_the_same_sizes():
    saved, _ = load_separator("two-speakers")
    model = DPRNN(**saved.config)
    assert begin_with(model, "two-speakers") == []
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), saved.state_dict().values(), strict=True))


def ship(folder, name, *options):
    command = [sys.executable, str(ROOT / "benchmarks" / "ship.py"), str(folder / "run"), "--name", name]
    command += ["--data", str(folder / "speech"), "--into", str(folder / "models"), *options]
    environment = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("scores", [False, True])
def test_the_script_that_ships_a_training_tests_it_leaves_out_paths_and_writes_a_card(tmp_path, monkeypatch, scores):
    torch.manual_seed(0)
    model = DPRNN(3, n_filters=8, segment_size=10, hidden_size=6, n_blocks=1, scores=scores)
    for part in ("tr", "cv", "tt"):
        recordings(tmp_path / "speech" / part, n_speakers=4, n_utterances=1, n_samples=2000)
    genders = [f"speaker{i},{'FM'[i % 2]}" for i in range(4)]
    (tmp_path / "speech" / "speakers.csv").write_text("\n".join(["speaker,gender", *genders]) + "\n")
    data = {"root": "/secret", "pack": "/secret.npz", "tables": {}, "n_speakers": [1, 2, 3] if scores else [2]}
    configuration = {"data": data, "model": {"n_outputs": 3}, "training": {"seed": 1}}
    notes = {"sample_rate": 8000, "configuration": configuration, "val_pit_si_sdr": 3.0}
    save_model(tmp_path / "run" / "model", model, notes)
    (tmp_path / "run" / "records.jsonl").write_text('{"step": 10, "seconds": 60.0}\n')
    made = ship(tmp_path, "tiny", "--limit", "6", "--device", "cpu")
    assert made.returncode == 0, made.stderr
    monkeypatch.setattr(shipped, "_MODELS", tmp_path / "models")
    card = model_card("tiny")
    assert (card["n_outputs"], card["scores"], card["sizes"]["n_blocks"]) == (3, scores, 1)
    assert card["half_precision_db"] > 30
    assert card["results"]["all"]["mixtures"] == 4  # one voice alone cannot improve
    assert {"2 speakers", "3 speakers"} <= card["results"].keys() if scores else "F+M" in card["results"]
    assert ("counting" in card) == scores
    if scores:
        assert card["counting"]["test"]["accuracy_by_number"].keys() == {"1", "2", "3"}
        assert load_separator("tiny")[1]["score_temperature"] > 0
    for file in ("card.json", "model.safetensors"):
        assert b"/secret" not in (tmp_path / "models" / "tiny" / file).read_bytes()
    assert torch.allclose(load_separator("tiny")[0].decoder, model.decoder, atol=1e-3)
    assert "tiny" in models_table([card])
    assert "not measured" in models_table([card])
    assert "7.5 times real time" in models_table([card | {"speed": {"times_real_time": 7.5}}])


def test_a_model_that_is_too_large_is_not_shipped(tmp_path):
    model = DPRNN(2, n_filters=8, segment_size=10, hidden_size=256, n_blocks=2)
    notes = {"sample_rate": 8000, "configuration": {"data": {"n_speakers": [2]}}, "val_pit_si_sdr": 3.0}
    save_model(tmp_path / "run" / "model", model, notes)
    (tmp_path / "run" / "records.jsonl").write_text('{"step": 10, "seconds": 60.0}\n')
    record = {"speakers": ["a", "b"], "improvement": 2.0}
    (tmp_path / "run" / "model" / "evaluation-tt.jsonl").write_text(json.dumps(record) + "\n")
    refused = ship(tmp_path, "huge")
    assert "huge: would have" in refused.stderr
    assert not (tmp_path / "models").exists()


def test_a_name_that_another_installation_has_is_an_error_that_lists_those_of_this_one(monkeypatch, tmp_path):
    shutil.copytree(MODELS / "two-speakers", tmp_path / "two-speakers")
    monkeypatch.setattr(shipped, "_MODELS", tmp_path)
    message = r"one of \['two-speakers'\], got 'three-speakers'\. This installation does not contain it"
    with pytest.raises(ValueError, match=message):
        load_separator("three-speakers")


def test_counts_are_those_of_all_ways_to_choose_voices():
    scores = torch.rand(3, 4, dtype=torch.float64)
    found = count_probabilities(torch.logit(scores))
    wanted = torch.zeros(3, 5, dtype=torch.float64)
    for chosen in torch.cartesian_prod(*[torch.tensor([0, 1])] * 4):
        wanted[:, int(chosen.sum())] += torch.where(chosen == 1, scores, 1 - scores).prod(dim=-1)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(3, dtype=torch.float64))
