"""What restarts cost: MCLRegressor with n_restarts=16, one kept or all, against n_restarts=1; and how fast it predicts.

python benchmarks/estimator.py [--device cpu|cuda] [--epochs 200] [--out results/estimator-cpu.json]

The table is generated: two branches and 8 features. The fits are timed in turn, so that a busy moment hits all of them.
"""

import statistics
import time

import numpy as np

from _common import parser, report
from torchmcl import MCLRegressor


def table(n_rows: int, n_features: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets with two branches."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(n_rows, n_features))
    branch = rng.choice([-1.0, 1.0], size=n_rows)
    return inputs, branch * (1 + np.tanh(inputs[:, 0])) + 0.1 * rng.normal(size=n_rows)


def fit_seconds(n_rows: int, n_restarts: int, n_epochs: int, device: str, *, ensemble: bool = True) -> float:
    """Return the time of one fit."""
    inputs, targets = table(n_rows)
    model = MCLRegressor(n_restarts=n_restarts, n_epochs=n_epochs, device=device, ensemble=ensemble, random_state=0)
    start = time.perf_counter()
    model.fit(inputs, targets)
    return time.perf_counter() - start


def predict_rows_per_second(n_rows: int, n_restarts: int, dtype: type, device: str) -> float:
    """Return rows per second of `predict_hypotheses` on a table of 20 features."""
    inputs, targets = table(2000, 20)
    model = MCLRegressor(n_epochs=2, n_restarts=n_restarts, device=device, random_state=0).fit(inputs, targets)
    many = np.random.default_rng(1).normal(size=(n_rows, 20)).astype(dtype)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        model.predict_hypotheses(many)
        times.append(time.perf_counter() - start)
    return n_rows / min(times)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=100)
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    rows = []
    for n_rows in (300, 1000, 4000):
        fit_seconds(n_rows, 16, options.epochs, options.device)  # warm-up, with the compiler where one is used
        times = [
            [
                fit_seconds(n_rows, n_restarts, options.epochs, options.device, ensemble=ensemble)
                for n_restarts, ensemble in ((1, True), (16, False), (16, True))
            ]
            for _ in range(options.repeats)
        ]
        one, best, every = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append(
            {
                "name": f"fit, {n_rows} rows",
                "epochs": options.epochs,
                "n_restarts_1_s": one,
                "n_restarts_16_best_kept_s": best,
                "n_restarts_16_all_kept_s": every,
                "ratio_best_kept": statistics.median(line[1] / line[0] for line in times),
                "ratio_all_kept": statistics.median(line[2] / line[0] for line in times),
                "must_show": "ratios < 4",
            }
        )
        print(rows[-1])
    # A table of many rows has one network; of several the answers of each row are made into as few again.
    for n_restarts, n_rows in ((1, 500_000), (5, 50_000)):
        for dtype in (np.float32, np.float64):
            speed = predict_rows_per_second(n_rows, n_restarts, dtype, options.device)
            rows.append({"name": f"predict, {n_restarts} networks, {dtype.__name__}", "rows_per_second": speed})
            rows[-1] |= {"must_show": ">= 300000"} if n_restarts == 1 else {}
    report("estimator", options.device, rows, options.out)
