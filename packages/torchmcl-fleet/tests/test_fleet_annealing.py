"""Fleets whose models decide on their temperature themselves."""

from collections import OrderedDict

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl.annealing import AutoAnnealing
from torchmcl.annealing.auto import UNIFORM
from torchmcl_fleet import Checkpointing, Fleet, FleetData

N_EPOCHS = 40
DATA = FleetData.of_sets([rows(13, seed=0), rows(8, seed=1)], [0, 1, 0])


@pytest.mark.parametrize("batch_size", [None, 20])
def test_held_out_rows_are_measured_where_there_are_any(batch_size):
    inputs, targets = rows(60, seed=0)
    fleet = Fleet(small_mlp, 1, rule=AutoAnnealing(), learning_rate=0.01)
    options = {"batch_size": batch_size, "validation": FleetData.shared(inputs, 10 * targets, 1), "progress": False}
    history = fleet.fit(FleetData.shared(inputs, targets, 1), 20, **options)
    cooling = history.temperatures[history.temperatures < UNIFORM]
    assert float(cooling[0]) > 20 * float(targets.square().mean())


@pytest.mark.parametrize("n_broken", [1, 60])
def test_held_out_rows_that_are_not_finite_do_not_reach_the_weights(n_broken):
    inputs, targets = rows(60, seed=0)
    broken = targets.clone()
    broken[:n_broken] = torch.nan
    fleet = Fleet(small_mlp, 1, rule=AutoAnnealing(), learning_rate=0.01)
    validation = FleetData.shared(inputs, broken, 1)
    history = fleet.fit(FleetData.shared(inputs, targets, 1), 50, validation=validation, progress=False)
    assert history.losses.isfinite().all()
    assert history.temperatures.isfinite().all()
    assert history.temperatures[-1] == 0


def test_a_fleet_whose_costs_have_no_zero_cools_from_the_first_epoch():
    def shifted(*, hypotheses, targets):
        return mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets) - 100

    fleet = Fleet(small_mlp, 3, rule=AutoAnnealing(), learning_rate=0.01, cost_fn=shifted)
    temperatures = fleet.fit(DATA, N_EPOCHS, progress=False).temperatures
    assert (temperatures[: N_EPOCHS // 4].diff(dim=0) < 0).all()
    assert (temperatures[N_EPOCHS // 3 :] == 0).all()


def new_fleet(**options):
    rules = [mcl.WTA(), AutoAnnealing(), AutoAnnealing(hold_gain=0.2)]
    return Fleet(small_mlp, 3, **({"rule": rules, "learning_rate": 0.01} | options))


def test_other_models_of_the_fleet_are_not_affected():
    mixed, plain = new_fleet(), new_fleet(rule=mcl.WTA())
    for fleet in (mixed, plain):
        fleet.fit(DATA, N_EPOCHS // 2, batch_size=5, progress=False)
    assert_same_bits(mixed.models[0].state_dict(), plain.models[0].state_dict())


def test_chunks_equal_the_whole():
    options = {"rule": [mcl.TopK(2), AutoAnnealing(), AutoAnnealing()]}
    whole, parts = new_fleet(**options), new_fleet(**options)
    histories = [
        whole.fit(DATA, N_EPOCHS // 2, batch_size=5, progress=False),
        parts.fit(DATA, N_EPOCHS // 2, batch_size=5, models_at_once=1, progress=False),
    ]
    torch.testing.assert_close(whole.state_dict()["last"], parts.state_dict()["last"])
    torch.testing.assert_close(histories[0].temperatures, histories[1].temperatures, equal_nan=True)


def test_an_interrupted_training_resumes_to_the_same_bits(tmp_path):
    class PowerCutError(Exception):
        pass

    def cut(end):
        if end.epoch == 25:
            raise PowerCutError

    options = {"batch_size": 5, "checkpoint": Checkpointing(tmp_path, every=10), "progress": False}
    whole, resumed = new_fleet(), new_fleet()
    expected = whole.fit(DATA, N_EPOCHS, batch_size=5, progress=False)
    with pytest.raises(PowerCutError):
        new_fleet().fit(DATA, N_EPOCHS, after_epoch=cut, **options)
    history = resumed.fit(DATA, N_EPOCHS, **options)
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    torch.testing.assert_close(history.temperatures, expected.temperatures, rtol=0, atol=0, equal_nan=True)


def test_temperatures_are_recorded_and_only_the_tail_is_evaluated():
    fleet = new_fleet()
    held_out = FleetData.shared(*rows(9, seed=2), 3)
    history = fleet.fit(DATA, N_EPOCHS, validation=held_out, progress=False)
    assert history.temperatures[:, 0].isnan().all()
    for model in (1, 2):
        cold = int((history.temperatures[:, model] > 0).sum())
        assert 0 < cold < N_EPOCHS
        assert int(history.best_epoch[model]) >= cold


def test_an_answer_that_depends_on_the_input_is_learned_before_it_splits():
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(256, 1, generator=random) * 2 - 1
    sign = torch.where(torch.rand(256, 1, generator=random) < 0.5, 1.0, -1.0)
    targets = (3 * inputs + 0.2 * sign).unsqueeze(1)
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(1, 1, 2, hidden=(16,)), 1, rule=AutoAnnealing(), learning_rate=0.02)
    history = fleet.fit(FleetData.shared(inputs, targets, 1), 400, progress=False)
    temperatures = history.temperatures[:, 0]
    assert (temperatures[:40] == UNIFORM).all()  # held
    assert 0.015 < temperatures[temperatures < UNIFORM][0] < 0.05  # half of what remains
    hypotheses = fleet.predict(torch.tensor([[0.5]])).hypotheses.flatten().sort().values
    torch.testing.assert_close(hypotheses, torch.tensor([1.3, 1.7]), atol=0.05, rtol=0)


def test_a_rewind_restores_the_statistics_of_batch_norm():
    def normalized():
        parts = OrderedDict(norm=torch.nn.BatchNorm1d(1), head=mcl.MultiHypothesisHead(1, 1, 2))
        return torch.nn.Sequential(parts)

    fleet = Fleet(normalized, 2, rule=[mcl.WTA(), AutoAnnealing()])
    inputs = torch.rand(30, 1)
    fleet.fit(FleetData.shared(inputs, torch.stack([inputs, -inputs], dim=1), 2), 20, progress=False)
    assert [int(model.norm.num_batches_tracked) for model in fleet.models] == [20, 19]  # the probe took one epoch


def test_a_model_without_a_head_cools_at_once():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 3)

        def forward(self, inputs):
            return mcl.Predictions(self.layer(inputs).unsqueeze(-1))

    fleet = Fleet(Plain, 2, rule=AutoAnnealing())
    data = FleetData.shared(torch.rand(30, 2), torch.rand(30, 1, 1), 2)
    with pytest.warns(UserWarning, match="AutoAnnealing: `model` must end in one trained MultiHypothesisHead"):
        temperatures = fleet.fit(data, 40, progress=False).temperatures
    assert (temperatures[:12].diff(dim=0) < 0).all()
    assert (temperatures[12:] == 0).all()


def test_a_model_that_has_settled_does_not_depend_on_one_that_holds():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(96, 2, generator=generator)
    targets = 3 * inputs[:, :1] + torch.where(torch.rand(96, 1, generator=generator) < 0.5, 0.5, -0.5)
    first = mcl.AutoAnnealing(hold=False, rate=False)
    weights = []
    for rules in ([first], [first, mcl.AutoAnnealing()]):
        fleet = Fleet(lambda: mcl.MultiHypothesisMLP(2, 1, 4, hidden=(16,)), len(rules), rule=rules, learning_rate=0.02)
        held_out = FleetData.shared(inputs[72:], targets[72:].unsqueeze(1), len(rules))
        data = FleetData.shared(inputs[:72], targets[:72].unsqueeze(1), len(rules))
        fleet.fit(data, 60, batch_size=24, validation=held_out, progress=False)
        weights.append(fleet.state_dict()["last"][0])
    assert torch.allclose(*weights, atol=1e-4)
