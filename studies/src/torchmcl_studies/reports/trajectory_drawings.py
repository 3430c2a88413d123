"""The pictures of the pedestrian study: hypotheses at sharp turns, and the calibration of scores."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from torchmcl._pages.pictures import AMCL, GREY, INK, PALETTE, new_figure
from torchmcl_studies.trajectories.methods import METHODS

_N_OBSERVED = 8
_SHOWN = ("mcl", "amcl", "mdn", "mcl-joint")
_EDGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
# Metres around what is drawn.
_MARGIN = 1.0


def bin_of(score: float) -> int:
    """Return the bin of a score, as in the records."""
    return bisect_left(_EDGES, score)


def draw_forks(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the forks of one scene: a line for each person, a column for each method."""
    by_method = {row["method"]: row["forks"] for row in rows}
    methods = [name for name in _SHOWN if name in by_method] or list(by_method)[:1]
    n_forks = len(by_method[methods[0]])
    figure = new_figure(3.2 * len(methods), 2.9 * max(n_forks, 1), layout="constrained")
    axes = figure.subplots(max(n_forks, 1), len(methods), squeeze=False)
    for column, method in enumerate(methods):
        for place, fork in enumerate(by_method[method]):
            _draw_fork(axes[place][column], fork)
        axes[0][column].set_title(METHODS[method].label, fontsize=10)
    return figure


def _draw_fork(axis: Any, fork: Mapping[str, Any]) -> None:
    path = fork["path"]
    observed, future = path[:_N_OBSERVED], path[_N_OBSERVED - 1 :]
    for other in fork["near"]:
        axis.plot(*_columns(other[:_N_OBSERVED]), color=GREY, lw=1)
        axis.plot(*_columns(other[_N_OBSERVED - 1 :]), color=GREY, lw=0.8, ls=":")
    top = max([*fork["probabilities"], 1e-9])
    for hypothesis, score in zip(fork["hypotheses"], fork["probabilities"], strict=True):
        shade = 0.12 + 0.88 * score / top  # even a score of 0 stays in sight
        axis.plot(*_columns([observed[-1], *hypothesis]), color=AMCL, alpha=shade, lw=1.3)
        axis.plot(*hypothesis[-1], "o", color=AMCL, alpha=shade, ms=2.5)
    axis.plot(*_columns(future), color="#009E73", lw=2.2)
    axis.plot(*_columns(observed), color=INK, lw=2.2)
    axis.plot(*observed[-1], "o", color=INK, ms=4)
    x, y = _columns([*path, *(point for hypothesis in fork["hypotheses"] for point in hypothesis)])
    axis.set(xlim=(min(x) - _MARGIN, max(x) + _MARGIN), ylim=(min(y) - _MARGIN, max(y) + _MARGIN), aspect="equal")
    axis.tick_params(labelsize=7)


def _columns(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]


def draw_calibration(bins: Mapping[str, Sequence[Sequence[float]]]) -> Any:
    """Return the share of wins against the score, a line for each label of bins (mean score, share, count)."""
    figure = new_figure(6.2, 4.6, layout="constrained")
    axis = figure.subplots()
    axis.plot([1e-3, 1], [1e-3, 1], color=GREY, lw=1)
    colours = (*PALETTE, INK, GREY)
    for (label, points), colour in zip(bins.items(), colours, strict=False):
        drawn = [(score, share) for score, share, count in points if count >= 20 and score > 0 and share > 0]
        axis.plot(*_columns(drawn), "o-", color=colour, ms=4, lw=1.2, label=label)
    axis.set(xscale="log", yscale="log", xlabel="score", ylabel="share of wins", xlim=(2e-3, 1), ylim=(2e-3, 1))
    axis.legend(fontsize=8, frameon=False)
    return figure
