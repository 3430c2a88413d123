"""Time of `import torchmcl`, of the help, of an input error and of a small fit by command, in fresh processes in turn.

python -m benchmarks.speed.import_time [--out results/import-time.json]

A turn before the first writes the compiled modules, as an installation does.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks._common import parser, report

# What each row measures; the first three are what no program in Python, with torch or for tables can go below.
_PROGRAMS = {
    "python": ["-c", "pass"],
    "torch": ["-c", "import torch"],
    "packages": ["-c", "import torch, sklearn.ensemble, polars"],
    # A name, too: the package by itself loads nothing.
    "torchmcl": ["-c", "import torchmcl; torchmcl.WTA"],
    "help": ["-m", "torchmcl", "--help"],
    "option_error": ["-m", "torchmcl", "fit", "table.csv", "--target", "y", "-o", "model", "--seed", "x"],
    "input_error": ["-m", "torchmcl", "fit", "table.csv", "--target", "z", "-o", "model"],
    "fit": ["-m", "torchmcl", "fit", "small.csv", "--target", "y", "-o", "model", "--overwrite", "--quiet"],
}
_REPEATS = 7
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(arguments: Sequence[str], folder: str) -> float:
    """Return the time from the start to the end of a fresh process."""
    start = time.perf_counter()
    run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=_ENVIRONMENT)
    spent = time.perf_counter() - start
    if run.returncode not in (0, 2) or "Traceback" in run.stderr:
        raise RuntimeError(run.stderr)
    return spent


if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/table.csv", "w") as file:
            file.write("x,y\n" + "".join(f"{i},{i % 7}\n" for i in range(1000)))
        with open(f"{folder}/small.csv", "w") as file:
            lines = ((i, i * i % 17, "abc"[i % 3], 3 * i + 10 * (i % 3) + i * i % 19) for i in range(200))
            file.write("x,z,kind,y\n" + "".join(f"{x},{z},{kind},{y}\n" for x, z, kind, y in lines))
        turns = [{name: seconds(program, folder) for name, program in _PROGRAMS.items()} for _ in range(1 + _REPEATS)]
    medians = {name: statistics.median(turn[name] for turn in turns[1:]) for name in _PROGRAMS}
    must_show = {
        "torchmcl": "above_torch_s <= 0.1",
        "help": "seconds <= 0.3",
        "option_error": "seconds <= 0.3",
        "input_error": "seconds <= 1",
        "fit": "seconds <= 6",
    }
    rows = [
        {
            "name": name,
            "seconds": value,
            "above_python_s": value - medians["python"],
            "above_torch_s": value - medians["torch"],
            "ratio_to_torch": value / medians["torch"],
            "must_show": must_show.get(name, ""),
        }
        for name, value in medians.items()
    ]
    report("import_time", "cpu", rows, options.out)
