"""Compare two checkouts: the times of the benchmarks before and after a change, measured in turn on one machine.

python benchmarks/before_after.py --before OLD --after NEW --commits 5e57fe0 38d2c20 --out RECORD.json
    --lane 0-3 "core.py --device cuda" "dprnn.py --quick" --lane 4-11 "core.py --device cpu"

Each checkout runs its own copy of the scripts: the options of a job must be known to both. Lanes run side by side, each
pinned to its CPUs; the jobs of a lane run one after the other, each before, after, before, after, for some rounds.
A process per lane and checkout lives for all rounds, so that imports and compilations are paid for, and left out, once:
a first round is not counted. A ratio above 1 means slower after the change, for times and for rates alike; it is that
of the medians, beside the lowest and the highest of a round. Baselines that call nothing of torchmcl show the noise.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _common import machine

_TIME = re.compile(r"(^|_)(ms|s|seconds)$|^seconds_per_")
_RATE = re.compile(r"^rows_per_second")
_SIDES = ("before", "after")

# Runs a benchmark for each line of arguments, and answers with an empty line or the error.
_WORKER = """
import contextlib, io, json, runpy, sys, traceback
sys.path.insert(0, "benchmarks")
for line in sys.stdin:
    sys.argv = json.loads(line)
    answer = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path("benchmarks/" + sys.argv[0], run_name="__main__")
    except BaseException:
        answer = traceback.format_exc()
    print(json.dumps(answer), flush=True)
"""

Figures = dict[str, float]
Rounds = list[dict[str, Figures]]


class Checkout:
    """A process that runs the benchmarks of one checkout on some CPUs."""

    def __init__(self, folder: Path, cpus: str) -> None:
        n_threads = sum(1 + int(last or first) - int(first) for first, _, last in _ranges(cpus))
        sources = [folder / "src", folder / "studies/src", *folder.glob("packages/*/src")]
        path = os.pathsep.join(str(source) for source in sources)
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(n_threads)}
        command = ["taskset", "-c", cpus, sys.executable, "-c", _WORKER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)

    def figures(self, job: str) -> Figures:
        """Return the figures of one run of a script with its arguments."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "record.json"
            print(json.dumps([*job.split(), "--out", str(out)]), file=self._process.stdin, flush=True)
            if error := json.loads(self._process.stdout.readline() or '"The process ended."'):
                raise RuntimeError(f"{job}\n{error}")
            return dict(figures_of(job, json.loads(out.read_text())["rows"]))

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def _ranges(cpus: str) -> list[tuple[str, str, str]]:
    return [part.partition("-") for part in cpus.split(",")]


def figures_of(job: str, rows: list[dict[str, object]]) -> Iterator[tuple[str, float]]:
    """Yield each time or rate of a record, named by the job and the words and integers of its row."""
    for row in rows:
        words = [f"{key}={value}" for key, value in row.items() if isinstance(value, str | int) and key != "must_show"]
        for key, value in row.items():
            if isinstance(value, float) and (_TIME.search(key) or _RATE.search(key)):
                yield " | ".join([job, *words, key]), value


def run_lane(
    lane: list[str], folders: dict[str, Path], n_rounds: int, seconds: float, note: Callable[[Rounds], None]
) -> None:
    """Measure both checkouts in each round of a lane, and note the rounds so far after each.

    No round but the first two begins after `seconds`.
    """
    cpus, *jobs = lane
    start = time.monotonic()
    checkouts = {side: Checkout(folder, cpus) for side, folder in folders.items()}
    rounds: Rounds = []
    for index in range(n_rounds + 1):
        if index > 1 and time.monotonic() - start > seconds:
            break
        rounds.append({side: {} for side in _SIDES})
        for job in jobs:
            for side, checkout in checkouts.items():
                rounds[-1][side] |= checkout.figures(job)
        note(rounds[1:])
        print(f"CPUs {cpus}: round {index} of {n_rounds}, {time.monotonic() - start:.0f} s", flush=True)
    for checkout in checkouts.values():
        checkout.close()


def rows_of(cpus: str, rounds: Rounds) -> Iterator[dict[str, object]]:
    """Yield the medians of each figure that both checkouts report, and how they compare."""
    for name in rounds[0]["before"].keys() & rounds[0]["after"].keys():
        pairs = [tuple(of_round[side][name] for side in _SIDES) for of_round in rounds]
        if len({*sum(pairs, ())}) == 1:
            continue  # a setting
        power = -1 if _RATE.search(name.split(" | ")[-1]) else 1
        ratios = [(after / before) ** power for before, after in pairs]
        before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
        row = {"figure": name, "cpus": cpus, "before": before, "after": after, "ratio": (after / before) ** power}
        yield row | {"lowest": min(ratios), "highest": max(ratios), "rounds": len(rounds)}


def main() -> None:
    """Measure and report."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in _SIDES:
        arguments.add_argument(f"--{side}", type=Path, required=True, help="a checkout, its extension built")
    arguments.add_argument("--commits", nargs=2, required=True, help="of both, for the record")
    arguments.add_argument("--lane", nargs="+", action="append", required=True, help="CPUs, as of taskset, and jobs")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="begin no round later than this")
    arguments.add_argument("--device", default="cpu", help="named in the record")
    arguments.add_argument("--out", type=Path, required=True)
    options = arguments.parse_args()
    folders = {side: getattr(options, side).resolve() for side in _SIDES}
    commits = dict(zip(_SIDES, options.commits, strict=True))
    where = machine(options.device) | {"commit": commits}
    by_lane: dict[str, list[dict[str, object]]] = {}
    lock = threading.Lock()

    def measure(lane: list[str]) -> None:
        def note(rounds: Rounds) -> None:
            with lock:  # a run that is broken off leaves a record too
                by_lane[" ".join(lane)] = list(rows_of(lane[0], rounds)) if rounds else []
                rows = sorted(itertools.chain(*by_lane.values()), key=lambda row: -row["ratio"])
                record = {"benchmark": "before_after", "machine": where, "rows": rows}
                options.out.write_text(json.dumps(record, indent=2) + "\n")

        run_lane(lane, folders, options.rounds, options.seconds, note)

    with ThreadPoolExecutor(len(options.lane)) as pool:
        list(pool.map(measure, options.lane))
    rows = json.loads(options.out.read_text())["rows"]
    for row in rows:
        print(f"{row['ratio']:.3f} [{row['lowest']:.3f} {row['highest']:.3f}] {row['after']:.4g} {row['figure']}")


if __name__ == "__main__":
    main()
