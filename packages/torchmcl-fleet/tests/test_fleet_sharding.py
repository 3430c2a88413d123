"""A fleet that is split across several devices is the fleet of one device."""

import threading

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl_fleet import Checkpointing, Fleet, FleetData, SampledData, Validation
from torchmcl_fleet.placement import Placement, devices_of

RULES = [mcl.WTA(), mcl.AnnealedWTA(0.3), mcl.RelaxedWTA(0.1), mcl.TopK(2)] * 3
SETS = [rows(13, seed=0), rows(7, seed=1)]
DATA = FleetData.of_sets(SETS, [0, 1, 1] * 4)
CPU = torch.device("cpu")


class WithDropout(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 4))

    def forward(self, inputs):
        return mcl.Predictions(self.layers(inputs).unflatten(-1, (2, 2)))


def trained(device, factory=small_mlp, data=DATA, n_epochs=6, **options):
    torch.manual_seed(0)  # of the dropout
    fleet = Fleet(
        factory, 12, rule=RULES if factory is small_mlp else mcl.WTA(), learning_rate=[0.01, 0.02] * 6, device=device
    )
    return fleet, fleet.fit(data, n_epochs, progress=False, **options)


def assert_same_training(one, other):
    assert_same_bits(one[0].state_dict(), other[0].state_dict())
    assert_same_bits(one[1]._replace(seconds=0.0), other[1]._replace(seconds=0.0))


@pytest.mark.parametrize("options", [{}, {"batch_size": 5, "validation": Validation(DATA, every=3)}])
def test_several_devices_train_to_the_bits_of_one(options):
    options = options | {"models_at_once": 2}
    one = trained("cpu", **options)
    for n_devices in (2, 5):
        assert_same_training(one, trained(["cpu"] * n_devices, **options))


def test_the_models_are_split_equally_if_there_is_enough_memory():
    def chunks(device):
        seen = []
        trained(device, n_epochs=1, after_epoch=lambda end: seen.append((end.models.start, end.models.stop)))
        return seen

    assert chunks(["cpu", "cpu"]) == [(0, 6), (6, 12)]
    assert chunks(["cpu"] * 5) == [(0, 3), (3, 6), (6, 9), (9, 12)]


def test_devices_train_side_by_side_and_each_has_its_chunks_in_order():
    together = threading.Barrier(3, timeout=20)
    seen = []

    def work(number, chunk, device):
        if number < 3:
            together.wait()  # passes only if three devices are at work at the same time
        seen.append(number)
        return number, chunk

    chunks = [slice(i, i + 1) for i in range(8)]
    placement = Placement(chunks, (CPU,) * 3, n_threads=3, single_core=False)
    assert placement.run(work) == list(enumerate(chunks))
    for lane in range(3):
        assert [number for number in seen if number % 3 == lane] == list(range(lane, 8, 3))


def test_what_draws_random_numbers_or_is_watched_is_trained_in_order():
    options = {"factory": WithDropout, "models_at_once": 4}
    assert_same_training(trained("cpu", **options), trained(["cpu", "cpu"], **options))


def test_fresh_rows_are_the_same_on_every_device():
    def draw(n_rows, generator):
        inputs = torch.randn(n_rows, 2, generator=generator)
        return mcl.Batch(inputs, inputs.unsqueeze(1).repeat(1, 2, 1))

    options = {"data": SampledData(draw, n_rows=9, n_models=12), "models_at_once": 3}
    assert_same_training(trained("cpu", **options), trained(["cpu", "cpu"], **options))


def test_a_training_resumes_with_another_number_of_devices(tmp_path):
    class EnoughError(Exception):
        pass

    def stop(end):
        if end.epoch == 4 and end.models.start == 4:
            raise EnoughError

    options = {"models_at_once": 4, "checkpoint": Checkpointing(tmp_path, every=2)}
    with pytest.raises(EnoughError):
        trained(["cpu", "cpu"], after_epoch=stop, **options)
    del options["models_at_once"]  # the chunks are those of the saved training
    resumed = trained(["cpu"] * 3, **options)
    assert_same_training(resumed, trained("cpu", models_at_once=4))


def test_cuda_without_a_number_is_all_visible_devices_that_there_are_models_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [str(device) for device in devices_of("cuda", 1000)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert [str(device) for device in devices_of("cuda", 17)] == ["cuda:0", "cuda:1"]
    assert [str(device) for device in devices_of("cuda", 1)] == ["cuda:0"]
    assert devices_of("cuda:2", 1000) == (torch.device("cuda:2"),)
    assert devices_of(["cuda:2", torch.device("cuda:0")], 2) == (torch.device("cuda:2"), torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices_of("cuda", 1000) == (torch.device("cuda"),)
