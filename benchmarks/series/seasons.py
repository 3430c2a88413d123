"""Detection of seasons in simulated series of each frequency: fractions of seasons found, and of seasons invented.

The strength of the season, 1 - Var(remainder) / Var(season + remainder) as in Wang, Smith and Hyndman (2006), is at
least 0.6, and a series has 2.5 to 10 periods. The generator was written after all constants of the detection. In the
record, the rows with the generator "first" come from an earlier generator (commit de8a56eb), which influenced the
limits of the p-value: they were loosened after a run with another seed.

    python -m benchmarks.series.seasons --out out/seasons.json
"""

from typing import Any

import numpy as np
from scipy.signal import lfilter

from benchmarks._common import parser, report
from torchmcl_forecast.grids import Grid
from torchmcl_forecast.seasons import find_seasons

_MINUTE = 60e9
_DAY = 1440 * _MINUTE
# Grid and season of each frequency.
FREQUENCIES = {
    "years of months": (Grid("month", 1), 12),
    "years of quarters": (Grid("month", 3), 4),
    "years of two months": (Grid("month", 2), 6),
    "years of weeks": (Grid("time", 7 * _DAY), 52),
    "years of days": (Grid("time", _DAY), 365),
    "years of working days": (Grid("business", 1.0), 261),
    "weeks of days": (Grid("time", _DAY), 7),
    "weeks of working days": (Grid("business", 1.0), 5),
    "weeks of hours": (Grid("time", 60 * _MINUTE), 168),
    "days of hours": (Grid("time", 60 * _MINUTE), 24),
    "days of 30 minutes": (Grid("time", 30 * _MINUTE), 48),
    "days of 15 minutes": (Grid("time", 15 * _MINUTE), 96),
    "days of 10 minutes": (Grid("time", 10 * _MINUTE), 144),
}
KINDS = ("seasons", "AR(1)", "random walks", "trends")


def simulated(kind: str, season: int, rng: np.random.Generator) -> Any:
    """Return a series with a nonlinear trend, ARMA noise and a piecewise season, which is often multiplicative."""
    n_times = int(np.ceil(2.5 * 4 ** rng.random() * season))
    times, noise = np.linspace(0, 1, n_times), rng.standard_t(6, size=n_times + 100)
    bends = [times**2, 2 * np.maximum(times - rng.uniform(0.2, 0.8), 0), np.expm1(3 * times) / np.expm1(3)]
    trend = rng.normal(0, 3) * bends[rng.integers(3)]
    if kind == "AR(1)":
        return lfilter([1], [1, -rng.uniform(-0.8, 0.97)], noise)[100:]
    if kind == "random walks":
        return lfilter([1, rng.uniform(-0.4, 0.4)], [1, -1], noise)[100:] + trend
    remainder = lfilter([1, rng.uniform(-0.3, 0.5)], [1, -rng.uniform(0, 0.6)], noise)[100:]
    if kind == "trends":
        return remainder + 5 * trend
    knots = np.sort(rng.choice(season, rng.integers(2, min(season, 8) + 1), replace=False))
    levels, steps = rng.normal(size=len(knots)), np.arange(season)
    linear = rng.random() < 0.5
    shape = np.interp(steps, knots, levels, period=season) if linear else levels[np.searchsorted(knots, steps) - 1]
    seasonal = np.resize(shape, n_times) / shape.std()
    remainder *= rng.uniform(0.2, 0.8) / remainder.std()
    if 1 - remainder.var() / (seasonal + remainder).var() < 0.6:
        return simulated(kind, season, rng)
    growth = rng.choice([0, rng.uniform(-1, 1.5)])
    return trend + np.exp(growth * times) * (seasonal + remainder)


def main() -> None:
    """Count the seasons that are found and invented."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--series", type=int, default=200, help="simulated series of each frequency and kind")
    options = arguments.parse_args()
    rows: list[dict[str, object]] = []
    for name, (grid, season) in FREQUENCIES.items():
        row: dict[str, object] = {"generator": "independent", "frequency": name, "season": season}
        row["series"] = options.series
        for kind in KINDS:
            rng = np.random.default_rng([2007, season, len(kind)])
            seasons = [find_seasons(simulated(kind, season, rng)[None], grid) for _ in range(options.series)]
            counts = [season in each if kind == "seasons" else bool(each) for each in seasons]
            row[f"{kind}: detected"] = round(float(np.mean(counts)), 4)
            if kind == "seasons":
                row["other seasons added"] = round(float(np.mean([bool({*each} - {season}) for each in seasons])), 4)
        rows.append(row)
        print(row, flush=True)
    report("seasons", "cpu", rows, options.out)


if __name__ == "__main__":
    main()
