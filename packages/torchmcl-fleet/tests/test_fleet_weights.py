"""Rows that count more than others, and trainings that continue where the last one ended."""

import torch

import torchmcl as mcl
from plain_loop import rows, small_mlp
from torchmcl_fleet import Fleet, FleetData


def fleet(n_models=3, **options):
    return Fleet(small_mlp, n_models, rule=mcl.AnnealedWTA(0.5), learning_rate=0.01, **options)


def weights_after(data, n_epochs=4, **options):
    trained = fleet(data.n_models)
    trained.fit(data, n_epochs, progress=False, **options)
    return trained.state_dict()["last"]


def test_a_row_of_weight_two_is_a_row_that_stands_twice():
    inputs, targets = rows(6)
    counts = torch.tensor([1, 2, 3, 1, 1, 4])
    weighted = FleetData.shared(inputs, targets, 3, weights=counts / counts.float().mean())
    repeated = FleetData.shared(inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts, 0), 3)
    torch.testing.assert_close(weights_after(weighted), weights_after(repeated), atol=1e-5, rtol=1e-4)


def test_rows_of_weight_zero_are_not_seen_in_minibatches():
    inputs, targets = rows(12)
    off = torch.arange(12) % 3 == 0
    changed = targets.masked_fill(off[:, None, None], 100.0)
    weights = (~off).float() / (~off).float().mean()
    one, two = (FleetData.shared(inputs, t, 2, weights=weights) for t in (targets, changed))
    torch.testing.assert_close(weights_after(one, batch_size=5), weights_after(two, batch_size=5))


def test_two_continued_trainings_are_one():
    data = FleetData.shared(*rows(20), 20)
    whole = fleet(20)
    whole.fit(data, 6, progress=False)
    parts = fleet(20)
    for _ in range(2):
        parts.fit(data, 3, continued=True, models_at_once=7, progress=False)
    torch.testing.assert_close(parts.state_dict()["last"], whole.state_dict()["last"], atol=1e-6, rtol=1e-5)
    assert parts.optimizer_state["n_steps"].flatten().tolist() == [6] * 20
    assert whole.optimizer_state is None


def test_detached_scores_in_a_fleet_are_those_of_a_model_alone():
    def build():
        return mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8,), detach_scores=True)

    inputs, targets = rows(20)
    trained = Fleet(build, 2, rule=mcl.WTA(), learning_rate=0.01)
    trained.fit(FleetData.shared(inputs, targets, 2), 3, progress=False)
    for seed in range(2):
        torch.manual_seed(seed)
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
        for _ in range(3):
            loss = mcl.mcl_step(model, mcl.Batch(inputs, targets), mcl.WTA()).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        alone = torch.cat([p.detach().flatten() for p in model.parameters()])
        torch.testing.assert_close(trained.state_dict()["last"][seed], alone, atol=1e-6, rtol=1e-4)
