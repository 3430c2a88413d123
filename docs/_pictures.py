"""Draw the pictures of docs/examples.rst from the programs on it: python docs/_pictures.py."""

import re
import textwrap
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:(?:[ ]+[^\n]*)?\n)+)", re.MULTILINE)
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a94a1"


def ran(page: str, blocks: slice) -> dict[str, Any]:
    """Run some blocks of a page and return their names."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": page}
    for block in BLOCK.findall((DOCS / f"{page}.rst").read_text(encoding="utf-8") + "\n")[blocks]:
        exec(compile(textwrap.dedent(block), f"{page}.rst", "exec"), names)
    return names


def time_series(names: dict[str, Any]) -> Figure:
    """Return the past of three series, their scenarios, and the actual future."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    past, future = names["past"][1000:], names["future"][1000:]
    change = future[:, -1] - past[:, -1]
    shown = [int(change.argmin()), int(change.abs().argmin()), int(change.argmax())]
    for axis, row in zip(figure.subplots(1, 3), shown, strict=True):
        axis.plot(range(30, 54), past[row, 30:], color=GREY, lw=1.5, label="past")
        for k, (scenario, share) in enumerate(zip(names["scenarios"][row], names["probabilities"][row], strict=True)):
            label = "scenarios, by probability" if k == 0 else None
            axis.plot(range(54, 72), scenario, color=BLUE, lw=0.7 + 6 * float(share), alpha=0.5, label=label)
        axis.plot(range(54, 72), future[row], color=ORANGE, lw=1.5, label="actual future")
        axis.set(xlabel="month")
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure


def images(names: dict[str, Any]) -> Figure:
    """Return pictures, the masks of the annotator, and those of the network."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    axes = figure.subplots(3, 5)
    shares = names["scores"].probabilities(names["output"].predictions.score_logits)
    for row, line in enumerate(axes):
        titles = ["picture", "annotator", *(f"mask {k + 1}: {float(shares[row, k]):.0%}" for k in range(3))]
        shown = [names["fresh"][row, 0], names["truth"][row], *names["found"][row]]
        for axis, title, picture in zip(line, titles, shown, strict=True):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axis.set_title(title, fontsize=10)
            axis.set_axis_off()
    return figure


def robots(names: dict[str, Any]) -> Figure:
    """Return the arms of one and of two answers."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axis, n in zip(figure.subplots(1, 2, sharey=True), (1, 2), strict=True):
        postures = names["found"][n]
        for k, angles in enumerate(postures):
            total = angles.cumsum(-1)
            steps = names["LENGTHS"] * torch.stack([total.cos(), total.sin()])
            joints = torch.cat([torch.zeros(2, 1), steps.cumsum(-1)], dim=-1)
            axis.plot(*joints, "-o", color=(BLUE, "#009E73")[k], lw=4, ms=8, label=f"answer {k + 1}")
        axis.plot(*names["goal"][0], "x", color=ORANGE, ms=14, mew=3, label="goal")
        axis.set(aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.6, 0.8), title="One answer" if n == 1 else "Two answers")
        axis.legend(frameon=False, loc="upper left")
    return figure


def segmentation(names: dict[str, Any]) -> Figure:
    """Return pictures, the outlines of the annotators, and the masks."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    for row, line in enumerate(figure.subplots(3, 5)):
        line[0].imshow(names["pictures"][row].view(16, 16), cmap="gray")
        for mask in names["masks"][row]:
            line[0].contour(mask, levels=[0.5], colors=ORANGE, linewidths=1.5)
        line[0].set_title("annotators", fontsize=10)
        for k, axis in enumerate(line[1:]):
            axis.imshow(names["found"].hypotheses[row, k] > 0, cmap="gray", vmin=0, vmax=1)
            axis.set_title(f"mask {k + 1}: {float(names['probabilities'][row, k]):.0%}", fontsize=10)
        for axis in line:
            axis.set_axis_off()
    return figure


EVERY = slice(None)
PICTURES = [(time_series, "examples", slice(2)), (images, "examples", slice(2, 3)), (robots, "examples", slice(3, 4))]
PICTURES += [(segmentation, "segmentation", EVERY)]
for draw, page, blocks in PICTURES:
    draw(ran(page, blocks)).savefig(DOCS / "_static" / f"{draw.__name__}.png", dpi=110)
