"""Predictions and training runs beside another program that takes one core all the time.

python benchmarks/busy.py [--cores 0,1] [--repeats 5] [--out results/busy-cpu.json]

The processes run on the named cores only. Each round measures all of them alone and then beside the other program, so
that a change of the machine hits both. `fair` is the share of a program whose threads are as many as the cores and
which the system treats like the other one: n / (n + 1). The last row is a floor: processes that share nothing and never
wait, as many as the cores, get less, because the system moves none of three programs between two cores.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

import torchmcl as mcl
from _common import parser, report
from torchmcl.fleet import Fleet, FleetData
from torchmcl.sklearn import Cooling, MCLRegressor


@contextmanager
def another_program(core: int) -> Iterator[None]:
    """Let another process take a core."""
    process = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile 1: pass"])
    try:
        time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def regressor(hidden: tuple[int, ...]) -> MCLRegressor:
    """Return a fitted regressor; predictions take as long after one epoch as after many."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(500, 8))
    model = MCLRegressor(rule=Cooling(), hidden=hidden, n_epochs=2, n_restarts=5, random_state=0)
    return model.fit(inputs, inputs[:, 0] + 0.1 * rng.normal(size=500))


def prediction(hidden: tuple[int, ...], n_rows: int) -> Callable[[], object]:
    """Return predictions of a regressor."""
    model, rows = regressor(hidden), np.random.default_rng(1).normal(size=(n_rows, 8))
    return lambda: model.predict_hypotheses(rows)


def five_times(run: Callable[[], object]) -> Callable[[], object]:
    """Return a run repeated, as a single one is too short."""
    return lambda: [run() for _ in range(5)]


def training(n_models: int, hidden: tuple[int, ...], batch: int, n_epochs: int) -> Callable[[], object]:
    """Return the training of a fleet on 2000 rows."""
    data = FleetData.shared(torch.randn(2000, 8), torch.randn(2000, 1, 1), n_models)
    build = lambda: mcl.MultiHypothesisMLP(8, 1, 5, hidden=hidden)  # noqa: E731
    fleet = Fleet(build, n_models, rule=mcl.AnnealedWTA(0.3), device="cpu")
    return lambda: fleet.fit(data, n_epochs, batch_size=batch, progress=False)


def plain_processes(n_processes: int) -> Callable[[], object]:
    """Return processes that each use half a second of a processor."""
    program = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"]

    def run() -> None:
        for process in [subprocess.Popen(program) for _ in range(n_processes)]:
            process.wait()

    return run


def seconds(run: Callable[[], object]) -> float:
    """Return the time of a run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--cores", default="0,1")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    cores = [int(core) for core in options.cores.split(",")]
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    torch.manual_seed(0)
    runs = {
        "predictions, 5 networks of 64-64, 20000 rows": prediction((64, 64), 20_000),
        "predictions, 5 networks of 512-512, 4000 rows": prediction((512, 512), 4000),
        "predictions, 5 networks of 512-512, 140 rows, 5 times": five_times(prediction((512, 512), 140)),
        "training, 5 networks of 64-64, batch 256": training(5, (64, 64), 256, 6),
        "training, 16 networks of 256-256, batch 256": training(16, (256, 256), 256, 1),
        "training, 1 network of 512-512, batch 256": training(1, (512, 512), 256, 4),
        "processes that never wait": plain_processes(len(cores)),
    }
    for run in runs.values():
        run()
    alone: dict[str, list[float]] = {name: [] for name in runs}
    beside: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.repeats):
        for name, run in runs.items():
            alone[name].append(seconds(run))
        with another_program(cores[-1]):
            for name, run in runs.items():
                beside[name].append(seconds(run))
    rows = [
        {
            "name": name,
            "alone_s": statistics.median(alone[name]),
            "beside_s": statistics.median(beside[name]),
            "share": statistics.median(alone[name]) / statistics.median(beside[name]),
            "fair": len(cores) / (len(cores) + 1),
            "must_show": "share >= fair",
        }
        for name in runs
    ]
    report("busy", "cpu", rows, options.out)
