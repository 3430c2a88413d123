"""The fleet itself: what it predicts, keeps, refuses, and how it deals with failures."""

import copy
import pickle

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, assert_same_model, rows, small_mlp, weights_of
from torchmcl.schedules import JoinedSchedule
from torchmcl_fleet import Fleet, FleetData

INPUTS, TARGETS = rows(11)
DATA = FleetData.shared(INPUTS, TARGETS, 3)


def fit(fleet, data=DATA, n_epochs=6, **options):
    return fleet.fit(data, n_epochs, progress=False, **options)


# Making and looking


def test_model_i_starts_as_its_seed_makes_it():
    fleet = Fleet(small_mlp, 2, seeds=[8, 5])
    for i, seed in enumerate([8, 5]):
        torch.manual_seed(seed)
        assert torch.equal(weights_of(fleet.models[i]), weights_of(small_mlp()))


def test_a_fleet_leaves_the_random_state_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    fit(Fleet(small_mlp, 3), batch_size=4)
    assert torch.equal(torch.rand(3), expected)


def test_models_are_ordinary_modules_with_the_outputs_of_the_fleet():
    fleet = Fleet(small_mlp, 3)
    fit(fleet)
    predictions = fleet.predict(INPUTS)
    assert predictions.hypotheses.shape == (3, 11, 3, 2)
    assert predictions.score_logits.shape == (3, 11, 3)
    assert not predictions.hypotheses.requires_grad
    assert len(fleet.models) == 3
    for i, module in enumerate(fleet.models):
        assert type(module) is mcl.MultiHypothesisMLP
        assert all(isinstance(parameter, torch.nn.Parameter) for parameter in module.parameters())
        hypotheses, score_logits = module(INPUTS)
        torch.testing.assert_close(predictions.hypotheses[i], hypotheses)
        torch.testing.assert_close(predictions.score_logits[i], score_logits)


def test_each_model_can_have_inputs_of_its_own():
    fleet = Fleet(small_mlp, 3)
    inputs = torch.randn(3, 4, 2)
    hypotheses = fleet.predict(inputs, per_model=True).hypotheses
    for i, module in enumerate(fleet.models):
        torch.testing.assert_close(hypotheses[i], module(inputs[i]).hypotheses)


def test_changing_a_model_taken_out_does_not_change_the_fleet():
    fleet = Fleet(small_mlp, 3)
    before = fleet.predict(INPUTS).hypotheses
    with torch.no_grad():
        for parameter in fleet.models[1].parameters():
            parameter.zero_()
    assert torch.equal(fleet.predict(INPUTS).hypotheses, before)


def test_evaluation_gives_the_metrics_of_each_model_on_its_own_rows():
    sets = [rows(11, seed=0), rows(6, seed=1)]
    fleet = Fleet(small_mlp, 3)
    fit(fleet)
    result = fleet.evaluate(FleetData.of_sets(sets, [1, 0, 1]))
    assert {name: tuple(value.shape) for name, value in result.items()} == {
        "distortion": (3,),
        "rmse": (3,),
        "usage": (3, 3),
    }
    for i, number in enumerate([1, 0, 1]):
        inputs, targets = sets[number]
        with torch.no_grad():
            hypotheses, score_logits = fleet.models[i](inputs)
        cost = (hypotheses.unsqueeze(1) - targets.unsqueeze(2)).square().sum(dim=-1)
        torch.testing.assert_close(result["distortion"][i], cost.amin(dim=-1).mean())
        usage = cost.argmin(dim=-1).flatten().bincount(minlength=3) / cost[..., 0].numel()
        torch.testing.assert_close(result["usage"][i], usage)
        expected = mcl.metrics.rmse_of_mean(mcl.Predictions(hypotheses, score_logits), targets)
        torch.testing.assert_close(result["rmse"][i], expected)


def test_weights_go_into_another_fleet_and_back():
    fleet, other = Fleet(small_mlp, 3), Fleet(small_mlp, 3, seeds=[7, 8, 9])
    fit(fleet, validation=DATA)
    other.load_state_dict(fleet.state_dict())
    assert_same_bits(fleet.state_dict(), other.state_dict())
    assert torch.equal(other.predict(INPUTS).hypotheses, fleet.predict(INPUTS).hypotheses)
    assert torch.equal(other.predict(INPUTS, best=True).hypotheses, fleet.predict(INPUTS, best=True).hypotheses)
    fit(other)  # and training it further leaves the first alone
    assert not torch.equal(other.state_dict()["last"], fleet.state_dict()["last"])


def test_a_second_fit_begins_with_the_weights_of_the_first():
    fleet = Fleet(small_mlp, 3)
    fit(fleet)
    first = fleet.state_dict()["last"].clone()
    seen = {}
    fit(fleet, n_epochs=1, after_epoch=lambda end: seen.update({end.epoch: end.stacked.flat.clone()}))
    assert torch.equal(seen[0], fleet.state_dict()["last"])
    assert 0 < (seen[0] - first).abs().max() < 0.02  # one step of Adam


def test_after_epoch_sees_every_epoch_and_chunk_with_models_to_call():
    fleet, seen = Fleet(small_mlp, 3), []

    def note(end):
        epoch, models, stacked = end.epoch, end.models, end.stacked
        assert stacked(INPUTS.expand(len(stacked), 11, 2)).hypotheses.shape == (models.stop - models.start, 11, 3, 2)
        seen.append((epoch, models.start, models.stop))

    fit(fleet, n_epochs=2, models_at_once=2, after_epoch=note)
    assert seen == [(0, 0, 2), (1, 0, 2), (0, 2, 3), (1, 2, 3)]


def test_a_fleet_in_training_refuses_its_initial_weights_and_is_usable_afterwards():
    fleet = Fleet(small_mlp, 3)
    uses = [
        lambda _: fleet.predict(INPUTS),
        lambda _: fleet.models,
        lambda _: fleet.state_dict(),
        lambda _: fleet.load_state_dict({}),
        lambda _: fit(fleet, n_epochs=1),
    ]
    for stale in uses:
        with pytest.raises(RuntimeError, match=r"not current during `fit`. Use `info.stacked`"):
            fit(fleet, n_epochs=2, after_epoch=stale)
    fleet.predict(INPUTS)


# Batches and padding


@pytest.mark.parametrize("filler", [float("nan"), 1e30, float("inf")])
@pytest.mark.parametrize("where", ["inputs", "targets"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_padding_cannot_leak(filler, where, batch_size):
    data = FleetData.of_sets([rows(11, seed=0), rows(6, seed=1)], [0, 1, 1])
    filled = getattr(data, where).clone()
    filled[1, 6:] = filler
    clean, dirty = Fleet(small_mlp, 3), Fleet(small_mlp, 3)
    spoilt = data._replace(**{where: filled})
    expected = fit(clean, data, batch_size=batch_size, validation=data)
    assert_same_bits(expected, fit(dirty, spoilt, batch_size=batch_size, validation=spoilt))
    assert_same_bits(clean.state_dict(), dirty.state_dict())
    assert_same_bits(clean.evaluate(data), dirty.evaluate(spoilt))


# Failures


RULES_OF_ALL_KINDS = [
    mcl.WTA(),
    mcl.RelaxedWTA(0.1),
    mcl.AnnealedWTA(0.5),
    mcl.TopK(2),
    mcl.Sinkhorn(0.5, n_iters=5),
    mcl.PIT(),
    mcl.EMD(),
]


@pytest.mark.parametrize("rule", RULES_OF_ALL_KINDS, ids=repr)
@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_a_nan_in_the_data_of_one_model_harms_no_other(rule, where):
    good = rows(5)
    bad = tuple(part.clone() for part in good)
    bad[where == "targets"][2] = torch.nan
    options = {"batch_size": 3, "n_epochs": 2}
    clean, harmed = Fleet(small_mlp, 3, rule=rule), Fleet(small_mlp, 3, rule=rule)
    expected = fit(clean, FleetData.of_sets([good, good], [0, 1, 0]), **options)
    words = r"1 of 3 models is not finite; model 1 was the first of them, from batch \d of epoch 0 on. The others are"
    with pytest.warns(RuntimeWarning, match=words):
        history = fit(harmed, FleetData.of_sets([good, bad], [0, 1, 0]), **options)
    assert history.failed_epoch.tolist() == [-1, 0, -1]
    assert torch.equal(history.losses[:, [0, 2]], expected.losses[:, [0, 2]])
    assert not history.losses[:, 1].isfinite().any()
    for i in (0, 2):
        assert torch.equal(weights_of(harmed.models[i]), weights_of(clean.models[i]))


def test_a_model_that_diverges_harms_no_other_and_keeps_its_best_weights():
    clean, harmed = (
        Fleet(small_mlp, 3),
        Fleet(small_mlp, 3, learning_rate=[0.01, JoinedSchedule((lambda _: 0.01, lambda _: 1e38), (3,)), 0.01]),
    )
    expected = fit(clean, n_epochs=8, validation=DATA)
    with pytest.warns(RuntimeWarning, match="model 1 was the first of them, from batch 0 of epoch 4 on"):
        history = fit(harmed, n_epochs=8, validation=DATA)
    assert history.failed_epoch.tolist() == [-1, 4, -1]
    assert torch.equal(history.losses[:, [0, 2]], expected.losses[:, [0, 2]])
    assert torch.equal(harmed.state_dict()["last"][[0, 2]], clean.state_dict()["last"][[0, 2]])
    assert history.best_epoch[1] == 2
    assert harmed.state_dict()["best"].isfinite().all()


# Bad input


def test_a_fleet_of_one_is_a_fleet():
    one, three = Fleet(small_mlp, 1, seeds=[1]), Fleet(small_mlp, 3)
    fit(one, FleetData.shared(INPUTS, TARGETS, 1), batch_size=4)
    fit(three, batch_size=4)
    assert_same_model(one.models[0], three.models[1], atol=1e-6)


@pytest.mark.parametrize(
    "copied", [lambda fleet: pickle.loads(pickle.dumps(fleet)), copy.deepcopy], ids=["pickle", "copy"]
)
def test_a_copy_of_a_fleet_trains_as_the_fleet(copied):
    fleet = Fleet(small_mlp, 3)
    fit(fleet)
    other = copied(fleet)
    fit(fleet)
    fit(other)
    assert_same_bits(fleet.state_dict(), other.state_dict())
    torch.testing.assert_close(fleet.predict(INPUTS).hypotheses, other.predict(INPUTS).hypotheses, rtol=0, atol=0)
