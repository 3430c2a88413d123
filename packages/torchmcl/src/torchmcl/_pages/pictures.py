"""Common parts of the pictures in reports: the palette, figures, answers over data, files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchmcl._optional import optional_import
from torchmcl.persistence.writing import write_atomically

__all__ = [
    "AMCL",
    "DATA",
    "GREY",
    "INK",
    "MCL",
    "PALETTE",
    "RELAXED",
    "SOFT",
    "draw_answers",
    "method_colour",
    "new_figure",
    "save_picture",
]

#: Okabe and Ito's colours, which remain distinct for colour-blind readers.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: The methods; lines and text; the data behind answers.
AMCL, MCL, RELAXED = PALETTE[0], PALETTE[1], PALETTE[3]
INK, SOFT, GREY, DATA = "#222222", "#555555", "#8a94a1", "#9fb8a0"
_METHODS = {"amcl": AMCL, "annealed mcl": AMCL, "mcl": MCL, "pit": INK, "annealed epsilon": RELAXED}


def method_colour(method: str) -> str:
    """Return the color of a method, given its key or its label.

    Example:
        >>> [method_colour(name) for name in ("annealed MCL", "amcl-linear", "Relaxed-WTA (0.1)", "mcl")]
        ['#0072B2', '#0072B2', '#CC79A7', '#D55E00']
    """
    word = method.lower()
    return _METHODS.get(word) or _METHODS.get(word.split("-")[0], RELAXED)


def new_figure(width: float, height: float, **options: Any) -> Any:
    """Return an empty matplotlib figure independent of pyplot: no window, and nothing to close."""
    figures = optional_import("matplotlib.figure", extra="demo", needed_by="Drawing the figures of a report")
    return figures.Figure(figsize=(width, height), **options)


def draw_answers(axis: Any, points: Sequence[Sequence[float]], answers: Sequence[Sequence[float]]) -> None:
    """Draw data in the square [-1, 1]^2 and answers (x, y, score) over it, darker for higher scores."""
    axis.scatter([p[0] for p in points], [p[1] for p in points], s=5, c=DATA, alpha=0.45, linewidths=0)
    x, y, scores = zip(*answers, strict=True)
    top = max(*scores, 1e-12)
    # A faint outline keeps even an answer with score 0 in sight.
    shades = [(0.0, 0.28, 0.6, 0.12 + 0.88 * score / top) for score in scores]
    axis.scatter(x, y, s=46, c=shades, edgecolors="#00345f", linewidths=0.5)
    axis.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))


def save_picture(figure: Any, path: Path) -> None:
    """Write a matplotlib figure beside `path` as .png and .svg."""
    for form, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, bbox_inches="tight", **options)
        write_atomically(path.with_suffix(f".{form}"), buffer.getvalue())
