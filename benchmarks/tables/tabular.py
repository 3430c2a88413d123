"""DensityRegressor against common alternatives, on the official UCI splits and an inverse problem.

python -m benchmarks.tables.tabular --data FOLDER --records results/tabular-records-cpu.csv
    --out results/tabular-cpu.json

Each combination of data set, fold and method is one record; a rerun computes only the missing records (`--redo ours`
recomputes the records of torchmcl), and the summary is computed from all records.
Times are CPU seconds of this process, so that a busy machine does not count; one thread is used.
"""

import csv
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import wilcoxon

from benchmarks._common import parser, report
from benchmarks.tables._baselines import METHODS, Predict, installed
from benchmarks.tables._forecasts import measures
from torchmcl.io import write_atomically
from torchmcl_fleet.demo.gaussians import folded_response
from torchmcl_studies.data.uci import load_uci

# How many of the official folds, counted from the first: all, but for a large set, which tells more with each.
FOLDS = {"yacht": 20, "boston": 20, "energy": 20, "concrete": 20, "wine": 20, "inverse": 3, "kin8nm": 10}
KEYS = ("set", "fold", "method")
MEASURES = (
    "distortion",
    "distortion_best_points",
    "crps",
    "log_likelihood",
    "rmse",
    "coverage",
    "width",
    "fit_seconds",
    "predict_seconds",
)


# Measures by set, fold and method.
Rows = dict[tuple[str, int, str], dict[str, float | None]]


class Table(NamedTuple):
    """One fold, standardised by its training part; `unit` is the standard deviation of the targets there."""

    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray
    unit: float


def table_of(name: str, fold: int, data: Path | None, n_rows: int = 2000) -> Table:
    """Return a fold of a UCI set, or of the generated inverse problem with `n_rows` rows (a tenth of them to test)."""
    if name != "inverse":
        found = load_uci(name, data, [fold])[0]
        parts = [part.flatten(1).double().numpy() for part in found[:4]]
        return Table(parts[0], parts[1][:, 0], parts[2], parts[3][:, 0], found.target_std)
    batch = folded_response(n_rows, torch.Generator().manual_seed(fold))
    inputs, targets = batch.inputs.double().numpy(), batch.targets.double().numpy()[:, 0, 0]
    n_train = round(0.9 * n_rows)
    mean, std = inputs[:n_train].mean(axis=0), inputs[:n_train].std(axis=0)
    unit = float(targets[:n_train].std())
    inputs, targets = (inputs - mean) / std, (targets - targets[:n_train].mean()) / unit
    return Table(inputs[:n_train], targets[:n_train], inputs[n_train:], targets[n_train:], unit)


def measured(method: str, table: Table, seed: int) -> dict[str, float | None]:
    """Fit one method to the training part, and return its measures and times on the test part."""
    start = time.process_time()
    predict: Predict = METHODS[method](table.train_inputs, table.train_targets, seed)
    fitted = time.process_time()
    forecast = predict(table.test_inputs)
    times = {"fit_seconds": fitted - start, "predict_seconds": time.process_time() - fitted}
    return measures(forecast, table.test_targets, table.unit) | times


def warm_up(methods: list[str]) -> None:
    """Run every method once without timing: imports, compilation, caches."""
    for method in methods:
        measured(method, table_of("inverse", 0, None, 60), seed=0)


class Records:
    """The rows of a CSV file; each is appended as soon as it is there, so that several processes can share a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: Rows = {}
        self.read()

    def read(self) -> None:
        """Read the records in the file; a line that was cut off by a crash is left out."""
        if not self.path.exists():
            return
        with self.path.open(newline="") as file:
            for row in csv.DictReader(file):
                if None not in row.values():
                    values = {name: float(row[name]) if row[name] else None for name in MEASURES}
                    self.rows[row["set"], int(row["fold"]), row["method"]] = values

    def forget(self, methods: list[str]) -> None:
        """Drop the rows of some methods, to compute them again."""
        kept = {key: values for key, values in self.rows.items() if key[2] not in methods}
        if kept != self.rows:
            write_atomically(self.path, _HEAD + "".join(_line(key, values) for key, values in kept.items()))
            self.rows = kept

    def add(self, key: tuple[str, int, str], values: dict[str, float | None]) -> None:
        """Add one row."""
        self.rows[key] = values
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = "" if self.path.exists() else _HEAD
        with self.path.open("a") as file:
            file.write(head + _line(key, values))


_HEAD = ",".join((*KEYS, *MEASURES)) + "\n"


def _line(key: tuple[str, int, str], values: dict[str, float | None]) -> str:
    cells = ("" if values[name] is None else f"{values[name]:.6g}" for name in MEASURES)
    return ",".join((*map(str, key), *cells)) + "\n"


def run(
    records: Records, sets: dict[str, int], methods: list[str], data: Path | None = None, n_rows: int = 2000
) -> None:
    """Compute the missing records; `sets` maps data sets to numbers of folds. Fold 0 of all data sets comes first."""
    for fold in range(max(sets.values())):
        for name in (name for name, n_folds in sets.items() if fold < n_folds):
            missing = [method for method in methods if (name, fold, method) not in records.rows]
            if not missing:
                continue
            table = table_of(name, fold, data, n_rows)
            for method in missing:
                values = measured(method, table, seed=fold)
                records.add((name, fold, method), values)
                text = {key: f"{value:.4g}" for key, value in values.items() if value is not None}
                print(name, fold, method, text, flush=True)


def complete(rows: Rows) -> Rows:
    """Return the rows of those folds that every method has, so that all means are over the same folds."""
    methods = {key[2] for key in rows}
    return {key: values for key, values in rows.items() if all((*key[:2], method) in rows for method in methods)}


def summary(rows: Rows) -> list[dict[str, object]]:
    """Return mean and standard error for each data set, method and metric, and paired tests against torchmcl."""
    result: list[dict[str, object]] = []
    for name, method in dict.fromkeys((key[0], key[2]) for key in rows):
        folds = sorted(key[1] for key in rows if (key[0], key[2]) == (name, method))
        entry: dict[str, object] = {"set": name, "method": method, "n_folds": len(folds)}
        for measure in MEASURES:
            values = [rows[name, fold, method][measure] for fold in folds]
            if None in values:
                continue
            numbers = np.array(values, dtype=float)
            error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers)) if len(numbers) > 1 else None
            entry[measure] = {"mean": float(numbers.mean()), "standard_error": error}
        entry["p_distortion"] = paired_p(log_ratios(rows, method, [name], "distortion"))
        result.append(entry)
    return result


def log_ratios(rows: Rows, method: str, sets: list[str], measure: str) -> np.ndarray:
    """Return log ratios of a metric between a method and torchmcl, for each fold in `sets` that has both records."""
    keys = [key for key in rows if key[2] == method and key[0] in sets and (*key[:2], "ours") in rows]
    pairs = [(rows[key][measure], rows[*key[:2], "ours"][measure]) for key in keys]
    return np.array([math.log(a / b) for a, b in pairs if a and b])


def paired_p(ratios: np.ndarray) -> float | None:
    """Return the p value of a two-sided Wilcoxon test; None where there is nothing to test."""
    return float(wilcoxon(ratios).pvalue) if len(ratios) > 1 and ratios.any() else None


def overall(rows: Rows) -> list[dict[str, object]]:
    """Return for each baseline the geometric mean ratio to torchmcl over all UCI folds, and a paired test."""
    result: list[dict[str, object]] = []
    sets = sorted({key[0] for key in rows} - {"inverse"})
    for method in dict.fromkeys(key[2] for key in rows if key[2] != "ours"):
        entry: dict[str, object] = {"set": "all UCI folds", "method": method}
        for measure in ("distortion", "distortion_best_points", "crps", "rmse", "fit_seconds"):
            ratios = log_ratios(rows, method, sets, measure)
            mean = float(np.exp(ratios.mean())) if len(ratios) else None
            entry[measure] = {"ratio": mean, "p": paired_p(ratios), "n_pairs": len(ratios)}
        result.append(entry)
    return result


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, help="folder of the UCI files")
    arguments.add_argument("--records", type=Path, required=True, help="CSV file to resume from")
    arguments.add_argument("--sets", default=",".join(FOLDS))
    arguments.add_argument("--methods", default=",".join(METHODS))
    arguments.add_argument("--redo", default="", help="methods to compute again, for example ours")
    arguments.add_argument("--folds", type=int, help="this many folds of each set, instead of 20, or 10 of kin8nm")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    kept = Records(options.records)
    kept.forget(options.redo.split(","))
    wanted = {name: options.folds or FOLDS[name] for name in options.sets.split(",")}
    methods = installed(options.methods.split(","))
    keys = ((name, fold, method) for name in wanted for fold in range(wanted[name]) for method in methods)
    warm_up(sorted({key[2] for key in keys if key not in kept.rows}))
    run(kept, wanted, methods, options.data)
    kept.read()
    folds = complete(kept.rows)
    report("tabular", "cpu", summary(folds) + overall(folds), options.out)
