"""How time and memory grow with models, hypotheses, rows and units of work, and the line fitted to each.

python benchmarks/scaling.py [--largest 10000000] [--out ...]
python benchmarks/scaling.py --growth [--device cpu|cuda] [--largest 100000] [--out ...]

With --growth: seconds of an epoch against models, rows, hypotheses, length and outputs on either device, beside the
floor that products and memory set, see `_growth.py`.

Every point is measured in a separate process on one core: the processor's seconds of an epoch (which a busy machine
does not change), those of building the models, and the peak of memory above that of the bare process. Units of work
go through a dask scheduler in this process, whose own seconds are counted; the worker's are not. Adding the records
of a unit to those of a study is the shortest of five times by the clock, disk included. The points of
results/fleet-h200.json are fitted too. All lines are `fixed + each * n`, fitted to relative errors, and stand beside
what was measured.
"""

import json
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import torchmcl as mcl
from _common import parser, report
from _growth import growth
from torchmcl.fleet import Fleet, FleetData

_RESULTS = Path(__file__).with_name("results")
_MODELS = (1, 10, 100, 1_000, 10_000)
_HYPOTHESES = (1, 10, 100, 1_000, 10_000)
_ROWS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_UNITS = (10, 100, 1_000)
_RECORDS = (1_000, 10_000, 100_000)


def epoch(n_models: int, n_hypotheses: int, n_rows: int, batch_size: int | None, n_epochs: int) -> dict[str, float]:
    """Return seconds of an epoch, seconds of building the models, and the peak of memory in megabytes."""
    torch.set_num_threads(1)
    bare = _peak()
    start = time.process_time()
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(6, 1, n_hypotheses, hidden=(50,)), n_models, rule=mcl.AnnealedWTA(0.5))
    built = time.process_time() - start
    data = FleetData.shared(torch.randn(n_rows, 6), torch.randn(n_rows, 1, 1), n_models)
    start = time.process_time()
    fleet.fit(data, n_epochs, batch_size="all" if batch_size is None else batch_size, progress=False)
    seconds = (time.process_time() - start) / n_epochs
    return {"seconds": seconds, "build_seconds": built, "megabytes": _peak() - bare}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def apart(work: Callable[..., dict[str, float]], *arguments: object) -> dict[str, float]:
    """Return what `work` returns in a separate process."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work, arguments)


def units(n_units: int) -> dict[str, float]:
    """Return the seconds that the scheduler and the client spend on units of work that take no time."""
    import distributed

    from torchmcl_studies.uci.distributed import results_from

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        list(results_from("scaling", client, abs, [0] * 5))  # connections are made
        start = time.process_time()
        n_done = len(list(results_from("scaling", client, abs, list(range(n_units)))))
        assert n_done == n_units
        return {"seconds": time.process_time() - start}


def records(n_records: int) -> dict[str, float]:
    """Return the seconds of adding a unit's records to the file of a study that has some already."""
    from torchmcl_studies.uci.study import Records

    def rows(first: int, n: int) -> list[dict[str, object]]:
        row = {"set": "yacht", "method": "mcl", "protocol": "last", "seed": 0, "distortion": 1 / 3, "rmse": 2 / 3}
        return [row | {"fold": first + i, "usage": [0.2] * 5, "seconds": 0.5} for i in range(n)]

    with tempfile.TemporaryDirectory() as folder:
        kept = Records(Path(folder) / "records.jsonl", {"epochs": 1000})
        kept.add(rows(0, n_records))
        times = []
        for i in range(5):
            start = time.perf_counter()
            kept.add(rows(n_records + 200 * i, 200))
            times.append(time.perf_counter() - start)
    return {"seconds": min(times)}


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the line `fixed + each * n`, both at least 0, with the least squares of relative errors."""
    n, values = np.array(points, dtype=float).T
    both = np.linalg.lstsq(np.stack([1 / values, n / values], axis=1), np.ones(len(n)), rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    ratios, inverses = n / values, 1 / values
    only_each = (0.0, float(ratios.sum() / (ratios**2).sum()))
    only_fixed = (float(inverses.sum() / (inverses**2).sum()), 0.0)
    errors = [np.sum((fixed * inverses + each * ratios - 1) ** 2) for fixed, each in (only_each, only_fixed)]
    return (only_each, only_fixed)[int(np.argmin(errors))]


def fitted(axis: str, points: list[dict[str, float]], measures: tuple[str, ...]) -> list[dict[str, object]]:
    """Return the points with what the lines say of them, and the lines."""
    rows: list[dict[str, object]] = [{"axis": axis, **point} for point in points]
    lines: dict[str, object] = {"axis": axis, "line": "fixed + each * n"}
    for measure in measures:
        known = [(point["n"], point[measure]) for point in points if point[measure] > 0]
        if len(known) < 2:
            continue
        fixed, each = line(known)
        lines[measure] = {"fixed": fixed, "each": each}
        for row, point in zip(rows, points, strict=True):
            row[f"{measure}_of_the_line"] = fixed + each * point["n"]
    return [*rows, lines]


def on_gpu() -> list[dict[str, object]]:
    """Return the fit of the fleet's points on the H200: a thousand epochs of yacht."""
    found = json.loads((_RESULTS / "fleet-h200.json").read_text())["rows"]
    # The first point also paid for setting the device up.
    points = [{"n": row["n_models"], "seconds": row["seconds"]} for row in found if row.get("n_models", 0) > 1]
    return fitted("models on an H200, 1000 epochs", points, ("seconds",))


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--largest", type=int, default=10_000_000, help="leave out larger numbers of anything")
    arguments.add_argument("--growth", action="store_true", help="growth of an epoch's time, with floors")
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    if options.growth:
        report("growth", options.device, growth(options.device, options.largest), options.out)
        raise SystemExit
    rows: list[dict[str, object]] = []
    sweeps = {
        "models": (_MODELS, lambda n: (n, 5, 277, None, 3)),
        "hypotheses": (_HYPOTHESES, lambda n: (4, n, 277, None, 3)),
        "rows": (_ROWS, lambda n: (1, 5, n, 1024, 1)),
    }
    for axis, (numbers, how) in sweeps.items():
        points = [{"n": n, **apart(epoch, *how(n))} for n in numbers if n <= options.largest]
        rows += fitted(axis, points, ("seconds", "build_seconds", "megabytes"))
        print(rows[-1], flush=True)
    rows += fitted("units", [{"n": n, **units(n)} for n in _UNITS if n <= options.largest], ("seconds",))
    rows += fitted("records", [{"n": n, **records(n)} for n in _RECORDS if n <= options.largest], ("seconds",))
    rows += on_gpu()
    report("scaling", "cpu", rows, options.out)
