"""Write tables and figures of docs/pedestrians.rst from benchmarks/results: python docs/_trajectory_tables.py"""

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from _separation_tables import list_table

from torchmcl.io import read_records
from torchmcl_studies.reports import trajectories as drawings
from torchmcl_studies.reports.trajectories import (
    OVERALL_HEAD,
    TESTS_HEAD,
    overall_rows,
    paired_rows,
    published_rows,
    results_of,
    scene_rows,
)
from torchmcl_studies.trajectories.methods import METHODS

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"


def records(name):
    return read_records("docs", RESULTS / f"trajectories-{name}-h200.jsonl")


def inner_rows():
    """Return (method, temperature, minADE20 / minFDE20, NLL) over the inner splits."""
    groups = defaultdict(list)
    with (RESULTS / "trajectories-inner-h200.csv").open() as file:
        for row in csv.DictReader(file):
            groups[row["method"], row["temperature"]].append(row)
    lines = []
    for (method, temperature), rows in groups.items():
        ade, fde = (statistics.fmean(float(row[name]) for row in rows) for name in ("min_ade", "min_fde"))
        nll = f"{statistics.fmean(float(row['nll']) for row in rows):.2f}" if rows[0]["nll"] else ""
        lines.append([METHODS[method].label.partition(" (")[0], temperature, f"{ade:.4f} / {fde:.4f}", nll])
    return lines


def main():
    results = results_of(records("records"))
    by_scene = scene_rows(results, ("min_ade", "min_fde"))
    # Wide tables in two parts.
    first, second = (0, 1, 2, 3, 4, 5), (0, 6, 7, 8, 9)
    tables = {
        "overall": [
            list_table(
                title, [OVERALL_HEAD[i] for i in part], [[row[i] for i in part] for row in overall_rows(results)]
            )
            for title, part in (("Mean over the five scenes", first), ("The same, continued", second))
        ],
        "published": [
            list_table("Published values", ("method", "minADE20 / minFDE20", "minimum over"), published_rows())
        ],
        "scenes": [list_table("minADE20 / minFDE20 by scene", *by_scene)],
        "tests": [list_table("Differences from MCL (WTA)", TESTS_HEAD, paired_rows(results))],
        "joint": [
            list_table("Joint minus individual winners", TESTS_HEAD, paired_rows(results, "mcl-scenes", ["mcl-joint"]))
        ],
        "inner": [list_table("Inner splits", ("method", "from", "minADE20 / minFDE20", "NLL"), inner_rows())],
    }
    for name, parts in tables.items():
        (HERE / f"pedestrians_{name}.inc").write_text("\n".join(parts))
    drawings.draw_forks(records("forks")).savefig(HERE / "_static" / "pedestrian_forks.png", dpi=90)


if __name__ == "__main__":
    main()
