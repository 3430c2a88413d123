"""Options together that each work alone: buffers, early stopping, chunks, checkpoints, weights, fresh rows, records."""

import pytest
import torch
from torch import nn

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl_fleet import (
    SGD,
    Candidate,
    Checkpointing,
    Fleet,
    FleetData,
    FleetRecorder,
    FleetSearch,
    SampledData,
    Validation,
    current_loss,
)

INPUTS, TARGETS = rows(20)


class PowerCutError(Exception):
    pass


class Normalised(nn.Module):
    """BatchNorm and dropout: statistics and random numbers."""

    def __init__(self, p=0.2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(p))
        self.head = mcl.MultiHypothesisHead(8, 2, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


class CountsSteps(nn.Module):
    """A buffer that counts the steps: padding cannot enter it, batches without rows can."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n_steps", torch.tensor(0.0))
        self.mlp = small_mlp()

    def forward(self, inputs):
        if self.training:
            self.n_steps = self.n_steps + 1
        return self.mlp(inputs / (1 + 0.01 * self.n_steps))


def cut_at(epoch, first):
    def after_epoch(end):
        if (end.epoch, end.models.start) == (epoch, first):
            raise PowerCutError

    return after_epoch


RULES = [mcl.WTA(), AutoAnnealing(), mcl.RelaxedWTA(0.1), AutoAnnealing(0.25)]
EVERYTHING = {
    "batch_size": 6,
    "validation": Validation(
        FleetData.shared(*rows(9, seed=3), 4), monitor=current_loss, every=[1, 2, 1, 3], patience=4
    ),
    "models_at_once": 3,
    "continued": True,
    "progress": False,
}
WEIGHTED = FleetData.shared(INPUTS, TARGETS, 4, weights=torch.linspace(0.5, 1.5, 20))


@pytest.mark.parametrize(
    ("factory", "cut", "device"),
    [(small_mlp, (7, 3), "cpu"), (Normalised, (7, 0), ["cpu", "cpu"])],
)
def test_everything_at_once_goes_on_to_the_same_bits(factory, cut, device, tmp_path):
    def new():
        torch.manual_seed(0)  # of dropout
        return Fleet(factory, 4, rule=RULES, optimizer=SGD(0.5), weight_decay=0.01, score_weight=0.5, device=device)

    whole, resumed = new(), new()
    saved = {"checkpoint": Checkpointing(tmp_path, every=3, keep=1)}
    torch.manual_seed(0)
    expected = whole.fit(WEIGHTED, 12, after_epoch=lambda *_: None, **EVERYTHING)
    torch.manual_seed(0)
    with pytest.raises(PowerCutError):
        new().fit(WEIGHTED, 12, after_epoch=cut_at(*cut), **saved, **EVERYTHING)
    torch.manual_seed(0)
    history = resumed.fit(WEIGHTED, 12, after_epoch=lambda *_: None, **saved, **EVERYTHING)
    assert len(list(tmp_path.glob("chunk-0000-*"))) == 1
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    assert_same_bits(whole.optimizer_state, resumed.optimizer_state)


def test_buffers_of_ragged_models_count_their_own_batches_until_they_stop():
    sets = [rows(12), rows(5, seed=1), rows(9, seed=2)]
    data, held_out = FleetData.of_sets(sets, [0, 1, 2]), FleetData.of_sets(sets[::-1], [0, 1, 2])
    fleet = Fleet(CountsSteps, 3, learning_rate=[0.003, 0.003, 3.0])
    history = fleet.fit(data, 10, batch_size=5, validation=Validation(held_out, patience=3), progress=False)
    assert int(history.stopped_epoch[2]) >= 0
    n_epochs = [10 if stop < 0 else stop + 1 for stop in history.stopped_epoch.tolist()]
    n_batches = [3, 1, 2]
    assert fleet.state_dict()["last.buffer.n_steps"].tolist() == [
        a * b for a, b in zip(n_epochs, n_batches, strict=True)
    ]
    best = [(epoch + 1) * b for epoch, b in zip(history.best_epoch.tolist(), n_batches, strict=True)]
    assert fleet.state_dict()["best.buffer.n_steps"].tolist() == best


def test_fresh_rows_with_statistics_are_the_same_in_chunks():
    source = SampledData(lambda n_rows, generator: mcl.Batch(*rows(n_rows, seed=generator.initial_seed() % 99)), 20, 4)
    whole, parts = (Fleet(lambda: Normalised(0.0), 4, rule=AutoAnnealing()) for _ in range(2))
    whole.fit(source, 5, batch_size=6, progress=False)
    parts.fit(source, 5, batch_size=6, models_at_once=1, progress=False)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, atol=1e-5, rtol=1e-4)


def test_a_second_fit_goes_on_with_the_statistics_of_the_first():
    data = FleetData.shared(INPUTS, TARGETS, 2)
    once, twice = (Fleet(lambda: Normalised(0.0), 2, optimizer=SGD()) for _ in range(2))
    once.fit(data, 6, batch_size="all", progress=False)
    for _ in range(2):
        twice.fit(data, 3, batch_size="all", continued=True, progress=False)
    assert_same_bits(once.state_dict(), twice.state_dict())


def test_moments_of_another_optimizer_are_refused():
    fleet = Fleet(small_mlp, 2)
    fleet.optimizer_state = {"velocity": torch.zeros(2, 3)}
    with pytest.raises(ValueError, match=r"Fleet.fit: `continued` must find the moments .*, got {'velocity'"):
        fleet.fit(FleetData.shared(INPUTS, TARGETS, 2), 1, continued=True, progress=False)


def test_records_of_models_with_statistics_and_masked_targets_do_not_change_the_training():
    data = FleetData.shared(INPUTS, TARGETS, 2)
    mask = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) < 0.7
    fleet, plain = (Fleet(lambda: Normalised(0.0), 2, rule=AutoAnnealing()) for _ in range(2))
    recorder = FleetRecorder(fleet, 6, data=mcl.Batch(INPUTS, TARGETS, mask), probes=INPUTS[:2], every=4)
    fleet.fit(data, 6, batch_size=6, after_epoch=recorder, progress=False)
    plain.fit(data, 6, batch_size=6, progress=False)
    assert_same_bits(fleet.state_dict(), plain.state_dict())
    assert [record.step.tolist() for record in recorder.records()] == [[3, 5]] * 2
    with torch.no_grad():
        probed = fleet.models[1].eval()(INPUTS[:2]).hypotheses
    torch.testing.assert_close(recorder.records()[1].hypotheses[-1], probed)


def test_records_of_a_training_that_went_on_begin_where_it_did(tmp_path):
    data = FleetData.shared(INPUTS, TARGETS, 2)
    saved = {"checkpoint": Checkpointing(tmp_path, every=2), "batch_size": 6, "progress": False}
    fleets = [Fleet(small_mlp, 2, rule=AutoAnnealing()) for _ in range(2)]
    with pytest.raises(PowerCutError):
        fleets[0].fit(data, 12, after_epoch=cut_at(7, 0), **saved)
    recorder = FleetRecorder(fleets[1], 12, data=mcl.Batch(INPUTS, TARGETS), probes=INPUTS[:2], every=1)
    history = fleets[1].fit(data, 12, after_epoch=recorder, **saved)
    for i, record in enumerate(recorder.records()):
        assert record.step.tolist() == [6, 7, 8, 9, 10, 11]
        torch.testing.assert_close(record.temperature, history.temperatures[6:, i])


@pytest.mark.parametrize("batch_size", ["all", 7])
def test_a_search_takes_every_option(batch_size, capsys):
    candidates = [
        Candidate("frozen", mcl.WTA(), learning_rate=0.0),
        Candidate("auto", AutoAnnealing(), mcl.Linear(0.05, 0.0, 30), 0.1),
    ]
    search = FleetSearch(candidates, n_splits=2, held_out=0.2, n_restarts=2)
    trials = search.run(
        lambda: Normalised(0.0),
        INPUTS,
        TARGETS,
        30,
        batch_size=batch_size,
        cost_fn=mcl.pairwise_l1,
        seed=5,
        device="cpu",
        validate_every=3,
        progress=True,
    )
    assert trials.values.shape == (2, 2, 2)
    assert trials.best == 1
    assert "search, 2 candidates" in capsys.readouterr().err
