"""Validation: the best weights, how often a model is evaluated, and early stopping."""

import pytest
import torch

import torchmcl as mcl
from plain_loop import rows, small_mlp, weights_of
from torchmcl_fleet import Checkpointing, Fleet, FleetData, Validation, current_loss

SETS = [rows(12, seed=0), rows(9, seed=1), rows(6, seed=2)]
DATA = FleetData.of_sets(SETS, [0, 1, 2])
# Rows on which the models are at their best somewhere on the way, each at another epoch.
HELD_OUT_SETS = [(SETS[0][0], -5 * SETS[0][1]), rows(7, seed=4), rows(10, seed=5)]
HELD_OUT = FleetData.of_sets(HELD_OUT_SETS, [0, 1, 2])
RULES = [mcl.WTA(), mcl.RelaxedWTA(0.2), mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 6))]
N_EPOCHS = 14


def trained(n_epochs=N_EPOCHS, **options):
    fleet = Fleet(small_mlp, 3, rule=RULES, learning_rate=0.05)
    return fleet, fleet.fit(DATA, n_epochs, batch_size=5, progress=False, **options)


def distortions(module):
    """Return the distortion of one module on each of the sets that are held out."""
    values = []
    for inputs, targets in HELD_OUT_SETS:
        with torch.no_grad():
            cost = (module(inputs).hypotheses.unsqueeze(1) - targets.unsqueeze(2)).square().sum(dim=-1)
        values.append(cost.amin(dim=-1).mean())
    return values


@pytest.fixture(scope="module")
def course():
    """The weights [epochs, models, parameters] and the distortions [epochs, models] of a plain training."""
    weights, values = [], []

    def note(end):
        modules = [end.stacked.module(i) for i in range(3)]
        weights.append(torch.stack([weights_of(module) for module in modules]))
        values.append(torch.stack([distortions(module)[i] for i, module in enumerate(modules)]))

    trained(after_epoch=note)
    return torch.stack(weights), torch.stack(values)


def test_the_best_weights_are_those_of_the_best_epoch(course):
    weights, values = course
    fleet, history = trained(validation=HELD_OUT)
    assert torch.equal(history.best_epoch, values.argmin(dim=0))
    assert history.best_epoch.unique().numel() > 1
    torch.testing.assert_close(history.best_value, values.amin(dim=0))
    for i, epoch in enumerate(history.best_epoch.tolist()):
        assert torch.equal(weights_of(fleet.best_models[i]), weights[epoch, i])
        assert torch.equal(weights_of(fleet.models[i]), weights[-1, i])
    torch.testing.assert_close(fleet.evaluate(HELD_OUT, best=True)["distortion"], history.best_value)
    torch.testing.assert_close(fleet.evaluate(HELD_OUT)["distortion"], values[-1])
    inputs = SETS[0][0]
    expected = fleet.best_models[1](inputs).hypotheses
    torch.testing.assert_close(fleet.predict(inputs, best=True).hypotheses[1], expected)
    assert torch.equal(history.stopped_epoch, torch.full((3,), -1))


@pytest.mark.parametrize("every", [[1, 3, 5], [5, 1, 5], [3, 3, 2], [20, 4, 1]])
def test_each_model_is_evaluated_as_often_as_asked_for(course, every):
    weights, values = course
    fleet, history = trained(validation=Validation(HELD_OUT, every=every))
    for i, n in enumerate(every):
        looked = sorted({*range(n - 1, N_EPOCHS, n), N_EPOCHS - 1})  # the last epoch always
        best = min(looked, key=lambda epoch, i=i: values[epoch, i])
        assert history.best_epoch[i] == best
        torch.testing.assert_close(history.best_value[i], values[best, i])
        assert torch.equal(weights_of(fleet.best_models[i]), weights[best, i])


def test_the_monitor_decides_what_is_best():
    seen = []

    def loss_of_each(end):
        epoch, stacked = end.epoch, end.stacked
        rule = [rule if isinstance(rule, mcl.AssignmentRule) else rule(epoch) for rule in RULES]
        with torch.no_grad():
            outputs = [fleet_step(stacked, i, rule[i]) for i in range(3)]
        seen.append(torch.stack([output.loss for output in outputs]))

    def fleet_step(stacked, i, rule):
        inputs, targets = HELD_OUT_SETS[i]
        return mcl.mcl_step(stacked.module(i), mcl.Batch(inputs, targets), rule)

    _, history = trained(validation=Validation(HELD_OUT, monitor=current_loss), after_epoch=loss_of_each)
    values = torch.stack(seen)
    torch.testing.assert_close(history.best_value, values.amin(dim=0))
    assert torch.equal(history.best_epoch, values.argmin(dim=0))


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_stops_a_model_and_freezes_it_while_others_continue(course, patience):
    weights, values = course
    fleet, history = trained(validation=Validation(HELD_OUT, patience=patience))
    for i in range(3):
        best, stopped = 0, -1
        for epoch in range(N_EPOCHS):
            if values[epoch, i] < values[best, i]:
                best = epoch
            if epoch - best >= patience:
                stopped = epoch
                break
        assert history.best_epoch[i] == best
        assert history.stopped_epoch[i] == stopped
        assert torch.equal(weights_of(fleet.models[i]), weights[stopped, i])  # -1: the last
        assert torch.equal(weights_of(fleet.best_models[i]), weights[best, i])
    assert (history.stopped_epoch >= 0).any()
    assert history.stopped_epoch.unique().numel() > 1


@pytest.mark.parametrize("every", [None, 4, 50])
def test_a_training_in_which_all_models_stopped_ends_early(every, tmp_path):
    seen = []
    fleet = Fleet(small_mlp, 3, learning_rate=0.0)
    options = {"validation": Validation(DATA, patience=2), "after_epoch": lambda end: seen.append(end.epoch)}
    if every is not None:
        options["checkpoint"] = Checkpointing(tmp_path, every=every)
    history = fleet.fit(DATA, 200, progress=False, **options)
    assert history.stopped_epoch.tolist() == [2, 2, 2]
    assert max(seen) < 50


def test_without_validation_the_history_has_no_best():
    _, history = trained(2)
    assert history.best_epoch.tolist() == [-1, -1, -1]
    assert (history.best_value == torch.inf).all()
