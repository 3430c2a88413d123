"""Detection of seasons in simulated series of each frequency: fractions of seasons found, and of seasons invented.

Seasonal series have 2.5 to 8 periods of a random shape, a trend, and an autocorrelated remainder. The strength of the
season, 1 - Var(remainder) / Var(season + remainder) as in Wang, Smith and Hyndman (2006), is 0.6 to 0.95. Constants of
the detection were chosen on other generators and seeds.

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
    """Return a simulated series."""
    n_times = int(np.ceil(rng.uniform(2.5, 8) * season))
    noise, trend = rng.normal(size=n_times + 100), rng.normal(0, 3) * np.linspace(0, 1, n_times)
    if kind == "AR(1)":
        return lfilter([1], [1, -rng.uniform(-0.5, 0.95)], noise)[100:]
    if kind == "random walks":
        return noise[100:].cumsum() + trend
    if kind == "trends":
        return noise[100:] + 5 * trend
    n_harmonics = rng.integers(1, season // 2 + 1) if rng.random() < 0.3 else min(rng.integers(1, 5), season // 2)
    amplitudes = rng.normal(size=n_harmonics) + 1j * rng.normal(size=n_harmonics)
    shape = np.fft.irfft(np.concatenate([[0], amplitudes, np.zeros(season // 2 - n_harmonics)]), season)
    seasonal = np.resize(shape, n_times)
    remainder = lfilter([1], [1, -rng.uniform(-0.2, 0.6)], noise)[100:]
    strength = rng.uniform(0.6, 0.95)
    scale = seasonal.std() * ((1 - strength) / strength) ** 0.5 / remainder.std()
    return seasonal / seasonal.std() + scale / seasonal.std() * remainder + trend


def main() -> None:
    """Count the seasons that are found and invented."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--series", type=int, default=200, help="simulated series of each frequency and kind")
    options = arguments.parse_args()
    rows: list[dict[str, object]] = []
    for name, (grid, season) in FREQUENCIES.items():
        row: dict[str, object] = {"frequency": name, "season": season, "series": options.series}
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
