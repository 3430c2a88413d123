"""Rows drawn anew for every epoch: what a model sees depends on seed and epoch alone."""

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, assert_same_model, plain_loss, small_mlp
from torchmcl_fleet import Checkpointing, Fleet, SampledData

CPU = torch.device("cpu")
COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 6))
RULES = [mcl.WTA(), COOLING, mcl.RelaxedWTA(0.1)]


def draw(n_rows, generator):
    inputs = torch.randn(n_rows, 2, generator=generator)
    return mcl.Batch(inputs, inputs.unsqueeze(1) + 0.1 * torch.randn(n_rows, 2, 2, generator=generator))


SOURCE = SampledData(draw, n_rows=24, n_models=3, seed=7)


def trained(**options):
    fleet = Fleet(small_mlp, 3, rule=RULES)
    return fleet, fleet.fit(SOURCE, 6, progress=False, **options)


def test_rows_depend_on_seed_and_epoch_only():
    again = SOURCE.epoch(3, CPU)
    assert torch.equal(SOURCE.epoch(3, CPU).inputs, again.inputs)
    assert torch.equal(SOURCE.epoch(3, CPU).targets, again.targets)
    assert not torch.equal(SOURCE.epoch(2, CPU).inputs, again.inputs)
    assert not torch.equal(SampledData(draw, 24, 3, seed=8).epoch(3, CPU).inputs, again.inputs)


@pytest.mark.parametrize("batch_size", [None, 7])
def test_every_model_trains_as_a_plain_loop_over_the_same_rows(batch_size):
    fleet, history = trained(batch_size=batch_size)
    for i, rule in enumerate(RULES):
        torch.manual_seed(i)
        module = small_mlp()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.0)
        for epoch in range(6):
            data = SOURCE.epoch(epoch, CPU)
            total = 0.0
            for inputs, targets in zip(
                data.inputs[0].split(batch_size or 24), data.targets[0].split(batch_size or 24), strict=True
            ):
                loss = plain_loss(module(inputs), targets, rule(epoch) if rule is COOLING else rule)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(inputs) / 24
            assert history.losses[epoch, i].item() == pytest.approx(total, abs=1e-5)
        assert_same_model(fleet.models[i], module)


def test_chunks_see_the_same_rows():
    whole, history = trained(batch_size=7)
    parts, part_history = trained(batch_size=7, models_at_once=2)
    torch.testing.assert_close(whole.state_dict()["last"], parts.state_dict()["last"], atol=1e-6, rtol=0)
    torch.testing.assert_close(history.losses, part_history.losses, atol=1e-6, rtol=0)


def test_a_resumed_training_sees_the_rows_it_would_have_seen(tmp_path):
    whole, history = trained(batch_size=7)

    def cut(end):
        if end.epoch == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(batch_size=7, checkpoint=Checkpointing(tmp_path, every=2), after_epoch=cut)
    resumed, resumed_history = trained(batch_size=7, checkpoint=Checkpointing(tmp_path, every=2))
    assert_same_bits(resumed.state_dict(), whole.state_dict())
    assert_same_bits(resumed_history, history)
