"""A model whose loss is not finite keeps its last good weights, and nobody else notices."""

import math

import pytest
import torch

from plain_loop import rows, small_mlp
from torchmcl.schedules import JoinedSchedule
from torchmcl_fleet import SGD, Adam, Fleet, FleetData
from torchmcl_fleet.problem import shuffled_rows

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
    with pytest.warns(
        RuntimeWarning, match=r"model 1 was the first of them, from batch \d of epoch 0 on.* last finite"
    ):
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


def batch_of_row(row, seed, n_rows, batch_size, epoch=0):
    order = shuffled_rows(torch.tensor([seed]), epoch, torch.tensor([n_rows]), n_rows)[0]
    return order.tolist().index(row) // batch_size


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_the_batch_of_a_bad_row_is_named(chunk):
    sets = [tuple(part.clone() for part in rows(n_rows, seed=n_rows)) for n_rows in (12, 9, 12)]
    sets[1][0][7] = math.nan
    sets[2][1][3] = math.inf
    words = (
        rf"2 of 3 models is not finite; model 1 was the first of them, from batch {batch_of_row(7, 1, 9, 4)} of epoch 0"
    )
    with pytest.warns(RuntimeWarning, match=words):
        _, history = fitted(sets, batch_size=4, models_at_once=chunk)
    assert history.failed_epoch.tolist() == [-1, 0, 0]
    assert history.failed_batch.tolist() == [-1, batch_of_row(7, 1, 9, 4), batch_of_row(3, 2, 12, 4)]


def test_the_batch_after_a_step_that_went_too_far_is_named():
    # The third epoch begins with a step out of all bounds, which the batch after it shows.
    far = JoinedSchedule((lambda _: 0.01, lambda _: 1e38), (2,))
    with pytest.warns(RuntimeWarning, match="model 2 was the first of them, from batch 1 of epoch 2 on"):
        _, history = fitted(GOOD, batch_size=5, fleet={"learning_rate": [0.01, 0.01, far]})
    assert history.failed_batch.tolist() == [-1, -1, 1]
