"""Epochs that run in one call of compiled code, up to the next evaluation, train as epochs called one by one."""

import pytest

import torchmcl as mcl
from plain_loop import assert_same_bits, rows
from torchmcl_fleet import Checkpointing, Fleet, FleetData, Validation, native

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


@pytest.mark.filterwarnings("ignore:Fleet. the loss of 1 of 3 models is not finite")
def test_a_failure_is_reported_with_its_epoch_and_batch():
    rates = [0.01, lambda epoch: 1e30 if epoch == 12 else 0.01, 0.02]
    fleets = [
        Fleet(lambda: mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8,)), 3, learning_rate=rates, backend="compiled")
        for _ in range(2)
    ]
    history = fleets[0].fit(DATA, 25, batch_size=6, progress=False)
    expected = fleets[1].fit(DATA, 25, batch_size=6, progress=False, after_epoch=lambda _: None)
    assert history.failed_epoch.tolist() == [-1, 12, -1]
    assert history.failed_batch.tolist() == [-1, 1, -1]
    assert_same_bits(history, expected)
    assert_same_bits(fleets[0].state_dict(), fleets[1].state_dict())


def test_a_resumed_training_begins_in_the_middle_of_a_call(tmp_path):
    whole, history = trained(n_epochs=33, batch_size=6)
    trained(n_epochs=33, batch_size=6, checkpoint=Checkpointing(tmp_path, every=7))
    last = sorted(tmp_path.rglob("*.safetensors"))[-1]
    last.unlink()  # the state of the end: the one before is of epoch 28
    resumed, again = trained(n_epochs=33, batch_size=6, checkpoint=Checkpointing(tmp_path, every=7))
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    assert_same_bits(history, again)


def test_a_model_has_the_same_bits_at_every_place_of_a_fleet():
    def weights(seeds):
        fleet = Fleet(lambda: mcl.MultiHypothesisMLP(2, 2, 3, hidden=(7,)), len(seeds), seeds=seeds, backend="compiled")
        fleet.fit(FleetData.shared(*rows(23, seed=0), len(seeds)), 60, batch_size=16, progress=False)
        return fleet.state_dict()["last"][-1].tolist()

    assert weights([0, 1, 2, 3]) == weights([3])
