"""Coverage of tubes on simulated daily series of many kinds, in windows after the fit.

python -m benchmarks.series.tubes --kinds seasonal,walk --out out/tubes.json
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks._common import parser, report
from torchmcl_forecast import Forecaster

N_TIMES, N_WINDOWS = 300, 12
Rng = np.random.Generator


def week(rng: Rng, n: int, times: np.ndarray, period: int = 7) -> np.ndarray:
    """Return a seasonal pattern around 1 for each series, [series, times]."""
    turns, phases = 2 * np.pi * times / period, rng.uniform(0, 6, (2, n, 1))
    return 1 + 0.5 * np.sin(turns + phases[0]) + 0.2 * np.sin(2 * turns + phases[1])


def autoregressive(rng: Rng, n: int, times: np.ndarray) -> np.ndarray:
    """Return series with an autocorrelation of 0.9."""
    values = rng.normal(size=(n, len(times)))
    for t in range(1, len(times)):
        values[:, t] += 0.9 * values[:, t - 1]
    return values


def volatile(rng: Rng, n: int, times: np.ndarray) -> np.ndarray:
    """Return random walks with calm and volatile times."""
    changes, variance = rng.normal(size=(n, len(times))), np.ones(n)
    for t in range(1, len(times)):
        variance = 0.05 + 0.15 * changes[:, t - 1] ** 2 + 0.8 * variance
        changes[:, t] *= np.sqrt(variance)
    return 100 + 0.1 * np.cumsum(changes, axis=1)


def two_levels(rng: Rng, n: int, times: np.ndarray) -> np.ndarray:
    """Return series that switch between two levels at random times."""
    switches = rng.random((n, len(times))) < 0.03
    return 2 + 3 * (np.cumsum(switches, axis=1) % 2) + 0.2 * rng.normal(size=switches.shape)


def trend(rng: Rng, n: int, times: np.ndarray) -> np.ndarray:
    """Return lines of different slopes with a cycle of twelve days and two kinds of noise."""
    noise = rng.normal(size=(2, n, len(times)))
    slopes = 0.02 * rng.normal(size=(n, 1)) * times
    return 5 + slopes + week(rng, n, times, 12) + 0.1 * np.cumsum(noise[0], axis=1) + 0.2 * noise[1]


def noisy(rng: Rng, n: int, times: np.ndarray) -> np.ndarray:
    """Return a week with noise."""
    return 3 * week(rng, n, times) + 0.3 * rng.normal(size=(n, len(times)))


def growing(rng: Rng, n: int, times: np.ndarray) -> np.ndarray:
    """Return a week that grows by a percent each day, more or less."""
    return np.exp(np.cumsum(0.01 + 0.02 * rng.normal(size=(n, len(times))), axis=1)) * week(rng, n, times)


class Kind(NamedTuple):
    """A kind of series: their number, the horizon, and a function of generator, number and times."""

    n_series: int
    horizon: int
    made: Callable[[Rng, int, np.ndarray], np.ndarray]


KINDS = {
    "seasonal": Kind(30, 14, noisy),
    "shared_shocks": Kind(30, 14, lambda rng, n, t: noisy(rng, n, t) + 0.3 * rng.normal(size=(1, len(t)))),
    "intermittent": Kind(40, 14, lambda rng, n, t: rng.poisson(rng.uniform(0.1, 1.0, (n, 1)) * week(rng, n, t))),
    "counts": Kind(30, 14, lambda rng, n, t: rng.poisson(np.exp(rng.normal(3, 1, (n, 1))) * week(rng, n, t))),
    "walk": Kind(30, 10, lambda rng, n, t: 10 + np.cumsum(rng.normal(size=(n, len(t))), axis=1)),
    "trend": Kind(30, 12, trend),
    "heavy_tails": Kind(30, 14, lambda rng, n, t: 3 * week(rng, n, t) + 0.2 * rng.standard_t(3, (n, len(t)))),
    "autoregressive": Kind(20, 14, autoregressive),
    "volatile": Kind(20, 20, volatile),
    "two_levels": Kind(20, 14, two_levels),
    "growing": Kind(20, 14, growing),
}


def measured(kind: Kind, options: dict[str, object]) -> dict[str, object]:
    """Return the coverage of whole paths by adaptive tubes and by fixed tubes, in the windows after the fit."""
    rng, horizon = np.random.default_rng(100 + int(str(options["random_state"]))), kind.horizon
    n_times = N_TIMES + N_WINDOWS * horizon
    values = kind.made(rng, kind.n_series, np.arange(n_times))
    frame = pd.DataFrame(values.T, index=pd.date_range("2020-01-01", periods=n_times))
    frame.columns = [f"series {k}" for k in range(kind.n_series)]
    began = time.perf_counter()
    forecaster = Forecaster(**options).fit(frame.iloc[:N_TIMES], horizon=horizon)
    seconds, inside, fixed = time.perf_counter() - began, [], []
    for end in range(N_TIMES, n_times, horizon):
        forecast, actual = forecaster.forecast(frame.iloc[:end]), frame.iloc[end : end + horizon]
        inside.append(forecast.scores(actual, n_samples=2)["coverage"])
        first = forecaster.tube_level_
        fixed.append(replace(forecast, tube_level=first).scores(actual, n_samples=2)["coverage"])
    n_paths = N_WINDOWS * kind.n_series
    return {
        "n_paths": n_paths,
        "coverage": round(float(np.mean(inside)), 4),
        "coverage_of_fixed_tubes": round(float(np.mean(fixed)), 4),
        "fit_seconds": round(seconds, 1),
    }


def main() -> None:
    """Run the kinds and write the record."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--kinds", default=",".join(KINDS))
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--steps", type=int, help="of each training")
    options = arguments.parse_args()
    rows = []
    for name in options.kinds.split(","):
        settings = {"random_state": options.seed, "device": options.device, "n_steps": options.steps}
        rows.append({"kind": name, "seed": options.seed} | measured(KINDS[name], settings))
        print(rows[-1], flush=True)
        report("series_tubes", options.device, rows, options.out)


if __name__ == "__main__":
    main()
