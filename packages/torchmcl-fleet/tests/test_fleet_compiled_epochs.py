"""Epochs that run in one call of compiled code, up to the next evaluation, train as epochs called one by one."""

import pytest

import torchmcl as mcl
from plain_loop import assert_same_bits, rows
from torchmcl_fleet import Fleet, FleetData, Validation, native

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the C extension")
DATA = FleetData.shared(*rows(23, seed=0), 3)
HELD_OUT = FleetData.shared(*rows(9, seed=1), 3)
COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 12))
CASES = {
    "all rows at once": {"batch_size": "all"},
    "minibatches": {"batch_size": 6},
    "evaluations in between": {"batch_size": 6, "validation": Validation(HELD_OUT, every=[4, 4, 6])},
    "early stopping": {"batch_size": 6, "validation": Validation(HELD_OUT, patience=2)},
}


def trained(n_epochs=33, **options):
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8,)),
        3,
        rule=[mcl.WTA(), COOLING, mcl.RelaxedWTA(0.1)],
        weight_decay=[0.0, 0.1, 0.01],
        learning_rate=[0.01, mcl.Exponential(0.05, 0.9), 0.02],
        backend="compiled",
    )
    return fleet, fleet.fit(DATA, n_epochs, progress=False, **options)


@pytest.mark.parametrize("case", CASES)
def test_several_epochs_in_one_call_give_the_bits_of_single_ones(case):
    seen = []
    fleet, history = trained(**CASES[case])
    single, expected = trained(**CASES[case], after_epoch=lambda info: seen.append(info.epoch))  # called epoch by epoch
    assert len(seen) > 10
    assert_same_bits(fleet.state_dict(), single.state_dict())
    assert_same_bits(history, expected)


def test_a_model_has_the_same_bits_at_every_place_of_a_fleet():
    def weights(seeds):
        fleet = Fleet(lambda: mcl.MultiHypothesisMLP(2, 2, 3, hidden=(7,)), len(seeds), seeds=seeds, backend="compiled")
        fleet.fit(FleetData.shared(*rows(23, seed=0), len(seeds)), 60, batch_size=16, progress=False)
        return fleet.state_dict()["last"][-1].tolist()

    assert weights([0, 1, 2, 3]) == weights([3])
