"""How near the training of networks for tables comes to the speed of matrix products, on one core.

python benchmarks/table_step.py [--repeats 5] [--load "..."] [--out results/table-step-cpu.json]

Five networks (64-64 units, five kernels with shares and widths) are trained by `MixtureNLLWithCRPS(3.0)`, as by
`DensityRegressor`. Their products are counted, not their score, Adam or the gather of rows, which take part of the
time. The baselines, in the same rounds: large products by torch, which is the bar, and the same products alone, at
which torch is slow because they are small. Seconds are those of the processor, as others may use the machine, and of a
training the difference between a longer and a shorter one: what comes before the first step is a figure of its own.
"""

import itertools
import statistics
import time
from collections.abc import Callable

import torch

import torchmcl as mcl
from _common import parser, report
from torchmcl.fleet import Fleet, FleetData

N_MODELS, N_BATCHES, HIDDEN, N_KERNELS = 5, 10, 64, 5


def seconds(run: Callable[[], object], n_times: int) -> float:
    """Return the time of the processor for that many runs."""
    start = time.process_time()
    for _ in range(n_times):
        run()
    return time.process_time() - start


def large_product() -> tuple[Callable[[], object], float]:
    """Return a product at which libraries are at their best, and its operations."""
    a, b = torch.randn(768, 768), torch.randn(768, 768)
    out = torch.empty(768, 768)
    return lambda: torch.mm(a, b, out=out), 2 * 768**3


def sizes_of(n_inputs: int) -> tuple[int, ...]:
    """Return the features of each layer: each kernel has a place, a share and a width."""
    return n_inputs, HIDDEN, HIDDEN, 3 * N_KERNELS


def operations(batch: int, n_inputs: int) -> float:
    """Return those of the products of a step of one network; the inputs need no gradient."""
    sizes = sizes_of(n_inputs)
    return 2 * batch * (3 * sum(a * b for a, b in itertools.pairwise(sizes)) - sizes[0] * sizes[1])


def bare_products(batch: int, n_inputs: int) -> Callable[[], object]:
    """Return the products of a step of one network by torch, in memory that is there."""
    sizes = sizes_of(n_inputs)
    steps = []
    for layer, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        x, weight, grad = torch.randn(batch, n_in), torch.randn(n_out, n_in), torch.randn(batch, n_out)
        steps += [(x, weight.T, torch.empty(batch, n_out)), (grad.T, x, torch.empty(n_out, n_in))]
        steps += [(grad, weight, torch.empty(batch, n_in))] if layer else []

    def run() -> None:
        for a, b, out in steps:
            torch.mm(a, b, out=out)

    return run


def training(batch: int, n_inputs: int) -> Callable[[int], object]:
    """Return the training of all networks for some epochs."""
    rows = torch.randn(batch * N_BATCHES, n_inputs), torch.randn(batch * N_BATCHES, 1, 1)
    data = FleetData.shared(*rows, N_MODELS)

    def build() -> mcl.MultiHypothesisMLP:
        return mcl.MultiHypothesisMLP(n_inputs, 1, N_KERNELS, hidden=(HIDDEN, HIDDEN), scales=True)

    fleet = Fleet(
        build, N_MODELS, cost_fn=mcl.MixtureNLLWithCRPS(3.0), score_weight=0.0, learning_rate=0.005, device="cpu"
    )
    return lambda n_epochs: fleet.fit(data, n_epochs, batch_size=batch, progress=False)


def compared(batch: int, n_inputs: int, n_repeats: int) -> dict[str, object]:
    """Return rates of a training, of its products alone and of large products, medians of rounds."""
    n_epochs, n_products = max(4, 16000 // (batch + n_inputs)), 300
    large, n_large = large_product()
    bare, train = bare_products(batch, n_inputs), training(batch, n_inputs)
    runs = {"bare": bare, "large": large, "short": lambda: train(1), "long": lambda: train(1 + n_epochs)}
    for run in runs.values():
        run()
    once = operations(batch, n_inputs)
    done = {"ours": once * N_MODELS * N_BATCHES * n_epochs, "bare": once * n_products, "large": 5 * n_large}
    times = {"bare": n_products, "large": 5, "short": 1, "long": 1}
    rounds = []
    for _ in range(n_repeats):
        spent = {name: seconds(run, times[name]) for name, run in runs.items()}
        spent["ours"] = spent["long"] - spent["short"]  # without the checks of models and rows before the first step
        rounds.append({name: done[name] / spent[name] / 1e9 for name in done} | {"first": spent["short"]})
    rate = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return {
        "name": f"training, batch {batch}, {n_inputs} inputs",
        "gflop_per_second": rate["ours"],
        "microseconds_per_step_and_network": once / rate["ours"] / 1e3,
        "milliseconds_of_a_training_of_one_epoch": 1e3 * rate["first"],
        "bare_products_gflop_per_second": rate["bare"],
        "large_products_gflop_per_second": rate["large"],
        "share_of_bare_products": statistics.median(each["ours"] / each["bare"] for each in rounds),
        "share_of_large_products": statistics.median(each["ours"] / each["large"] for each in rounds),
        "must_show": "share_of_large_products >= 0.7",
    }


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--load", default="", help="what else ran on the machine, for the record")
    options = arguments.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = [compared(batch, n, options.repeats) for batch in (64, 96, 256) for n in (8, 64, 300)]
    report("table_step", "cpu", [*rows, {"load": options.load}], options.out)
