"""Prediction speed of a small DensityRegressor: rows per second of processor time, on one thread.

python -m benchmarks.tables.predictions [--rows 50000] [--out results/predictions-cpu.json]

The table comes from estimator.py: 8 columns, two branches. Processor time is measured instead of wall time, so that
other programs on the machine have little influence; `rows_per_second` is the best of three calls. With n threads, rows
are split evenly.
"""

import time

import numpy as np
import torch

from benchmarks._common import parser, report
from benchmarks.tables.estimator import ASKED, rows_per_second, table
from torchmcl_tables import DensityRegressor

if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, default=50_000)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    many = np.random.default_rng(1).normal(size=(options.rows, 8))
    rows = []
    for n_rows in (1000, 10_000):
        # Few epochs: how long a prediction takes does not depend on the weights.
        model = DensityRegressor(n_epochs=15, random_state=0).fit(*table(n_rows))
        rates = {
            f"{method}_rows_per_second": rows_per_second(model, method, many, time.process_time) for method in ASKED
        }
        rows.append({"name": f"fitted to {n_rows} rows", "n_networks": len(model.modules_), **rates})
        print(rows[-1])
    report("predictions", "cpu", rows, options.out)
