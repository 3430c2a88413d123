"""A fleet cut into chunks is the whole fleet."""

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl_fleet import Fleet, FleetData, Validation

RULES = [mcl.WTA(), mcl.AnnealedWTA(0.3), mcl.AnnealedWTA(0.0), mcl.RelaxedWTA(0.1), mcl.WTA(), mcl.TopK(2), mcl.WTA()]
SETS = [rows(13, seed=0), rows(7, seed=1)]
RAGGED = FleetData.of_sets(SETS, [0, 1, 1, 0, 1, 0, 1])
SHARED = FleetData.shared(*SETS[0], 7)


def trained(data, **options):
    fleet = Fleet(
        small_mlp, 7, rule=RULES, learning_rate=[0.01, 0.02] * 3 + [0.005], weight_decay=[0.0, 0.1] * 3 + [0.0]
    )
    return fleet, fleet.fit(data, 6, progress=False, **options)


BATCHES = {"batch_size": 5, "validation": Validation(RAGGED, every=3)}


@pytest.mark.parametrize(
    ("data", "options", "n_at_once"),
    [(SHARED, {}, 3), (SHARED, BATCHES, 100), (RAGGED, BATCHES, 1), (RAGGED, {}, 3)],
)
def test_chunks_train_as_the_whole(data, options, n_at_once):
    whole, history = trained(data, models_at_once=7, **options)
    cut, cut_history = trained(data, models_at_once=n_at_once, **options)
    if n_at_once >= 7:
        assert_same_bits(whole.state_dict(), cut.state_dict())
        assert_same_bits(history, cut_history)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], value, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cut_history.losses, history.losses, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cut_history.best_value, history.best_value, atol=1e-6, rtol=1e-6)
    assert torch.equal(cut_history.best_epoch, history.best_epoch)


def test_early_stopping_records_the_same_in_chunks():
    def stopped(n_at_once):
        fleet = Fleet(
            small_mlp, 7, rule=RULES, learning_rate=[0.0, 0.01, 0.0, 0.01, 0.01, 0.0, 0.0]
        )  # some never improve
        options = {"validation": Validation(SHARED, patience=2), "models_at_once": n_at_once}
        return fleet.fit(SHARED, 6, progress=False, **options)

    whole, cut = stopped(7), stopped(1)
    assert whole.stopped_epoch[[0, 2, 5, 6]].tolist() == [2, 2, 2, 2]
    assert torch.equal(cut.stopped_epoch, whole.stopped_epoch)
    assert torch.equal(cut.best_epoch, whole.best_epoch)
    torch.testing.assert_close(cut.losses, whole.losses, atol=1e-6, rtol=1e-6, equal_nan=True)


def test_models_that_need_more_memory_than_the_cache_are_cut_into_chunks():
    """The activations of a model are 4 bytes for each of 2 * 4096 values of 2048 rows, the cache has 64 MB."""
    data = FleetData.shared(torch.zeros(2048, 1), torch.zeros(2048, 1, 1), 2)
    fleet, seen = Fleet(lambda: mcl.MultiHypothesisMLP(1, 1, 1, hidden=(4096,)), 2, backend="autograd"), []
    fleet.fit(data, 1, batch_size="all", after_epoch=lambda end: seen.append(end.models.start), progress=False)
    assert seen == [0, 1]


@pytest.mark.parametrize(("n_rows", "n_cores"), [(8, 1), (4000, 2)])
def test_small_steps_stay_on_one_core_and_the_setting_comes_back(n_rows, n_cores):
    def wide():
        return mcl.MultiHypothesisMLP(2, 2, 3, hidden=(64, 64), output_activation=torch.tanh)

    before = torch.get_num_threads()
    seen = []
    torch.set_num_threads(2)
    try:
        fleet = Fleet(wide, 2)
        data = FleetData.shared(*rows(n_rows), 2)
        after_epoch = lambda _: seen.append(torch.get_num_threads())  # noqa: E731
        fleet.fit(data, 1, batch_size="all", progress=False, after_epoch=after_epoch)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [n_cores]
