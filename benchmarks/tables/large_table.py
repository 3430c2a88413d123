"""Seconds that DensityRegressor takes to fit a blend to 100 000 rows, on a GPU or on the CPU.

python -m benchmarks.tables.large_table [--device cuda] [--data FOLDER] [--out results/large-table-h200.json]

Two simulated tables of 20 columns, one with noise and one almost without (where wide networks follow), and a large
table of PMLB if a folder of packed ones is given (`pmlb.py`). The first fit in a process includes the start of
the device and of its libraries; a later one does not. Times are wall seconds with all cores.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._common import parser, report
from torchmcl_tables import DensityRegressor

_N_TEST = 5_000
#: Of PMLB, 177 147 rows, from the half on which choices were made.
LARGE = "1203_BNG_pwLinear"


def simulated(n_rows: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return 20 columns and a smooth function of six of them, plus noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, 20))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3]) + 0.5 * x[:, 4] ** 2 + np.tanh(x[:, 5])
    return x, y + noise * rng.normal(size=n_rows)


def tables(n_rows: int, folder: Path | None) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, inputs and targets of each table: `n_rows` training rows and the test rows."""
    yield "simulated, noise", *simulated(n_rows + _N_TEST, 0.5)
    yield "simulated, little noise", *simulated(n_rows + _N_TEST, 0.01)
    if folder is not None:
        with np.load(folder / f"{LARGE}.npz") as stored:
            order = np.random.default_rng(0).permutation(len(stored["y"]))[: n_rows + _N_TEST]
            yield LARGE, stored["X"][order].astype(np.float64), stored["y"][order].astype(np.float64)


def seconds_of_fit(
    inputs: np.ndarray, targets: np.ndarray, device: str, **options: Any
) -> tuple[float, DensityRegressor]:
    """Fit a model, with default settings unless `options` change them, and return the seconds and the model."""
    start = time.perf_counter()
    model = DensityRegressor(device=device, random_state=0, **options).fit(inputs, targets)
    return time.perf_counter() - start, model


def measured(name: str, inputs: np.ndarray, targets: np.ndarray, device: str, **options: Any) -> dict[str, object]:
    """Return the times of two fits and the held-out scores of the second."""
    train = slice(_N_TEST, None)
    first, _ = seconds_of_fit(inputs[train], targets[train], device, **options)
    again, model = seconds_of_fit(inputs[train], targets[train], device, **options)
    start = time.perf_counter()
    means = model.predict(inputs[:_N_TEST])
    predicted = time.perf_counter() - start
    unit, known = targets[train].std(), targets[:_N_TEST]
    return {
        "table": name,
        "n_rows": len(targets) - _N_TEST,
        "n_columns": inputs.shape[1],
        "fit_seconds": again,
        "first_fit_seconds": first,
        "predict_rows_per_second": _N_TEST / predicted,
        "rmse": float(np.sqrt(np.mean((means - known) ** 2)) / unit),
        "log_likelihood": float(model.log_prob(inputs[:_N_TEST], known).mean() + np.log(unit)),
        "coverage": float(model.predict_interval(inputs[:_N_TEST], coverage=0.9).contains(known).mean()),
        "members": model.member_weights_,
    }


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--data", type=Path, help="folder of packed tables")
    options = arguments.parse_args()
    rows = []
    for name, inputs, targets in tables(options.rows, options.data):
        rows.append(measured(name, inputs, targets, options.device))
        print(rows[-1], flush=True)
    report("large_table", torch.device(options.device).type, rows, options.out)
