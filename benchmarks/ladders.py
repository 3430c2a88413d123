"""A training step of networks whose inputs climb (the knots of the estimators): sums of weights against a product.

python benchmarks/ladders.py [--out results/ladders-cpu.json]

Five networks on a table of 13 columns with 26 knots each, batches of 64 and 128 rows, on one core: CPU time of forward
and backward pass, median of 300 in turns. The floor is what the other layers take: the same step with the 13 columns
alone.
"""

import itertools
import statistics
import time

import torch

from _common import parser, report
from torchmcl.backends import compiled

N_MODELS, N_GIVEN, N_RUNS, LENGTH, HIDDEN = 5, 13, 13, 26, 64
N_ROUNDS = 300


def step_on(inputs: torch.Tensor, shortest_run: int) -> compiled.NetworkStep:
    """Return the step on inputs [rows, columns]; runs are used from a length on."""
    sizes = (inputs.shape[1], HIDDEN, HIDDEN, 10)
    n_parameters = sum(n_out * (n_in + 1) for n_in, n_out in itertools.pairwise(sizes))
    compiled._SHORTEST_RUN = shortest_run
    return compiled.NetworkStep(
        compiled.Network(sizes, 5, 1, True),
        0.05 * torch.randn(N_MODELS, n_parameters, generator=torch.Generator().manual_seed(1)),
        inputs=inputs[None],
        targets=inputs[None, :, :1, None],
        row_weights=None,
        set_of_model=torch.zeros(N_MODELS, dtype=torch.long),
    )


def main(n_rows: int) -> dict[str, object]:
    """Return microseconds of a model's step each way."""
    random = torch.Generator().manual_seed(0)
    given = 3 * torch.randn(n_rows, N_GIVEN, generator=random)
    places = (LENGTH + 2) * torch.rand(n_rows, N_RUNS, 1, generator=random) - 1
    climbing = torch.cat([given, (places - torch.arange(LENGTH)).clamp(0, 1).flatten(1)], dim=1)
    steps = {
        "product": step_on(climbing, climbing.shape[1] + 1),
        "sums": step_on(climbing, 4),
        "floor": step_on(given, 4),
    }
    rule = torch.tensor([[0.1] * N_MODELS, [0.0] * N_MODELS])
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(N_ROUNDS):
        for name, step in steps.items():
            start = time.process_time()
            step(rule, 1.0, start=0, stop=n_rows)
            seconds[name].append(time.process_time() - start)
    each = {name: 1e6 * statistics.median(values) / N_MODELS for name, values in seconds.items()}
    return {
        "rows": n_rows,
        "columns": climbing.shape[1],
        "microseconds": each,
        "ratio": each["sums"] / each["product"],
    }


if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    if not compiled.available():
        raise SystemExit("the extension was not built")
    report("ladders", "cpu", [main(64), main(128)], options.out)
