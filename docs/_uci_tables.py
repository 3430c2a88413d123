"""Write the table of docs/uci.rst from benchmarks/results/uci-records-h200.csv: python docs/_uci_tables.py"""

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from torchmcl_studies.uci.methods import published_cells

HERE = Path(__file__).resolve().parent
SETS = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm", "power", "naval", "protein")
METHODS = (
    ("mcl", "MCL", "mcl"),
    ("relaxed-0.1", "Relaxed-WTA (0.1)", "relaxed_wta_eps0.1"),
    ("amcl-exponential", "aMCL", "amcl_exp"),
)


def number(value):
    return f"{value:.2e}" if value < 1e-3 else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def main():
    values = defaultdict(list)
    with (HERE.parent / "benchmarks/results/uci-records-h200.csv").open() as file:
        for row in csv.DictReader(file):
            if row["distortion"]:
                values[row["set"], row["method"], row["protocol"]].append(float(row["distortion"]))
    published = published_cells()
    lines = [".. list-table:: Distortion, mean ± standard deviation over the official folds", "   :header-rows: 1", ""]
    head = ["set", "method", "last", "validation", "test-selected", "published"]
    for cells in [head] + [
        [
            name,
            label,
            *(
                f"{number(statistics.mean(folds))} ± {number(statistics.stdev(folds))}"
                for folds in (values[name, method, protocol] for protocol in head[2:5])
            ),
            published[name, key, "distortion"].text,
        ]
        for name in SETS
        for method, label, key in METHODS
    ]:
        lines += [f"   {'* ' if i == 0 else '  '}- {cell}" for i, cell in enumerate(cells)]
    (HERE / "uci_table.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
