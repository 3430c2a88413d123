"""Records of a fleet are those of its models, one by one."""

import pytest
import torch

import oracles
import torchmcl as mcl
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.records import SCALARS
from torchmcl_fleet import Fleet, FleetData, FleetRecorder, SampledData
from torchmcl_fleet.demo.gaussians import conditional_three_gaussians

PROBES = torch.tensor([[0.1], [0.9]])
HELD_OUT = conditional_three_gaussians(40, torch.Generator().manual_seed(0))
COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 5))
RULES = [mcl.WTA(), mcl.WTA(), COOLING, mcl.RelaxedWTA(0.2)]


def network():
    return mcl.MultiHypothesisMLP(1, 2, 3, hidden=(8,))


def recorded(factory=network, every=2, **options):
    fleet = Fleet(factory, 4, rule=RULES)
    recorder = FleetRecorder(fleet, 5, data=HELD_OUT, probes=PROBES, every=every)
    fleet.fit(SampledData(conditional_three_gaussians, 32, 4), 5, after_epoch=recorder, progress=False, **options)
    return fleet, recorder.records()


def test_the_last_record_is_that_of_the_trained_models():
    fleet, records = recorded()
    for i, (rule, record) in enumerate(zip(RULES, records, strict=True)):
        rule = rule(4) if rule is COOLING else rule
        predictions = fleet.models[i](HELD_OUT.inputs)
        cost = mcl.pairwise_sq_euclidean(hypotheses=predictions.hypotheses, targets=HELD_OUT.targets).detach().double()
        weights = rule(cost)
        temperature = getattr(rule, "temperature", 0.0)
        mask = torch.ones(cost.shape[:-1], dtype=torch.bool)
        expected = oracles.measurement(cost, weights, mask, temperature)
        for name in SCALARS:
            assert getattr(record, name)[-1].item() == pytest.approx(expected[name], abs=2e-5), name
        torch.testing.assert_close(record.usage[-1], weights.mean(dim=(0, 1)).float())
        probed = fleet.models[i](PROBES)
        torch.testing.assert_close(record.hypotheses[-1], probed.hypotheses.detach())
        torch.testing.assert_close(record.scores[-1], mcl.normalized_scores(probed.score_logits).detach())


def test_scores_of_a_trained_mixture_are_recorded_as_its_probabilities():
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(1, 2, 3, hidden=(8,), scales=True),
        2,
        cost_fn=mcl.pairwise_sq_euclidean,
        loss_fn=mcl.MixtureNLL(mcl.pairwise_gaussian_nll),
        score_weight=0.0,
    )
    recorder = FleetRecorder(fleet, 2, data=HELD_OUT, probes=PROBES)
    fleet.fit(SampledData(conditional_three_gaussians, 32, 2), 2, after_epoch=recorder, progress=False)
    expected = fleet.models[1](PROBES).score_logits.detach().softmax(dim=-1)
    torch.testing.assert_close(recorder.records()[1].scores[-1], expected)


def test_every_kth_epoch_and_the_last_are_recorded_with_their_temperature():
    _, records = recorded(every=2)
    assert records[2].step.tolist() == [1, 3, 4]
    torch.testing.assert_close(records[2].temperature, torch.tensor([0.8, 0.4, 0.2]))
    assert records[0].temperature.tolist() == [0, 0, 0]


@pytest.mark.parametrize("at_once", [None, 1])
def test_temperatures_that_models_decide_on_are_recorded_and_measured_at(at_once):
    rules = [AutoAnnealing(), COOLING, AutoAnnealing(0.25)]
    fleet = Fleet(network, 3, rule=rules)
    recorder = FleetRecorder(fleet, 12, data=HELD_OUT, probes=PROBES, every=1)
    rows = FleetData.shared(HELD_OUT.inputs, HELD_OUT.targets, 3)
    seen = {i: [] for i in range(3)}

    def after_epoch(end):
        recorder(end)
        models, stacked = end.models, end.stacked
        for i in range(models.start, models.stop):
            with torch.no_grad():
                seen[i].append(stacked.module(i - models.start)(HELD_OUT.inputs).hypotheses)

    history = fleet.fit(rows, 12, batch_size=8, models_at_once=at_once, after_epoch=after_epoch, progress=False)
    for i, record in enumerate(recorder.records()):
        wanted = [COOLING(epoch).temperature for epoch in range(12)] if i == 1 else history.temperatures[:, i].tolist()
        torch.testing.assert_close(record.temperature, torch.tensor(wanted))
        for epoch, temperature in enumerate(wanted):
            cost = mcl.pairwise_sq_euclidean(hypotheses=seen[i][epoch], targets=HELD_OUT.targets).double()
            weights = mcl.AnnealedWTA(temperature)(cost)
            expected = oracles.measurement(cost, weights, torch.ones(cost.shape[:-1], dtype=torch.bool), temperature)
            torch.testing.assert_close(record.usage[epoch], weights.mean(dim=(0, 1)).float(), atol=1e-5, rtol=1e-4)
            for name in SCALARS:
                assert getattr(record, name)[epoch].item() == pytest.approx(expected[name], abs=1e-4, rel=1e-3), name
    assert recorder.records()[0].temperature[0] > 0
    assert recorder.records()[0].temperature[-1] == 0
