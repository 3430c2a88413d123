"""Exact one-to-one assignment (`PIT`): the kernel on the device against SciPy on the host with the transfers it needs.

python -m benchmarks.speed.assignment [--device cpu|cuda] [--check N] [--out results/assignment-h200.json]

Separation: n targets and n hypotheses; detection: up to 100 targets and 300 hypotheses. Each row has the rule as one
calls it, replayed as a CUDA graph, the host's way (copy the cost, solve sample by sample with SciPy, copy the
weights back), and torch-linear-assignment where it is installed. Costs are drawn from a normal distribution. The floor
is the time in which the device reads the cost and writes the weights.
--check N also solves N matrices of all kinds and sizes, ties and forbidden pairs among them, and counts those that are
not as SciPy has them.
"""

import functools
import importlib.util
import itertools
import multiprocessing
from collections.abc import Callable

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import torchmcl as mcl
from benchmarks._common import captured, in_turn_milliseconds, parser, report
from benchmarks.speed._assignments import MATRICES, drawn, n_faults

# Batch, targets, hypotheses, and whether some targets are padding.
SIZES = [(batch, n, n, False) for n in (2, 3, 5, 8, 12, 20) for batch in (64, 512, 4096)]
SIZES += [(16, 20, 300, False), (16, 100, 300, True), (16, 100, 300, False), (16, 300, 300, False)]
CHECKED = [*((n, n) for n in range(1, 21)), (2, 12), (3, 20), (7, 20), (19, 20), (30, 100), (100, 300)]
BYTES_A_MILLISECOND = {"NVIDIA H200": 4.8e9}


def by_scipy(cost: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weights computed by a loop over SciPy, on the device of the cost."""
    on_host = cost.cpu()
    weights = torch.zeros_like(on_host)
    real = None if mask is None else mask.cpu()
    for index, sample in enumerate(on_host.numpy()):
        lines = None if real is None else real[index].nonzero()[:, 0]
        rows, columns = linear_sum_assignment(sample if lines is None else sample[lines.numpy()])
        weights[index, torch.from_numpy(rows) if lines is None else lines[rows], torch.from_numpy(columns)] = 1
    return weights.to(cost.device)


def baselines() -> dict[str, Callable[[Tensor, Tensor | None], object]]:
    """Return the installed packages that solve batches on the device."""
    if importlib.util.find_spec("torch_linear_assignment") is None:
        return {}
    from torch_linear_assignment import batch_linear_assignment

    return {"torch-linear-assignment": lambda cost, mask: batch_linear_assignment(cost)}  # it knows no mask


def size_row(batch: int, n_targets: int, n_hypotheses: int, masked: bool, device: str) -> dict[str, object]:
    """Return the times of one size."""
    cost, mask = drawn("normal", batch, n_targets, n_hypotheses, masked)
    cost, mask = cost.to(device), None if mask is None else mask.to(device)
    ways: dict[str, Callable[[], object]] = {
        "ours": functools.partial(mcl.PIT(), cost, mask),
        "scipy": functools.partial(by_scipy, cost, mask),
    }
    ways |= {name: functools.partial(way, cost, mask) for name, way in baselines().items()}
    if device == "cuda":
        ways["ours replayed"] = captured(ways["ours"])
    times = in_turn_milliseconds(ways, device)
    row: dict[str, object] = {"batch": batch, "targets": n_targets, "hypotheses": n_hypotheses, "masked": masked}
    row |= {f"{name.replace(' ', '_')}_ms": ms for name, ms in times.items()}
    row["time_ratio"] = times["ours"] / times["scipy"]
    row["same_cost_as_scipy"] = n_faults(cost, mask, mcl.PIT()(cost, mask)) == 0
    if device == "cuda":
        rate = BYTES_A_MILLISECOND.get(torch.cuda.get_device_name())
        row["floor_ms"] = None if rate is None else 2 * cost.numel() * cost.element_size() / rate
    if not baselines():
        row["torch-linear-assignment"] = "not installed"
    return row


def checks(n: int, device: str) -> list[dict[str, object]]:
    """Return, for each kind of matrix, how many of n were solved and how many are not as SciPy has them."""
    rows: list[dict[str, object]] = []
    n_each = -(-n // (len(MATRICES) * len(CHECKED) * 2))
    with multiprocessing.get_context("spawn").Pool() as pool:
        for kind in MATRICES:
            faults = 0
            for (n_targets, n_hypotheses), masked in itertools.product(CHECKED, (False, True)):
                cost, mask = drawn(kind, n_each, n_targets, n_hypotheses, masked)
                weights = mcl.PIT()(cost.to(device), None if mask is None else mask.to(device))
                faults += n_faults(cost, mask, weights, pool)
            rows.append({"checked": kind, "matrices": n_each * len(CHECKED) * 2, "faults": faults})
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--check", type=int, default=0, help="matrices to compare with SciPy, in all")
    options = arguments.parse_args()
    torch.manual_seed(0)
    rows = [size_row(*size, options.device) for size in SIZES]
    if options.check:
        rows += checks(options.check, options.device)
    report("assignment", options.device, rows, options.out)
