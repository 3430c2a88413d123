"""What the pictures of the reports share: colours, answers over data, a figure as PNG and SVG."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchmcl._files import write_atomically
from torchmcl._optional import optional_import

__all__ = ["COLOURS", "DATA_COLOUR", "draw_answers", "pyplot", "save_picture"]

# Colours that stay apart for colour-blind readers (Okabe-Ito).
COLOURS = {"mcl": "#D55E00", "relaxed": "#CC79A7", "amcl": "#0072B2"}
DATA_COLOUR = "#9fb8a0"


def pyplot(needed_by: str) -> Any:
    """Return matplotlib.pyplot, drawing into memory."""
    matplotlib = optional_import("matplotlib", extra="demo", needed_by=needed_by)
    matplotlib.use("Agg")
    return optional_import("matplotlib.pyplot", extra="demo", needed_by=needed_by)


def draw_answers(axis: Any, points: Sequence[Sequence[float]], answers: Sequence[Sequence[float]]) -> None:
    """Draw data in the square [-1, 1]^2 and answers (x, y, score) over it, the darker the higher the score."""
    axis.scatter([p[0] for p in points], [p[1] for p in points], s=5, c=DATA_COLOUR, alpha=0.45, linewidths=0)
    x, y, scores = zip(*answers, strict=True)
    top = max(*scores, 1e-12)
    # A faint outline keeps even an answer with score 0 in sight.
    axis.scatter(
        x,
        y,
        s=46,
        c=[(0.0, 0.28, 0.6, 0.12 + 0.88 * s / top) for s in scores],
        edgecolors="#00345f",
        linewidths=0.5,
    )
    axis.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))


def save_picture(figure: Any, path: Path) -> None:
    """Write a matplotlib figure beside `path` as .png and .svg."""
    for form, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, bbox_inches="tight", **options)
        write_atomically(path.with_suffix(f".{form}"), buffer.getvalue())
