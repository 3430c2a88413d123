"""An hour's load compressed: memory, open files and threads must stay flat.

python benchmarks/soak.py [--minutes 20] [--rounds 60] [--out ...]

A round is what a small service does in a minute: it fits an estimator anew (with checkpoints), saves it, loads it and
answers from 8 threads that share what was loaded, 15 times each; every fourth round it also fits a table through the
command line, answers from its model and writes the report. 60 rounds are an hour's worth; they end early when the
minutes are over. All answers are compared with those of one thread. After each round memory, file handles and threads
are counted. Their drift is the rise of the line through the rounds after a warm-up of a third, as a share of the mean.
"""

import gc
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import torch

from _common import parser, report

_N_THREADS, _N_ANSWERS, _TABLE_EVERY = 8, 15, 4
_WARM_UP = 1 / 3
_MUST = 0.02


def made_table(n_rows: int, seed: int) -> pl.DataFrame:
    """Return a table with two branches and a column of categories."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, 3)).round(4)
    side = np.where(rng.uniform(size=n_rows) < 0.5, 1, -1)
    kinds = np.array(["a", "b", "c"])[rng.integers(3, size=n_rows)]
    return pl.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "x2": x[:, 2], "kind": kinds, "y": x[:, 0] + side})


def answered(answers: Callable[[], list[np.ndarray]]) -> int:
    """Ask from all threads, compare with one thread, and return how many answers were checked."""
    expected = answers()

    def ask(_: int) -> int:
        for _ in range(_N_ANSWERS):
            for mine, own in zip(answers(), expected, strict=True):
                np.testing.assert_array_equal(mine, own)
        return _N_ANSWERS

    with ThreadPoolExecutor(_N_THREADS) as threads:
        return sum(threads.map(ask, range(_N_THREADS)))


def estimator_round(number: int, folder: Path) -> int:
    """Fit, save, load, answer; return how many answers were checked."""
    from torchmcl_tables import DensityRegressor

    rng = np.random.default_rng(number)
    X = rng.uniform(size=(200, 2))
    y = np.where(rng.uniform(size=200) < 0.5, X[:, 0], -X[:, 0])
    model = DensityRegressor(n_hypotheses=3, n_epochs=30, hidden=(16,), random_state=number)
    model.fit(X, y, checkpoint=folder / f"checkpoint-{number}").save(folder / "estimator")
    loaded = DensityRegressor.load(folder / "estimator")
    return answered(lambda: [*loaded.predict_hypotheses(X[:50]), *loaded.predict_interval(X[:10])])


def table_round(number: int, folder: Path, n_epochs: int) -> int:
    """Fit, answer and report through the command line's own path; return how many answers were checked."""
    from torchmcl.cli import main
    from torchmcl_tables.data import Table
    from torchmcl_tables.model import load_table_model

    made_table(240, number).write_csv(folder / "table.csv")
    model = str(folder / "model")
    fit = ["fit", str(folder / "table.csv"), "--target", "y", "-o", model, "--epochs", str(n_epochs), "--quiet"]
    assert main(fit) == 0
    loaded = load_table_model(Path(model))
    rows = Table("rows", made_table(64, 10_000 + number).drop("y"))
    n_answers = answered(lambda: [loaded.predict(rows).to_numpy()])
    assert main(["report", model, "--quiet"]) == 0
    return n_answers


def drift(values: list[float]) -> float:
    """Return how much the line through the values rises from its first to its last, as a share of the mean."""
    mean = statistics.fmean(values)
    if len(values) < 2 or mean == 0:
        return 0.0
    slope = statistics.linear_regression(range(len(values)), values).slope
    return slope * (len(values) - 1) / mean


def soak(n_rounds: int, minutes: float, n_epochs: int = 30) -> list[dict[str, object]]:
    """Return the counts after each round, and the drifts."""
    process, rows, begin, n_answers, n_tables = psutil.Process(), [], time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(n_rounds):
            n_answers += estimator_round(number, Path(folder))
            if number % _TABLE_EVERY == 0:
                n_answers += table_round(number, Path(folder), n_epochs)
                n_tables += 1
            gc.collect()
            counts = {
                "megabytes": process.memory_info().rss / 1e6,
                "file_handles": process.num_fds(),
                "threads": process.num_threads(),
            }
            rows.append({"round": number, "seconds": time.monotonic() - begin, **counts})
            if time.monotonic() - begin > 60 * minutes:
                break
    kept = rows[round(_WARM_UP * len(rows)) :]
    drifts = {f"drift_{name}": drift([float(row[name]) for row in kept]) for name in counts}
    summary = {
        "rounds": len(rows),
        "fits": len(rows) + n_tables,
        "reports": n_tables,
        "answers_from_8_threads": n_answers,
        "seconds": time.monotonic() - begin,
        **drifts,
        "flat": all(value < _MUST for value in drifts.values()),
        "must_show": "every drift < 0.02 after the first third",
    }
    return [summary, *rows]


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--minutes", type=float, default=20)
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--epochs", type=int, default=30)
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    rows = soak(options.rounds, options.minutes, options.epochs)
    report("soak", "cpu", rows, options.out)
    raise SystemExit(0 if rows[0]["flat"] else 1)
