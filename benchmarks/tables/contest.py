"""DensityRegressor with its defaults against distributional baselines: 9 UCI tables, 8 others, 39 of PMLB.

python -m benchmarks.tables.contest --data FOLDER --records results/contest-records-cpu.csv
    --out results/contest-cpu.json

FOLDER contains the folders `uci` and `tables`, or packed data sets (`--pack FOLDER` writes them; `pmlb.py` packs the
PMLB tables). Each combination of data set, fold and method is one record; a rerun computes only the missing records.
Every method is fitted to the training part and predicts a distribution for each test row; distortions are computed from
the best k points of this distribution. `--inner` splits the training part of each fold again and does not use the
test rows, for development. Times are CPU seconds of one thread.
"""

import csv
import functools
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from scipy.stats import wilcoxon

from benchmarks._common import parser, report
from benchmarks.tables._baselines import DENSITIES, installed
from benchmarks.tables._forecasts import FINE_LEVELS, Predict, best_points
from benchmarks.tables.pmlb import CHOOSING, KEPT_APART

# How many of the folds, counted from the first: fewer of large sets, which tell more with each.
FOLDS = {
    **dict.fromkeys(("autompg", "boston", "concrete", "energy", "pendulum", "stock", "yacht", "wine", "airfoil"), 10),
    **dict.fromkeys(("skillcraft", "sml", "kin8nm", "power", "pumadyn32nm", "naval"), 5),
    **dict.fromkeys(("bike", "protein"), 3),
    **dict.fromkeys((*CHOOSING, *KEPT_APART), 5),
}
# Without `--sets`.
DEFAULT_SETS = tuple(name for name in FOLDS if name not in (*CHOOSING, *KEPT_APART))
COUNTS = (1, 2, 5, 10)
MEASURES = (
    *(f"distortion_{k}" for k in COUNTS),
    "crps",
    "log_likelihood",
    "rmse",
    "coverage",
    "width",
    "pieces",
    "fit_seconds",
    "predict_seconds",
)
_NAMES = {
    "bostonHousing": "boston",
    "naval-propulsion-plant": "naval",
    "power-plant": "power",
    "protein-tertiary-structure": "protein",
    "wine-quality-red": "wine",
}
Job = tuple[str, int, str]


def pack(data: Path, out: Path) -> None:
    """Write inputs, targets and folds of each set to one file."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in sorted(path for path in (data / "uci").iterdir() if path.is_dir()):
        with np.load(folder / "data.npz") as stored:
            rows, inputs, target = (stored[name] for name in ("data", "index_features", "index_target"))
            name = _NAMES.get(folder.name, folder.name)
            np.savez_compressed(out / f"{name}.npz", X=rows[:, inputs], y=rows[:, target[0]], test=stored["test_mask"])
    for path in sorted((data / "tables").glob("*.folds.csv.gz")):
        name = path.name.split(".")[0]
        rows = np.loadtxt(data / "tables" / f"{name}.csv.gz", delimiter=",")
        folds = np.loadtxt(path, delimiter=",").T.astype(bool)
        np.savez_compressed(out / f"{name}.npz", X=rows[:, :-1], y=rows[:, -1], test=folds)


def fold_of(data: Path, name: str, fold: int, inner: bool) -> list[np.ndarray]:
    """Return training inputs and targets, test inputs and targets; standardised by the training part."""
    with np.load(data / f"{name}.npz") as stored:
        inputs, targets, test = stored["X"], stored["y"], stored["test"][fold]
    if inner:
        inputs, targets = inputs[~test], targets[~test]
        test = np.random.default_rng(fold).permutation(len(targets)) < len(targets) / 5
    mean, std = inputs[~test].mean(axis=0), inputs[~test].std(axis=0)
    inputs = (inputs - mean) / np.where(std > 0, std, 1)
    targets = (targets - targets[~test].mean()) / targets[~test].std()
    return [inputs[~test], targets[~test], inputs[test], targets[test]]


@functools.cache
def warm_up(method: str) -> None:
    """Import the packages of a method and fill its caches once per process, so that these are not timed."""
    rng = np.random.default_rng(0)
    DENSITIES[method](rng.normal(size=(60, 2)), rng.normal(size=60), 0)(rng.normal(size=(5, 2)))


def measured(data: Path, job: Job, inner: bool) -> tuple[Job, dict[str, float | None]]:
    """Fit one method to one fold, and return its measures, in units of the standard deviation of the targets."""
    torch.set_num_threads(1)
    name, fold, method = job
    train_x, train_y, test_x, test_y = fold_of(data, name, fold, inner)
    warm_up(method)
    start = time.process_time()
    predict: Predict = DENSITIES[method](train_x, train_y, fold)
    fitted = time.process_time()
    forecast = predict(test_x)
    done = time.process_time()
    mixture = forecast.mixture
    fine = forecast.fine if forecast.fine is not None else mixture.quantiles(FINE_LEVELS)
    values: dict[str, float | None] = {}
    for k in COUNTS:
        points = forecast.points_of(k) if forecast.points_of is not None else best_points(fine, k)
        values[f"distortion_{k}"] = float(((points - test_y[:, None]) ** 2).min(axis=1).mean())
    logs = mixture.log_likelihood(test_y)
    crps = [mixture.rows(slice(i, i + 256)).crps(test_y[i : i + 256]) for i in range(0, len(test_y), 256)]
    values |= {
        "crps": float(np.concatenate(crps).mean()),
        "log_likelihood": None if logs is None else float(logs.mean()),
        "rmse": float(np.sqrt(((forecast.mean - test_y) ** 2).mean())),
        "coverage": float(forecast.intervals.contains(test_y).mean()),
        "width": float(forecast.intervals.width.mean()),
        "pieces": float((forecast.intervals.n_pieces > 1).mean()),
        "fit_seconds": fitted - start,
        "predict_seconds": done - fitted,
    }
    return job, values


def read(path: Path) -> dict[Job, dict[str, float | None]]:
    """Return the records of a file; a line that was cut off by a crash is left out."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return {
        (row["set"], int(row["fold"]), row["method"]): {m: float(row[m]) if row[m] else None for m in MEASURES}
        for row in rows
    }


def add(path: Path, job: Job, values: dict[str, float | None]) -> None:
    """Append one record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "" if path.exists() else ",".join(("set", "fold", "method", *MEASURES)) + "\n"
    cells = ("" if values[m] is None else f"{values[m]:.6g}" for m in MEASURES)
    with path.open("a") as file:
        file.write(head + ",".join((*map(str, job), *cells)) + "\n")


def by_set(rows: dict[Job, dict[str, float | None]], method: str, measure: str) -> dict[str, float]:
    """Return the mean log ratio to `DensityRegressor` per data set (for log-likelihoods: minus the difference)."""
    pairs: dict[str, list[float]] = {}
    for (name, fold, other), values in rows.items():
        ours = rows.get((name, fold, "ours"))
        if other != method or ours is None or values[measure] is None or ours[measure] is None:
            continue
        if measure == "log_likelihood":
            difference = ours[measure] - values[measure]
        else:
            difference = math.log(max(values[measure], 1e-12) / max(ours[measure], 1e-12))
        pairs.setdefault(name, []).append(difference)
    return {name: float(np.mean(found)) for name, found in pairs.items()}


def summary(rows: dict[Job, dict[str, float | None]]) -> list[dict[str, object]]:
    """Compare each baseline with `DensityRegressor`: means, numbers of wins, and a paired test over data sets."""
    result: list[dict[str, object]] = []
    methods = dict.fromkeys(key[2] for key in rows)
    shared = {key[:2] for key in rows if key[2] != "ours"}
    for method in methods:
        entry: dict[str, object] = {"method": method}
        for measure in (*MEASURES[:7], "fit_seconds", "predict_seconds"):
            found = by_set(rows, method, measure)
            if not found or method == "ours":
                continue
            values = np.array(list(found.values()))
            mean = float(values.mean()) if measure == "log_likelihood" else float(np.exp(values.mean()))
            p = float(wilcoxon(values).pvalue) if len(values) > 4 and values.any() else None
            entry[measure] = {"mean": mean, "ours_better": int((values > 0).sum()), "n_sets": len(values), "p": p}
        # Ours on folds of others only: it may have more of them.
        own = [values for key, values in rows.items() if key[2] == method and key[:2] in shared]
        for measure in ("coverage", "width", "pieces", "fit_seconds"):
            entry[f"mean_{measure}"] = float(np.mean([values[measure] for values in own]))
        result.append(entry)
    for measure in ("distortion_5", "crps", "log_likelihood"):
        logs = {method: by_set(rows, method, measure) for method in methods if method != "ours"}
        sets = dict.fromkeys(key[0] for key in rows)
        ran = {name: [found[name] for found in logs.values() if name in found] for name in sets}
        best = [name for name, values in ran.items() if values and min(values) >= 0]
        missing = {name: [method for method, found in logs.items() if found and name not in found] for name in sets}
        result.append(
            {
                "measure": measure,
                "ours_best_on": best,
                "n_best": len(best),
                "n_sets": len(sets),
                "missing": {name: methods for name, methods in missing.items() if methods},
            }
        )
    return result


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True, help="folder of packed sets, or of `uci` and `tables`")
    arguments.add_argument("--pack", type=Path, help="write packed sets to this folder first, and use them")
    arguments.add_argument("--records", type=Path, required=True, help="CSV file to resume from")
    arguments.add_argument("--sets", default=",".join(DEFAULT_SETS))
    arguments.add_argument("--methods", default=",".join(DENSITIES))
    arguments.add_argument("--folds", type=int, help="at most this many folds of each set")
    arguments.add_argument("--first", type=int, default=0, help="the first fold")
    arguments.add_argument(
        "--inner", action="store_true", help="split the training parts, and leave the test rows alone"
    )
    arguments.add_argument("--workers", type=int, default=1, help="processes")
    arguments.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after this time")
    options = arguments.parse_args()
    begun = time.monotonic()
    if options.pack:
        pack(options.data, options.pack)
        options.data = options.pack
    sets, methods = options.sets.split(","), installed(options.methods.split(","))
    rows = read(options.records)
    n_folds = {name: min(FOLDS[name], options.folds or 99) for name in sets}
    wanted = [
        (name, options.first + fold, method)
        for fold in range(max(n_folds.values()))
        for name in reversed(FOLDS)
        for method in methods
        if name in sets and fold < n_folds[name] and (name, options.first + fold, method) not in rows
    ]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), max_tasks_per_child=20) as pool:
        waiting, running = list(reversed(wanted)), set()
        while waiting or running:
            while waiting and len(running) < options.workers and time.monotonic() - begun < options.seconds:
                running.add(pool.submit(measured, options.data, waiting.pop(), options.inner))
            if not running:
                break
            done = next(as_completed(running))
            running.remove(done)
            job, values = done.result()
            add(options.records, job, values)
            print(*job, {m: f"{v:.4g}" for m, v in values.items() if v is not None}, flush=True)
    report("contest", "cpu", summary(read(options.records)), options.out)
