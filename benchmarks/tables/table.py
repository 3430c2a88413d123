"""A large table through the command line: memory of `torchmcl fit`, seconds of an epoch, rows per second of `predict`.

The commands run as a user runs them, each in a separate process, on a generated table of 1 000 000 rows and 20
columns (16 of numbers with 2 % missing, 4 of categories) and a target. The start-up of `predict`, mostly imports, is
what it takes for two rows.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._common import parser, report

# Runs a command and prints its exit status, its time and its peak memory, which excludes the memory of this process.
_MEASURE = """
import resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.run(sys.argv[1:]).returncode
print(code, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20)
"""


def made_table(n_rows: int, seed: int) -> pl.DataFrame:
    """Return the generated table: a target with two branches."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(n_rows, 16)).astype(np.float32).round(4)
    missing = rng.uniform(size=numbers.shape) < 0.02
    columns = {f"x{i}": pl.Series(np.where(missing[:, i], np.nan, numbers[:, i])).fill_nan(None) for i in range(16)}
    for i, n_categories in enumerate((3, 8, 12, 40)):
        columns[f"c{i}"] = pl.Series([f"kind {k}" for k in range(n_categories)]).gather(
            rng.integers(n_categories, size=n_rows)
        )
    side = np.where(rng.uniform(size=n_rows) < 0.5, 1, -1)
    y = numbers[:, 0] + side * (1 + np.abs(numbers[:, 1])) + 0.1 * rng.normal(size=n_rows)
    return pl.DataFrame(columns | {"y": y.round(4)})


def measured(*command: str) -> tuple[float, float]:
    """Return the seconds and the peak memory, in GiB, of a command of torchmcl."""
    line = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "torchmcl", *command]
    code, seconds, peak = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()[-3:]
    assert code == "0", command
    return float(seconds), float(peak)


def main() -> None:
    """Run the benchmark and report the results."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--epochs", type=int, default=2)
    options = arguments.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        table = made_table(options.rows, 0)
        for suffix in ("parquet", "csv"):
            model = str(Path(folder) / f"model-{suffix}")
            path = Path(folder) / f"table.{suffix}"
            table.write_parquet(path) if suffix == "parquet" else table.write_csv(path)
            command = ("fit", str(path), "--target", "y", "-o", model, "--epochs", str(options.epochs), "--quiet")
            seconds, peak = measured(*command, "--device", options.device)
            metrics = json.loads((Path(model) / "metrics.json").read_text())
            rows.append(
                {
                    "command": "fit",
                    "format": suffix,
                    "rows": options.rows,
                    "columns": table.width,
                    "seconds": seconds,
                    "seconds_per_epoch": metrics["seconds"]["epochs"] / options.epochs,
                    "peak_gib": peak,
                }
            )
            answers, few = (Path(folder) / f"{name}.{suffix}" for name in ("answers", "few"))
            table[:2].write_parquet(few) if suffix == "parquet" else table[:2].write_csv(few)
            start_up, _ = measured("predict", model, str(few), "-o", str(answers), "--quiet")
            seconds, peak = measured("predict", model, str(path), "-o", str(answers), "--quiet")
            rows.append(
                {
                    "command": "predict",
                    "format": suffix,
                    "rows": options.rows,
                    "seconds": seconds,
                    "start_up_s": start_up,
                    "rows_per_second": options.rows / seconds,
                    "rows_per_second_without_start_up": options.rows / (seconds - start_up),
                    "peak_gib": peak,
                }
            )
        rows.append(network(options.rows, model))
    report("table", options.device, rows, options.out)


def network(n_rows: int, model: str) -> dict[str, object]:
    """Return the speed of the predictions alone, without reading and writing."""
    from torchmcl_tables.data import Table
    from torchmcl_tables.model import load_table_model

    loaded = load_table_model(Path(model))
    table = Table("generated", made_table(n_rows, 1))
    start = time.perf_counter()
    loaded.predict(table)
    seconds = time.perf_counter() - start
    return {"command": "TableModel.predict", "rows": n_rows, "rows_per_second": n_rows / seconds}


if __name__ == "__main__":
    main()
