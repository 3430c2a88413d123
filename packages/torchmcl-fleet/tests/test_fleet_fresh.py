"""Rows drawn anew for every epoch: what a model sees depends on seed and epoch alone."""

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, assert_same_model, plain_loss, small_mlp
from torchmcl_fleet import Checkpointing, Fleet, FleetData, SampledData

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


def test_refilled_rows_are_those_of_the_epoch():
    data = SOURCE.epoch(0, CPU)
    inputs = data.inputs
    SOURCE.refill(data, 4)
    assert torch.equal(data.targets, SOURCE.epoch(4, CPU).targets)
    assert data.inputs is inputs


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


def test_fresh_rows_differ_from_fixed_ones():
    fixed = Fleet(small_mlp, 3, rule=RULES)
    fixed.fit(SOURCE.epoch(0, CPU), 6, progress=False)
    fresh, _ = trained()
    assert not torch.equal(fixed.state_dict()["last"], fresh.state_dict()["last"])


def test_rows_for_another_number_of_models_are_refused():
    with pytest.raises(ValueError, match="`data` must be for 2 models, got 3"):
        Fleet(small_mlp, 2).fit(SOURCE, 1, progress=False)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda n, g: draw(n - 1, g), "must return 24 inputs and targets, without scenes, got 23 and 23"),
        (lambda n, g: draw(n, g)._replace(scene=torch.zeros(n, dtype=torch.long)), "got 24 and 24 with scenes"),
    ],
)
def test_a_source_that_returns_something_else_is_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        SampledData(bad, 24, 3).epoch(0, CPU)


def test_a_source_needs_something_to_draw_from():
    with pytest.raises(TypeError, match="SampledData: `draw` must be callable"):
        SampledData(3, 24, 3)
    with pytest.raises(ValueError, match="SampledData: `n_rows` must be >= 1"):
        SampledData(draw, 0, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_epochs_see_fresh_rows_too():
    def on_device(n_rows, generator):
        inputs = torch.randn(n_rows, 2, generator=generator, device=generator.device)
        return mcl.Batch(inputs, inputs.unsqueeze(1))

    def run(backend):
        fleet = Fleet(small_mlp, 3, rule=RULES, device="cuda", backend=backend)
        return fleet.fit(SampledData(on_device, 24, 3), 6, batch_size=7, progress=False).losses

    assert torch.equal(run("captured"), run("autograd"))


def test_data_of_a_fleet_is_still_checked():
    with pytest.raises(TypeError, match="must be FleetData"):
        Fleet(small_mlp, 3).fit(draw, 1, progress=False)
    assert isinstance(SOURCE.epoch(0, CPU), FleetData)
