"""Time of fits and predictions: restarts against one network, DensityRegressor against MCLRegressor.

python -m benchmarks.tables.estimator [--device cpu|cuda] [--epochs 200] [--largest 1000000]
    [--out results/estimator-cpu.json]

The table is generated: two branches and 8 features. The fits are timed in turn, so that a busy moment hits all of them.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks._common import parser, report
from torchmcl_tables import Cooling, DensityRegressor, MCLRegressor

ASKED = ("predict", "predict_hypotheses", "predict_interval", "predict_distribution")


def table(n_rows: int, n_features: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets with two branches."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(n_rows, n_features))
    branch = rng.choice([-1.0, 1.0], size=n_rows)
    return inputs, branch * (1 + np.tanh(inputs[:, 0])) + 0.1 * rng.normal(size=n_rows)


def fit_seconds(n_rows: int, n_restarts: int, n_epochs: int, device: str, *, ensemble: bool = True) -> float:
    """Return the time of one fit."""
    inputs, targets = table(n_rows)
    model = DensityRegressor(n_restarts=n_restarts, n_epochs=n_epochs, device=device, ensemble=ensemble, random_state=0)
    start = time.perf_counter()
    model.fit(inputs, targets)
    return time.perf_counter() - start


def default_against_a_rule(n_rows: int, device: str) -> dict[str, object]:
    """Return the seconds of a fit, of the blend and with `rule=Cooling()`, and rows per second of what is asked."""
    inputs, targets = table(n_rows)
    seconds = {}
    for name, kind in (("rule", partial(MCLRegressor, rule=Cooling())), ("default", DensityRegressor)):
        start = time.perf_counter()
        model = kind(device=device, random_state=0).fit(inputs, targets)
        seconds[name] = time.perf_counter() - start
    many = np.random.default_rng(1).normal(size=(200_000 if n_rows >= 50_000 else 100_000, inputs.shape[1]))
    return {
        "name": f"default, {n_rows} rows",
        "n_networks": len(model.modules_),
        "fit_s": seconds["default"],
        "fit_with_a_rule_s": seconds["rule"],
        "ratio": seconds["default"] / seconds["rule"],
        **{f"{method}_rows_per_second": rows_per_second(model, method, many) for method in ASKED},
        "must_show": "ratio <= 1, 300000 rows per second",
    }


def rows_per_second(
    model: DensityRegressor, method: str, many: np.ndarray, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the best of three, after a first call with a few rows."""
    getattr(model, method)(many[:2000])
    times = []
    for _ in range(3):
        start = clock()
        getattr(model, method)(many)
        times.append(clock() - start)
    return len(many) / min(times)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--epochs", type=int, default=100)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--largest", type=int, default=1_000_000, help="leave out larger tables")
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
    for n_rows in (1000, 10_000, 60_000, 1_000_000):
        if n_rows <= options.largest:
            rows.append(default_against_a_rule(n_rows, options.device))
            print(rows[-1])
    report("estimator", options.device, rows, options.out)
