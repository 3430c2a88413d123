"""A model whose loss is not finite keeps its last good weights, and nobody else notices."""

import math

import pytest
import torch
from plain_loop import rows, small_mlp

from torchmcl.fleet import SGD, Adam, Fleet, FleetData

GOOD = [rows(12, seed=seed) for seed in range(3)]


def with_bad_row(sets, row=10):
    inputs = sets[1][0].clone()
    inputs[row] = math.nan
    return [sets[0], (inputs, sets[1][1]), sets[2]]


def fitted(sets, n_epochs=4, **options):
    fleet = Fleet(small_mlp, 3, **options.pop("fleet", {}))
    history = fleet.fit(FleetData.of_sets(sets, [0, 1, 2]), n_epochs, progress=False, **options)
    return fleet, history


@pytest.mark.parametrize("optimizer", [Adam(), SGD(0.9)], ids=["adam", "sgd"])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_bad_row_stops_one_model_only_and_its_weights_stay_finite(optimizer, batch_size):
    options = {"batch_size": batch_size, "fleet": {"optimizer": optimizer, "weight_decay": 0.1}}
    whole, expected = fitted(GOOD, **options)
    with pytest.warns(RuntimeWarning, match=r"model 1 was the first of them, from epoch 0 on.* last finite ones"):
        fleet, history = fitted(with_bad_row(GOOD), **options)
    assert history.failed_epoch.tolist() == [-1, 0, -1]
    assert fleet.state_dict()["last"].isfinite().all()
    for model in (0, 2):
        assert torch.equal(whole.state_dict()["last"][model], fleet.state_dict()["last"][model])
        assert torch.equal(expected.losses[:, model], history.losses[:, model])


def test_with_nothing_but_bad_batches_the_weights_are_the_initial_ones():
    with pytest.warns(RuntimeWarning, match="not finite"):
        fleet, _ = fitted(with_bad_row(GOOD), fleet={"weight_decay": 0.1})
    assert torch.equal(fleet.state_dict()["last"][1], Fleet(small_mlp, 3).state_dict()["last"][1])


def test_a_rate_that_is_far_too_high_leaves_finite_weights():
    with pytest.warns(RuntimeWarning, match="1 of 3 models is not finite; model 0"):
        fleet, history = fitted(GOOD, 30, fleet={"lr": [1e15, 0.01, 0.01], "optimizer": SGD()})
    assert history.failed_epoch[0] > 0
    assert fleet.state_dict()["last"].isfinite().all()
    assert torch.isfinite(history.losses[:, 1:]).all()
