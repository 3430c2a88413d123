"""Latents turn any network into one with several hypotheses."""

import pytest
import torch
from torch import nn

import torchmcl as mcl
from grids import for_each
from torchmcl.nn import EmbeddedLatent, LatentHypotheses, NormalLatent
from torchmcl.postprocess import reduce

INPUTS = torch.linspace(-1, 1, 6).view(3, 2)


def test_hypothesis_k_is_the_network_with_latent_k():
    torch.manual_seed(0)
    network = nn.Linear(2 + 4, 3)
    model = LatentHypotheses(network, 5, NormalLatent(4))
    latents = model.draw(3)
    found = model(INPUTS, latents).hypotheses
    for k in range(5):
        torch.testing.assert_close(found[:, k], network(torch.cat([INPUTS, latents[:, k]], dim=-1)))
    sequences = LatentHypotheses(network, 2, NormalLatent(4))(INPUTS.unsqueeze(1).expand(3, 7, 2))
    assert sequences.hypotheses.shape == (3, 2, 7, 3)


def test_any_number_of_samples_is_reduced_to_a_few():
    model = LatentHypotheses(nn.Linear(2 + 4, 3), 5, NormalLatent(4))
    with torch.no_grad():
        many = model(INPUTS, n_hypotheses=50)
    assert many.hypotheses.shape == (3, 50, 3)
    assert reduce(many, 4).hypotheses.shape == (3, 4, 3)


def test_embedded_latents_are_trained():
    model = LatentHypotheses(nn.Linear(2 + 3, 1), 2, EmbeddedLatent(2, 3))
    mcl.mcl_step(model, mcl.Batch(INPUTS, torch.randn(3, 1)), mcl.AnnealedWTA(1.0)).loss.backward()
    assert model.latent.embedding.weight.grad.abs().max() > 0


def test_predictions_of_one_hypothesis_keep_scores_and_scales():
    network = mcl.MultiHypothesisMLP(2 + 4, 3, n_hypotheses=1, hidden=(8,), scales=True)
    found = LatentHypotheses(network, 5, NormalLatent(4))(INPUTS)
    assert (found.hypotheses.shape, found.score_logits.shape, found.scale.shape) == ((3, 5, 3), (3, 5), (3, 5, 3))


@for_each(
    "make, error, words",
    [
        (lambda: EmbeddedLatent(2, 3).draw(1, 5), ValueError, "must be at most the number of embeddings 2, got 5"),
        (lambda: NormalLatent(0), ValueError, "NormalLatent: `size`"),
        (
            lambda: LatentHypotheses(mcl.MultiHypothesisMLP(6, 1, n_hypotheses=3), 2, NormalLatent(4))(INPUTS),
            TypeError,
            "LatentHypotheses: `network`",
        ),
    ],
)
def test_bad_arguments_are_refused_in_words(make, error, words):
    with pytest.raises(error, match=words):
        make()
