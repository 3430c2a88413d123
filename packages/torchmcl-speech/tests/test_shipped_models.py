"""Separators by name: they are intact, say what they are, and refuse what is not."""

import hashlib
import shutil

import pytest
import torch

from grids import for_each
from places import ROOT
from torchmcl_speech import (
    count_probabilities,
    load_separator,
    model_card,
    shipped_models,
)
from torchmcl_speech.nn import DPRNN, save_model
from torchmcl_speech.pretrained import copy_weights, load_with_card

MODELS = ROOT / "packages/torchmcl-speech/src/torchmcl_speech/models"


@for_each("name", shipped_models())
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


def test_an_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match="`model`"):
        load_separator("two-speakrs")
    with pytest.raises(ValueError, match="Did you mean 'two-speakers'"):
        model_card("two-speakrs")


def test_a_damaged_file_is_refused(tmp_path):
    folder = shutil.copytree(MODELS / "two-speakers-small", tmp_path / "small")
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"`small` must have the SHA-256 checksum [0-9a-f]{64}, got .* install torchmcl-speech"
    ):
        load_with_card(folder)
    path.unlink()
    with pytest.raises(ValueError, match="got no file"):
        load_with_card(folder)
    (folder / "card.json").write_text("{}")
    with pytest.raises(ValueError, match=r"`card\.json`"):
        load_with_card(folder)


def test_a_folder_is_a_model_too_also_with_the_name_of_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model("two-speakers", DPRNN(3, n_filters=8, segment_size=10, hidden_size=6, n_blocks=1), {"sample_rate": 5})
    assert load_separator("./two-speakers")[1] == {"sample_rate": 5}
    assert load_separator(tmp_path / "two-speakers")[1] == {"sample_rate": 5}
    assert load_separator("two-speakers")[1]["sample_rate"] == 8000


def test_a_training_begins_with_a_shipped_model_of_the_same_sizes():
    saved, _ = load_separator("two-speakers")
    model = DPRNN(**saved.config)
    assert copy_weights(model, "two-speakers") == []
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), saved.state_dict().values(), strict=True))


def test_counts_are_those_of_all_ways_to_choose_voices():
    scores = torch.rand(3, 4, dtype=torch.float64)
    found = count_probabilities(torch.logit(scores))
    wanted = torch.zeros(3, 5, dtype=torch.float64)
    for chosen in torch.cartesian_prod(*[torch.tensor([0, 1])] * 4):
        wanted[:, int(chosen.sum())] += torch.where(chosen == 1, scores, 1 - scores).prod(dim=-1)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(3, dtype=torch.float64))
