"""Make the tables and the figure of the page on automatic annealing from the committed records.

python docs/_auto_tables.py
"""

import csv
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.annealing._problems import PROBLEMS  # noqa: E402
from benchmarks.annealing.parts import ARMS, FULL, compared, family, read  # noqa: E402
from benchmarks.annealing.search import summary  # noqa: E402

RESULTS = HERE.parent / "benchmarks" / "results"
RULES = (FULL, "WTA with moves", "WTA", "Relaxed-WTA 0.1", "annealed", "top k")
KINDS = {"modes": "problems with modes", "UCI": "UCI sets", "real": "real data"}
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a94a1"


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a list table."""
    out = [".. list-table::", "   :header-rows: 1", ""]
    for line in [heads, *lines]:
        out += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(line)]
    return "\n".join(out) + "\n"


def ratio(found: dict[str, Any], p: str) -> str:
    """Return a ratio with its standard error, in bold where p is below 0.05."""
    mark = "**" if found[p] < 0.05 else ""
    return f"{mark}{found['ratio']:.2f}\N{NBSP}±\N{NBSP}{found['ratio'] * found['log_error']:.2f}{mark}"


def modes(rows: list[dict[str, Any]]) -> None:
    """Write the median and the fraction above 1.5 of distortion / floor; without noise, the median distortion."""
    with (HERE / "auto_modes.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["problem", *RULES])
        for row in rows:
            if row["floor"] is None:
                continue
            cells = []
            for arm in RULES:
                values = np.array(row["arms"][arm])
                exact = row["floor"] < 1e-9
                high = f"{np.median(values):.1e}" if exact else f"{np.median(values):.2f} ({(values > 1.5).mean():.0%})"
                cells.append(high)
            writer.writerow([row["problem"], *cells])


def parts(found: list[dict[str, Any]]) -> None:
    """Write the mean ratios of all arms to all parts together, and draw the ratios of all problems."""
    lines = []
    for arm in found[1:]:
        ratios = arm["problems"].values()
        worse, better = (
            sum(value["p_holm"] < 0.05 and (value["ratio"] > 1) == is_worse for value in ratios)
            for is_worse in (True, False)
        )
        means = [f"{arm['mean'][kind][0]:.2f}" for kind in arm["mean"]]
        lines.append([arm["arm"], *means, str(worse), str(better)])
    kinds = [f"{name} ({found[0]['mean'][kind][1]})" for kind, name in {**KINDS, "exact": "without noise"}.items()]
    heads = ["rule", *kinds, "significantly worse", "significantly better"]
    (HERE / "auto_parts.inc").write_text(table(heads, lines))
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True, width_ratios=(2, 1, 1))
    names = [arm["arm"] for arm in found[1:]]
    for axis, (kind, title) in zip(axes, KINDS.items(), strict=True):
        for height, arm in enumerate(found[1:]):
            values = [value["ratio"] for name, value in arm["problems"].items() if family(name) == kind]
            offsets = height + np.linspace(-0.28, 0.28, len(values))
            axis.scatter(np.clip(values, 0.25, 40), offsets, s=9, color=GREY, linewidths=0)
            axis.plot([math.exp(np.mean(np.log(values)))] * 2, [height - 0.38, height + 0.38], color=BLUE, lw=2.5)
        axis.axvline(1, color=ORANGE, lw=1)
        axis.set(xscale="log", title=f"{title} ({len(values)})", xlabel="distortion relative to all parts")
        axis.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
        axis.minorticks_off()
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.savefig(HERE / "_static" / "auto_parts.png", dpi=110)


def sets(rows: list[dict[str, Any]], found: list[dict[str, Any]], kinds: tuple[str, ...]) -> str:
    """Return the geometric means of the rules on problems without a known floor, and their ratios to all parts."""
    by_arm = {arm["arm"]: arm["problems"] for arm in found}
    lines = []
    for row in rows:
        if family(row["problem"]) in kinds and row["floor"] is None:
            mean = {arm: float(np.exp(np.mean(np.log(row["arms"][arm])))) for arm in RULES}
            ratios = [ratio(by_arm[arm][row["problem"]], "p_holm") for arm in RULES[1:]]
            lines.append([row["problem"].removeprefix("UCI "), f"{mean[FULL]:.3g}", *ratios])
    return table(["set", FULL, *(f"{arm} / {FULL}" for arm in RULES[1:])], lines)


def search() -> None:
    """Write the comparison of `FleetSearch` with tuned baselines."""
    lines = []
    for row in summary(read(RESULTS / "auto-search.jsonl")):
        means = [f"{row[name]:.3g}" for name in ("tuned", "auto", "search")]
        ratios = [ratio(row[f"{name} / tuned"], "p") for name in ("auto", "search")]
        lines.append([row["problem"].removeprefix("UCI "), *means, *ratios])
    heads = ["set", "tuned", "auto", "FleetSearch", "auto / tuned", "FleetSearch / tuned"]
    (HERE / "auto_search.inc").write_text(table(heads, lines))


def main() -> None:
    """Write all tables and the figure, and print the comparison with the earlier version."""
    order = {name: index for index, name in enumerate(PROBLEMS)}
    rows = sorted(read(RESULTS / "auto-parts.jsonl"), key=lambda row: order[row["problem"]])
    found = compared(rows, rows)
    assert [arm["arm"] for arm in found] == list(ARMS)
    modes(rows)
    parts(found)
    (HERE / "auto_sets.inc").write_text(sets(rows, found, ("UCI", "real")))
    search()
    versions = compared(
        [{**row, "arms": {FULL: row["arms"][FULL]}} for row in rows], read(RESULTS / "auto-before.jsonl")
    )
    print("relative to the earlier version:", versions[0]["mean"])
    print({name: value for name, value in versions[0]["problems"].items() if value["p_holm"] < 0.05})


if __name__ == "__main__":
    main()
