"""The pictures of the page about classes. Names of classes are drawn as plain text, truncated."""

from collections.abc import Sequence
from typing import Any

from torchmcl._pages.pictures import INK, PALETTE
from torchmcl_tables.reports.figures import axes

__all__ = ["confusion_figure", "top_figure"]

_BLUE, *_ = PALETTE
# Characters of a label, of all labels in a line, and classes whose cells have room for numbers.
_LONGEST, _WIDEST, _MOST_NUMBERS = 18, 60, 12


def top_figure(found: dict[str, Any]) -> Any:
    """Return the share of rows whose class is among the first k guesses."""
    figure, axis = axes()
    axis.plot(found["numbers"], found["covered"], color=_BLUE, marker="o", lw=2, label="holds the truth")
    axis.plot(found["numbers"], found["expected"], color=INK, ls="--", lw=1.2, label="promised")
    axis.set(xlabel="number of guesses", ylabel="share of rows", ylim=(0, 1.02))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=9)
    return figure


def confusion_figure(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Any:
    """Return the confusion matrix as shares of each class (rows)."""
    figure, axis = axes((6.2, 5.6))
    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axis.set(xlabel="guess", ylabel="truth", xticks=range(len(names)), yticks=range(len(names)))
    labels = [_label(name) for name in names]
    turned = sum(map(len, labels)) > _WIDEST
    axis.set_xticklabels(labels, rotation=90 if turned else 0, fontsize=8, parse_math=False)
    axis.set_yticklabels(labels, fontsize=8, parse_math=False)
    if len(names) <= _MOST_NUMBERS:
        for row, of_row in enumerate(shares):
            for column, share in enumerate(of_row):
                color = "white" if share > 0.6 else INK
                axis.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=color)
    return figure


def _label(name: str) -> str:
    """Return the name of a class as a label: printable characters, truncated."""
    text = "".join(mark if mark.isprintable() else "?" for mark in name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
