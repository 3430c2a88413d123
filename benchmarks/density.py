"""Mixtures of normal kernels on the line: compiled loops against their definition in torch, in rows a second.

python benchmarks/density.py [--rows 20000] [--threads 2] [--load "..."] [--out results/density-cpu.json]

For best points, highest-density sets and masses above values. The definition is timed on fewer rows, in the same
rounds, so that a busy moment of the machine hits both. Seconds of the processor are recorded beside those of the clock:
on a machine that others use, rows a second of processor time say what one core does.
"""

import os
import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch

from _common import parser, report
from torchmcl.density import KernelMixture, best_points

K, MASS = 5, 0.9


def mixture(n_rows: int, n_kernels: int, decades: float) -> KernelMixture:
    """Return kernels whose widths differ by up to 10^decades."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(n_rows, n_kernels, generator=generator) ** 2 + 1e-3
    return KernelMixture(
        1.5 * torch.randn(n_rows, n_kernels, 1, generator=generator),
        weights / weights.sum(dim=-1, keepdim=True),
        10 ** (-decades * torch.rand(n_rows, n_kernels, generator=generator)),
    )


def operations(density: KernelMixture) -> dict[str, Callable[[], object]]:
    """Return what is timed."""
    values = density.hypotheses[:, 0] + density.widths[:, 0]
    return {
        "best points": lambda: best_points(density, K),
        "highest density": lambda: density.highest_density(MASS),
        "mass above": lambda: density.mass_above(values),
    }


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Return the time by the clock and that of the processor."""
    clock, used = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - used


def compared(n_kernels: int, decades: float, options: object) -> list[dict[str, object]]:
    """Return rows a second of each operation, both ways."""
    n_rows, n_plain = options.rows, max(options.rows // (40 * n_kernels), 4)
    ours, plain = (operations(mixture(n, n_kernels, decades)) for n in (n_rows, n_plain))
    made: list[dict[str, object]] = []
    for name in ours:
        ours[name]()
        fast, slow = [], []
        for _ in range(options.rounds):
            fast.append(seconds(ours[name]))
            with mock.patch("torchmcl.accel.native.line.serves", return_value=False):
                slow.append(seconds(plain[name]))
        clock, used = (statistics.median(of_round) for of_round in zip(*fast, strict=True))
        slow_clock, slow_used = (statistics.median(of_round) for of_round in zip(*slow, strict=True))
        made.append(
            {
                **{"name": name, "kernels": n_kernels, "decades_of_widths": decades, "k": K, "rows": n_rows},
                **{"rows_per_second": n_rows / clock, "rows_per_core_second": n_rows / used},
                **{"torch_rows": n_plain, "torch_rows_per_second": n_plain / slow_clock},
                "torch_rows_per_core_second": n_plain / slow_used,
                "ratio_of_core_seconds": (n_rows / used) / (n_plain / slow_used),
                **{"load_average": os.getloadavg()[0], "load": options.load},
            }
        )
    return made


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--load", default="not recorded", help="what else the machine did, for the record")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    rows = [row for m in (5, 16, 50, 160) for decades in (0.5, 3.0) for row in compared(m, decades, options)]
    report("density", "cpu", rows, options.out)


if __name__ == "__main__":
    main()
