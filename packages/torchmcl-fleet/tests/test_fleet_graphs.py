"""Epochs run as they are on the CPU and as captured graphs on GPUs, with the same results."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl_fleet import Fleet, FleetData, Validation, WeightedDistortion
from torchmcl_fleet.backends.training import CapturedEpochs

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SETS = [rows(23, seed=0), rows(9, seed=1)]
SHARED = FleetData.shared(*SETS[0], 4)
ONE_TARGET = FleetData.shared(SETS[0][0], SETS[0][1][:, :1], 4)
RAGGED = FleetData.of_sets(SETS, [0, 1, 0, 1])
COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 12))
RULES = [mcl.WTA(), COOLING, mcl.RelaxedWTA(0.1), mcl.Sinkhorn(0.5, n_iters=5)]
CASES = {
    "full batch": (SHARED, {}),
    "minibatches": (SHARED, {"batch_size": 6}),
    "sets of different length": (RAGGED, {"batch_size": 6}),
    "validation": (SHARED, {"validation": Validation(RAGGED, every=[1, 2, 3, 3])}),
    "early stopping": (RAGGED, {"validation": Validation(SHARED, patience=3), "batch_size": 6}),
    "weighted validation": (
        ONE_TARGET,
        {"validation": Validation(ONE_TARGET, WeightedDistortion(torch.arange(1.0, 24.0)))},
    ),
    "chunks": (RAGGED, {"models_at_once": 3, "validation": SHARED}),
}


def trained(device, data, backend=None, **options):
    fleet = Fleet(small_mlp, 4, rule=RULES, weight_decay=[0.0, 0.1, 0.0, 0.01], device=device, backend=backend)
    return fleet, fleet.fit(data, 25, progress=False, **options)


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_captured_epochs_give_the_bits_of_eager_ones(case):
    data, options = CASES[case]
    graph, history = trained("cuda", data, "captured", **options)
    eager, eager_history = trained("cuda", data, "autograd", **options)
    assert_same_bits(graph.state_dict(), eager.state_dict())
    assert_same_bits(history, eager_history)


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_trains_as_the_cpu(case):
    data, options = CASES[case]
    device, history = trained("cuda", data, **options)
    cpu, cpu_history = trained("cpu", data, **options)
    torch.testing.assert_close(device.state_dict()["last"], cpu.state_dict()["last"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(history.losses, cpu_history.losses, atol=1e-4, rtol=1e-4, equal_nan=True)
    assert history.losses.device.type == "cpu"
    torch.testing.assert_close(
        device.evaluate(data)["distortion"], cpu.evaluate(data)["distortion"], atol=1e-4, rtol=1e-4
    )


@needs_cuda
@pytest.mark.gpu
def test_each_kind_of_epoch_is_captured_once_and_replayed():
    weights = torch.zeros(3, device="cuda")
    keys = []

    def epoch(key):
        keys.append(key)
        weights.add_(key)

    run = CapturedEpochs(epoch, [weights], weights.device)
    for key in (1, 2, 1, 1, 2):
        run(key)
    assert weights.tolist() == [7.0] * 3
    assert keys == [1, 1, 2, 2]  # a warm-up and a capture of each, then replays


@needs_cuda
@pytest.mark.gpu
def test_threads_capture_and_replay_random_numbers_side_by_side():
    def train(n_epochs):
        totals = [torch.zeros(3, device="cuda") for _ in range(20)]
        for total in totals:

            def epoch(key, total=total):
                total.add_(torch.rand_like(total) + key)

            run = CapturedEpochs(epoch, [total], total.device)
            for _ in range(n_epochs):
                run(1)
        return torch.stack(totals)

    with ThreadPoolExecutor(4) as threads:
        for totals in threads.map(train, [50] * 8):
            assert totals.min() >= 50


@needs_cuda
@pytest.mark.gpu
def test_what_cannot_be_captured_runs_eagerly_and_says_so():
    pytest.importorskip("scipy")
    device, cpu = (Fleet(small_mlp, 4, rule=mcl.EMD(), device=name) for name in ("cuda", "cpu"))
    with pytest.warns(UserWarning, match="cannot be captured as a CUDA graph and runs eagerly"):
        device.fit(SHARED, 5, progress=False)
    cpu.fit(SHARED, 5, progress=False)
    torch.testing.assert_close(device.state_dict()["last"], cpu.state_dict()["last"], atol=1e-4, rtol=1e-4)
