"""Make the tables of the page on automatic annealing from the committed records.

python docs/_auto_tables.py
"""

import csv
import math
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.annealing.auto import compared, summary  # noqa: E402

RECORDS = HERE.parent / "benchmarks" / "results" / "auto-records.csv"


def ratio(row: dict) -> str:
    """Return a ratio with its standard error and the p value of the paired test."""
    if not row:
        return ""
    mark = "**" if row["wilcoxon_p"] < 0.05 else ""
    number = f"{mark}{row['ratio']:.2f} ± {row['ratio_standard_error']:.2f}{mark}"
    unbroken = (part.replace(" ", "\N{NBSP}") for part in (number, f"(p = {row['wilcoxon_p']:.1g})"))
    return " ".join(unbroken)


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a list table."""
    out = [".. list-table::", "   :header-rows: 1", ""]
    for line in [heads, *lines]:
        out += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(line)]
    return "\n".join(out) + "\n"


def main() -> None:
    """Write the two tables."""
    with RECORDS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    sets = list(dict.fromkeys(row["set"] for row in rows if row["method"] == "auto"))
    means = {row["set"]: row for row in summary(rows) if "auto_mean" in row}
    policy, search = [], []
    for name in sets:
        to_amcl, to_mcl = (compared(rows, name, "auto", other) for other in ("amcl", "mcl"))
        tuned = [compared(rows, name, ours, "baseline-tuned") for ours in ("auto", "auto-search", "fleet-search")]
        own = [int(row["hold"]) for row in rows if row["set"] == name and row["method"] == "auto" and row["hold"]]
        mean = means[name]
        policy.append(
            [
                name,
                f"{to_mcl['other_distortion']:.3g}",
                f"{to_amcl['other_distortion']:.3g}",
                f"{to_mcl['ours_distortion']:.3g}",
                ratio(to_mcl),
                ratio(to_amcl),
                f"{mean['auto_mean']:.3g} ({mean['published_amcl']:.3g})",
                f"{sum(own) / len(own) / 10:.0f} %" if own else "",
            ]
        )
        if not all(tuned):
            continue
        values = [tuned[0]["other_distortion"], *(found["ours_distortion"] for found in tuned)]
        search.append([name, *(f"{value:.3g}" for value in values), *map(ratio, tuned)])
    heads = ["set", "MCL", "aMCL", "auto", "auto / MCL", "auto / aMCL", "mean (published aMCL)", "hard from"]
    (HERE / "auto_policy.inc").write_text(table(heads, policy))
    ours = ["auto", "best of 24", "best of 64"]
    heads = ["set", "tuned", *ours, *(f"{name} / tuned" for name in ours)]
    (HERE / "auto_search.inc").write_text(table(heads, search))
    assert math.isfinite(sum(row["auto_mean"] for row in means.values()))


if __name__ == "__main__":
    main()
