"""Write docs/segmentation_*.inc from benchmarks/results/segmentation-h200.jsonl: python docs/_segmentation_tables.py"""

import json
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).resolve().parent
ORDER = ("dropout", "ensemble of five", "probabilistic U-Net", "level sets of one U-Net", "winner takes all")
ORDER += ("annealed", "annealed, then energy distance")
OURS = "annealed"
PASSES = {"ensemble of five": 5, "dropout": 16}  # of the U-Net for all answers


def records():
    """Return the lines of each method, one for each seed."""
    lines = (HERE.parent / "benchmarks/results/segmentation-h200.jsonl").read_text().splitlines()
    found = {name: [] for name in ORDER}
    for line in map(json.loads, lines):
        found[line["method"]].append(line)
    return {name: own for name, own in found.items() if own}


def spread(lines, n, measure):
    """Return the mean over seeds, and the standard deviation between them, as text."""
    values = [mean(line[n][measure]) for line in lines if measure in line[n]]
    if not values:
        return ""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def per_picture(lines, n):
    """Return the energy distance of each picture, a mean over seeds."""
    return [mean(values) for values in zip(*(line[n]["energy distance"] for line in lines), strict=True)]


def table(cells, widths):
    """Return a list-table."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in cells:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def measures(found):
    """Return the table of all measures."""
    cells = [["method", "passes", "GED, one pass", "GED, all answers", "best IoU", "matched dice"]]
    for name, lines in found.items():
        one = "1" if "1" in lines[0] else "16"  # some give all answers in one pass
        own = [spread(lines, one, "energy distance"), *(spread(lines, "16", m) for m in ("energy distance", "best"))]
        cells.append([name, PASSES.get(name, 1), *own, spread(lines, "16", "matched dice")])
    return table(cells, "28 8 18 18 18 18")


def paired(found):
    """Return the table of differences to our method over the same pictures."""
    cells = [["method, with all answers", "its GED minus ours", "pictures where ours is lower"]]
    ours = per_picture(found[OURS], "16")
    for name, lines in found.items():
        if name != OURS:
            differences = [b - a for a, b in zip(ours, per_picture(lines, "16"), strict=True)]
            error = stdev(differences) / len(differences) ** 0.5
            lower = sum(value > 0 for value in differences) / len(differences)
            cells.append([name, f"{mean(differences):+.3f} ± {error:.3f}", f"{lower:.0%}"])
    return table(cells, "40 30 30")


def tables():
    """Return the text of each file."""
    found = records()
    return {"measures": measures(found), "paired": paired(found)}


if __name__ == "__main__":
    for name, text in tables().items():
        (HERE / f"segmentation_{name}.inc").write_text(text, encoding="utf-8")
