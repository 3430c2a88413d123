"""Draw docs/_static/growth.svg from benchmarks/results/growth-*.json: python docs/_scaling_pictures.py"""

import json
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a94a1"
COLORS = {"cpu": BLUE, "h200": ORANGE}
AXES = ("models", "rows", "hypotheses", "length", "outputs")


def main() -> None:
    """Draw a panel for each axis, with a line and a floor for each device that was measured."""
    matplotlib.rcParams["svg.hashsalt"] = "growth"  # the same file for the same numbers
    figure = Figure(figsize=(13, 3.2), layout="constrained")
    panels = figure.subplots(1, len(AXES), sharey=True)
    for path in sorted((HERE.parent / "benchmarks/results").glob("growth-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        color = COLORS[path.stem.removeprefix("growth-")]
        for panel, axis in zip(panels, AXES, strict=True):
            points = [row for row in record["rows"] if row["axis"] == axis]
            numbers = [row["n"] for row in points]
            device = record["machine"]["device"]
            panel.loglog(numbers, [row["seconds"] for row in points], "o-", color=color, label=device)
            panel.loglog(numbers, [row["floor_seconds"] for row in points], "--", color=color, alpha=0.5, label="floor")
            panel.set(xlabel=axis)
    panels[0].set(ylabel="seconds of an epoch")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "_static/growth.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
