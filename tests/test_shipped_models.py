"""Separators by name: they are intact, say what they are, and refuse what is not."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchmcl
from torchmcl.nn import DPRNN, load_model, save_model
from torchmcl.separation import count_probabilities, load_separator, model_card, shipped, shipped_models
from torchmcl.separation.start import begin_with

ROOT = Path(__file__).parents[1]
MODELS = Path(torchmcl.__file__).parent / "separation" / "models"


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


def test_the_script_that_ships_a_model_leaves_out_paths_and_writes_a_card(tmp_path):
    torch.manual_seed(0)
    model = DPRNN(2, n_filters=8, segment_size=10, hidden_size=6, n_blocks=1)
    configuration = {"data": {"root": "/secret", "pack": "/secret.npz", "tables": {"tr": "x"}}, "training": {"seed": 1}}
    notes = {"sample_rate": 8000, "configuration": configuration, "val_pit_si_sdr": 3.0}
    save_model(tmp_path / "trained", model, notes)
    (tmp_path / "records.jsonl").write_text('{"step": 10, "seconds": 60.0}\n')
    record = {"speakers": ["a", "b"], "improvement": 2.0}
    (tmp_path / "tt.jsonl").write_text(json.dumps(record) + "\n" + json.dumps(record | {"improvement": 4.0}) + "\n")
    (tmp_path / "speakers.csv").write_text("speaker,gender\na,F\nb,M\n")
    command = [sys.executable, str(ROOT / "benchmarks" / "ship.py"), str(tmp_path / "trained"), "--name", "tiny"]
    command += ["--evaluation", str(tmp_path / "tt.jsonl"), "--records", str(tmp_path / "records.jsonl")]
    command += ["--speakers", str(tmp_path), "--into", str(tmp_path / "models")]
    subprocess.run(command, check=True, capture_output=True, env={"PYTHONPATH": str(ROOT / "src")})
    card = json.loads((tmp_path / "models/tiny/card.json").read_text())
    assert card["results"]["F+M"]["mean"] == card["results"]["all"]["mean"] == 3.0
    assert card["half_precision_db"] > 30
    assert "/secret" not in (tmp_path / "models/tiny/card.json").read_text()
    assert b"/secret" not in (tmp_path / "models/tiny/model.safetensors").read_bytes()
    again, _ = load_model(tmp_path / "models" / "tiny")
    assert torch.allclose(again.decoder, model.decoder, atol=1e-3)


def test_counts_are_those_of_all_ways_to_choose_voices():
    scores = torch.rand(3, 4, dtype=torch.float64)
    found = count_probabilities(torch.logit(scores))
    wanted = torch.zeros(3, 5, dtype=torch.float64)
    for chosen in torch.cartesian_prod(*[torch.tensor([0, 1])] * 4):
        wanted[:, int(chosen.sum())] += torch.where(chosen == 1, scores, 1 - scores).prod(dim=-1)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(3, dtype=torch.float64))
