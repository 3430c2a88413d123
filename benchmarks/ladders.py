"""Training networks whose inputs climb (the bins of the estimators): sums of weights against a product.

python benchmarks/ladders.py [--out results/ladders-cpu.json]

Five networks on a table of 13 columns with 26 bins each, batches of 64 and 128 rows, on one core: CPU time of a
training, median of rounds in turns. With its columns in random order a table does not climb, so the first layer is a
product of matrices ("product"); in order, the compiled step adds up weights instead ("sums"). The floor is what the
other layers take: the 13 columns alone.
"""

import statistics
import time

import torch

from _common import parser, report
from torchmcl import MultiHypothesisMLP
from torchmcl.fleet import Fleet, FleetData

N_MODELS, N_GIVEN, N_RUNS, LENGTH, HIDDEN = 5, 13, 13, 26, 64
N_ROWS, N_EPOCHS, N_ROUNDS = 1280, 10, 5


def seconds_of(inputs: torch.Tensor, batch_size: int) -> float:
    """Return the CPU time of a training on inputs [rows, columns]."""
    fleet = Fleet(lambda: MultiHypothesisMLP(inputs.shape[1], 1, 5, hidden=(HIDDEN, HIDDEN)), N_MODELS)
    data = FleetData.shared(inputs, inputs[:, :1, None], N_MODELS)
    start = time.process_time()
    fleet.fit(data, N_EPOCHS, batch_size=batch_size, progress=False)
    return time.process_time() - start


def main(batch_size: int) -> dict[str, object]:
    """Return microseconds of a model's step with each table."""
    random = torch.Generator().manual_seed(0)
    given = 3 * torch.randn(N_ROWS, N_GIVEN, generator=random)
    places = (LENGTH + 2) * torch.rand(N_ROWS, N_RUNS, 1, generator=random) - 1
    climbing = torch.cat([given, (places - torch.arange(LENGTH)).clamp(0, 1).flatten(1)], dim=1)
    shuffled = climbing[:, torch.randperm(climbing.shape[1], generator=random)]
    tables = {"product": shuffled, "sums": climbing, "floor": given}
    seconds: dict[str, list[float]] = {name: [] for name in tables}
    for _ in range(N_ROUNDS):
        for name, inputs in tables.items():
            seconds[name].append(seconds_of(inputs, batch_size))
    n_steps = N_MODELS * N_EPOCHS * N_ROWS // batch_size
    each = {name: 1e6 * statistics.median(values) / n_steps for name, values in seconds.items()}
    return {
        "rows": batch_size,
        "columns": climbing.shape[1],
        "microseconds": each,
        "ratio": each["sums"] / each["product"],
    }


if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    report("ladders", "cpu", [main(64), main(128)], options.out)
