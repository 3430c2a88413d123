"""Paths simulated by AutoETS and AutoARIMA (statsforecast) for `series.py`, in pieces: a killed run resumes.

AutoARIMA with a season of 24 takes a minute for one series, so it runs on a random part of the series (seed 0); the
other methods are then measured on the same part too.

    python -m benchmarks.series.simulated --data FOLDER --out out/simulated --seconds 300
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.series._baselines import N_SAMPLES, Task, part_of
from benchmarks.series.series import load

# Number of past values that the models read: longer histories take hours.
N_RECENT = 480


def histories(task: Task, window: int) -> list[np.ndarray]:
    """Return the series of a window without leading missing values."""
    frame = task.histories[window]
    if "unique_id" in frame:
        return [group.to_numpy() for _, group in frame.groupby("unique_id").y]
    return list(frame.to_numpy().T)


def simulate(task: Task, model: str, path: Path, until: float) -> bool:
    """Add paths to a file until a time limit; return whether the file is complete.

    Args:
        task: Data set.
        model: Name of a model of statsforecast.
        path: Path of the npz file with `pairs` [n, 2], `samples` [n, samples, horizon] and `seconds` [n].
        until: Value of `time.monotonic` at which to stop.
    """
    from statsforecast import models

    every = part_of(task._replace(season=1))
    wanted, found = part_of(task) if model == "AutoARIMA" else every, []
    if path.exists():
        with np.load(path) as saved:
            found = list(zip(saved["samples"], saved["seconds"], strict=True))
    rows, window_of = {}, -1
    while len(found) < len(wanted) and time.monotonic() < until:
        window, series = wanted[len(found)]
        if window != window_of:
            rows, window_of = histories(task, window), window
        began = time.perf_counter()
        values = rows[series][-N_RECENT:]
        options = {"approximation": True} if model == "AutoARIMA" else {}  # as in R for long or seasonal series
        fitted = getattr(models, model)(season_length=task.season, **options).fit(values)
        samples = np.asarray(fitted.simulate(task.horizon, N_SAMPLES, seed=series), dtype=np.float32)
        found.append((samples, time.perf_counter() - began))
        parts = dict(zip(("samples", "seconds"), (np.stack(part) for part in zip(*found, strict=True)), strict=True))
        np.savez_compressed(path, pairs=np.array(wanted[: len(found)]), **parts)
    return len(found) == len(wanted)


def main() -> None:
    """Simulate the missing paths."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True, help="folder with the series")
    arguments.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments.add_argument("--seconds", type=float, default=300.0, help="stop after them, at the end of a series")
    arguments.add_argument("--sets", default="weekly,exchange,etth1,hourly")
    arguments.add_argument("--models", default="AutoETS,AutoARIMA")
    options = arguments.parse_args()
    warnings.simplefilter("ignore", pd.errors.PerformanceWarning)
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    for model in options.models.split(","):
        for name in options.sets.split(","):
            task = load(options.data, name, inner=False)
            done = simulate(task, model, options.out / f"{name}-{model}.npz", until)
            print(name, model, "complete" if done else "to be resumed", flush=True)


if __name__ == "__main__":
    main()
