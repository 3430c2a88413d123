"""Fleets on hypotheses of any shape: sequences with masks, two costs, kinds of scores, distributions."""

import functools
import math

import pytest
import torch

import torchmcl as mcl
from torchmcl_fleet import Fleet, FleetData, SampledData, Validation

N_ROWS, N_EPOCHS = 24, 6


def rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(N_ROWS, 3, generator=generator)
    targets = torch.randn(N_ROWS, 1, 5, 2, generator=generator)
    mask = torch.rand(N_ROWS, 1, 5, generator=generator) > 0.3
    mask[0] = False
    return inputs, targets.masked_fill(~mask.unsqueeze(-1), math.nan), mask


def network(scales=False):
    return mcl.MultiHypothesisMLP(3, (5, 2), 4, hidden=(8,), scales=scales)


CASES = {
    "ade": {"cost_fn": mcl.pairwise_ade},
    "two costs": {"cost_fn": mcl.pairwise_ade, "loss_fn": mcl.pairwise_laplace_nll, "scores": mcl.SoftmaxScores()},
    "soft labels": {"cost_fn": mcl.pairwise_fde, "scores": mcl.SoftmaxScores(None)},
    "mixture": {"cost_fn": mcl.MixtureNLL(mcl.pairwise_gaussian_nll), "score_weight": 0.0},
}


def alone(seed, rule, options, data):
    """Train one network in a plain loop."""
    torch.manual_seed(seed)
    model = network(scales="MixtureNLL" in str(options) or "laplace" in str(options))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(N_EPOCHS):
        optimizer.zero_grad()
        mcl.mcl_step(model, mcl.Batch(*data), rule, **options).loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("ragged", [False, True])
def test_model_i_is_the_model_trained_alone(options, ragged):
    scales = "MixtureNLL" in str(options) or "laplace" in str(options)
    rules = [mcl.WTA(), mcl.AnnealedWTA(0.5)]
    sets = [rows(0), tuple(part[:17] for part in rows(1))] if ragged else [rows(0), rows(1)]
    fleet = Fleet(functools.partial(network, scales), 2, rule=rules, **options)
    data = FleetData.of_sets(sets, [0, 1])
    fleet.fit(data, N_EPOCHS, batch_size="all", validation=Validation(data), progress=False)
    for i, rule in enumerate(rules):
        expected = alone(i, rule, options, sets[i])
        for left, right in zip(fleet.models[i].parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    predictions = fleet.predict(sets[0][0])
    assert predictions.hypotheses.shape == (2, N_ROWS, 4, 5, 2)
    assert isinstance(predictions, mcl.Distributions) == scales
    evaluated = fleet.evaluate(data)
    assert evaluated["distortion"].isfinite().all()
    for i, (inputs, targets, mask) in enumerate(sets):
        given = mcl.Predictions(*fleet.models[i](inputs)[:2])
        scores = mcl.SoftmaxScores() if "MixtureNLL" in str(options) else options.get("scores")
        expected = mcl.metrics.rmse_of_mean(given, targets, mask, scores=scores)
        torch.testing.assert_close(evaluated["rmse"][i], expected.detach())


def test_masked_targets_of_a_row():
    inputs, targets = torch.randn(N_ROWS, 3), torch.randn(N_ROWS, 2, 1)
    mask = torch.rand(N_ROWS, 2) > 0.4
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(3, 1, 4, hidden=(8,)), 1)
    fleet.fit(FleetData.shared(inputs, targets, 1, mask=mask), N_EPOCHS, batch_size="all", progress=False)
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(3, 1, 4, hidden=(8,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(N_EPOCHS):
        optimizer.zero_grad()
        mcl.mcl_step(model, mcl.Batch(inputs, targets, mask), mcl.WTA()).loss.backward()
        optimizer.step()
    for left, right in zip(fleet.models[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_automatic_annealing_measures_the_matched_cost():
    inputs, targets, mask = rows()
    options = {"cost_fn": mcl.pairwise_ade, "loss_fn": mcl.pairwise_laplace_nll}
    fleet = Fleet(functools.partial(network, scales=True), 2, rule=mcl.AutoAnnealing(), **options)
    history = fleet.fit(FleetData.shared(inputs, targets, 2, mask=mask), 20, batch_size=8, progress=False)
    assert history.losses.isfinite().all()


def test_fresh_rows_with_masks():
    def draw(n_rows, generator):
        real = torch.rand(n_rows, 1, 5, generator=generator) > 0.3
        return mcl.Batch(
            torch.randn(n_rows, 3, generator=generator), torch.randn(n_rows, 1, 5, 2, generator=generator), real
        )

    fleet = Fleet(network, 2, cost_fn=mcl.pairwise_ade)
    assert fleet.fit(SampledData(draw, 16, 2), 3, batch_size=8, progress=False).losses.isfinite().all()
