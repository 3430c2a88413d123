"""Models in folders with cards, and on a server with the interface of the Hub."""

import os
import subprocess
import sys

import pytest
import torch

import torchmcl
from grids import for_each
from hub import local_hub
from torchmcl.costs import BivariateNormal, FullNormal


def network():
    return torchmcl.MultiHypothesisMLP(2, (2, 1), 3, hidden=(4, 5), scores=False, scales=True, dropout=0.25)


def test_a_network_comes_back_with_its_card(tmp_path):
    model = network().eval()
    model.save_pretrained(tmp_path / "model", about="Measured on nothing.")
    model.save_pretrained(tmp_path / "model", about="Measured on nothing.")  # replaces the first
    again = torchmcl.MultiHypothesisMLP.from_pretrained(tmp_path / "model")
    x = torch.randn(5, 2)
    assert all(torch.equal(one, other) for one, other in zip(model(x), again(x), strict=True) if one is not None)
    assert again.config == model.config
    card = (tmp_path / "model" / "README.md").read_text()
    assert "library_name: torchmcl" in card
    assert "Measured on nothing." in card
    assert 'MultiHypothesisMLP.from_pretrained("user/model")' in card


@for_each("dtype", [torch.float64, torch.bfloat16])
@for_each("scales", [False, True, FullNormal(), BivariateNormal()])
def test_a_network_keeps_its_dtype_and_its_scales(tmp_path, dtype, scales):
    model = torchmcl.MultiHypothesisMLP(3, (4, 2), 5, hidden=(6,), scales=scales).to(dtype).eval()
    model.head.linear.float()  # a mixture of dtypes
    model.save(tmp_path / "model")
    again = torchmcl.MultiHypothesisMLP.load(tmp_path / "model")
    torch.testing.assert_close(dict(again.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in again.parameters())
    assert again.head.scales == scales


def test_networks_with_code_inside_are_refused(tmp_path):
    model = torchmcl.MultiHypothesisMLP(2, 1, 3, output_activation=torch.tanh)
    with pytest.raises(ValueError, match=r"MultiHypothesisMLP\.save"):
        model.save_pretrained(tmp_path / "model")


def test_a_name_that_is_neither_a_folder_nor_a_repository_is_refused():
    with pytest.raises(ValueError, match="`name`"):
        torchmcl.MultiHypothesisMLP.from_pretrained("nowhere")


PROGRAM = """
import sys, torch, torchmcl
torch.manual_seed(0)
model = torchmcl.MultiHypothesisMLP(2, 1, 3, hidden=(4,)).eval()
assert "commit" in model.push_to_hub("user/model", about="From a test.")
again = torchmcl.MultiHypothesisMLP.from_pretrained("user/model")
assert torch.equal(model(torch.ones(1, 2)).hypotheses, again(torch.ones(1, 2)).hypotheses)
"""


@pytest.mark.slow
def test_a_repository_of_the_hub_takes_and_gives_a_model(tmp_path):
    pytest.importorskip("huggingface_hub")
    with local_hub() as (address, files):
        settings = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
        subprocess.run(command, check=True, env=os.environ | settings | {"HF_HUB_DISABLE_TELEMETRY": "1"})
        assert sorted(files) == ["README.md", "model.safetensors"]
