"""Diagnostic plots of density estimators on matplotlib axes: densities, prediction sets and coverage.

Each function takes a fitted regressor and rows, draws on `ax` (new axes by default) and returns the axes.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchmcl import checks, optional
from torchmcl.app import report
from torchmcl.errors import bad_value
from torchmcl_tables.verdict import chance_band

__all__ = ["plot_calibration", "plot_density", "plot_intervals"]

_BLUE, _ORANGE, *_ = report.PALETTE
_GRID, _MOST_DENSITIES = 400, 6
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def plot_density(model: Any, X: Any, y: Any = None, *, ax: Any = None, output: int = 0) -> Any:
    """Plot the density of a few rows, with hypotheses as points whose areas represent their probabilities.

    Args:
        model: Fitted `DensityRegressor` or `MCLRegressor`.
        X: Rows of a table, at most 6.
        y: Targets of the rows, drawn as vertical lines.
        ax: Matplotlib axes; by default new axes are created.
        output: Index of the output.

    Example:
        >>> from torchmcl_tables import DensityRegressor
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DensityRegressor(n_epochs=2, n_restarts=1, random_state=0).fit(X, X[:, 0] + np.sin(40 * X[:, 0]))
        >>> from matplotlib.figure import Figure
        >>> plot_density(model, X[:2], ax=Figure().subplots()).get_xlabel()
        'y'
    """
    density, hypotheses = model.predict_distribution(X), model.predict_hypotheses(X)
    n_rows = len(hypotheses.values)
    if n_rows > _MOST_DENSITIES:
        rule = f"have at most {_MOST_DENSITIES} rows"
        raise ValueError(bad_value("plot_density", "X", rule, n_rows, "Plot a few rows at a time: X[:3]."))
    name, targets = _name(model, output), _targets(model, y, n_rows, output)
    axis, one = _axes(ax), density.marginal(output)
    low, high = _limits(one)
    near = one.hypotheses + one.widths * torch.linspace(-4, 4, 9)  # additional points for narrow kernels
    grid = torch.cat([torch.linspace(low, high, _GRID).double(), near.flatten()]).clamp(low, high).unique()
    heights = one.log_prob(grid[:, None, None].to(one.hypotheses)).exp().numpy()  # [points, rows]
    for row in range(n_rows):
        color = report.PALETTE[row % len(report.PALETTE)]
        axis.plot(grid, heights[:, row], color=color, lw=1.6, label=f"row {row}" if n_rows > 1 else None)
        places, areas = hypotheses.values[row, :, output], 10 + 250 * hypotheses.probabilities[row]
        style = {"color": color, "alpha": 0.55, "linewidths": 0, "zorder": 3, "clip_on": False}
        axis.scatter(places, np.zeros(len(places)), s=areas, **style)
        if targets is not None:
            axis.axvline(targets[row], color=color, ls="--", lw=1)
    axis.set(xlabel=name, ylabel="density", xlim=(low, high), ylim=(0, None))
    return _with_legend(axis, n_rows > 1)


def plot_intervals(model: Any, X: Any, y: Any = None, *, coverage: float = 0.9, ax: Any = None, output: int = 0) -> Any:
    """Plot the calibrated prediction set of each row as a bar, in the order of the means.

    Args:
        model: Fitted `DensityRegressor` or `MCLRegressor`.
        X: Rows of a table; a few hundred rows are legible.
        y: Targets of the rows; targets outside their sets are orange.
        coverage: Coverage of the sets, in (0, 1).
        ax: Matplotlib axes; by default new axes are created.
        output: Index of the output.
    """
    sets = model.predict_interval(X, coverage)
    name, targets = _name(model, output), _targets(model, y, len(sets.lower), output)
    means = np.asarray(model.predict(X)).reshape(len(sets.lower), -1)[:, output]
    lower, upper = (end.reshape(len(means), -1, end.shape[-1])[:, output] for end in sets)
    axis, order, places = _axes(ax), np.argsort(means, kind="stable"), np.arange(len(means))
    shown = np.concatenate([lower.ravel(), upper.ravel(), means, [] if targets is None else targets])
    finite = shown[np.isfinite(shown)]
    low, high = float(finite.min()), float(finite.max())
    pad = 0.04 * (high - low) or 1.0
    width = max(0.6, min(4.0, 300 / len(means)))
    for piece in range(lower.shape[1]):
        ends = (np.clip(end[order, piece], low - pad, high + pad) for end in (lower, upper))
        label = None if piece else f"{report.percent(coverage)} set"
        axis.vlines(places, *ends, color=_BLUE, alpha=0.35, lw=width, label=label)
    axis.plot(places, means[order], color=report.INK, lw=1, label="mean")
    if targets is not None:
        inside = ((lower <= targets[:, None]) & (targets[:, None] <= upper)).any(axis=1)[order]
        for chosen, color, words in ((inside, _BLUE, "inside"), (~inside, _ORANGE, "outside")):
            label = f"{words}: {report.percent(float(chosen.mean()))}"
            axis.scatter(places[chosen], targets[order][chosen], s=9, color=color, linewidths=0, zorder=3, label=label)
    axis.set(xlabel="rows, by their mean", ylabel=name, ylim=(low - pad, high + pad))
    return _with_legend(axis, True)


def plot_calibration(model: Any, X: Any, y: Any, *, levels: Sequence[float] = LEVELS, ax: Any = None) -> Any:
    """Plot the observed coverage of prediction sets against the nominal coverage.

    Points inside the gray band are consistent with the nominal coverage.

    Args:
        model: Fitted `DensityRegressor` or `MCLRegressor`.
        X: Rows that were not used in the fit.
        y: Targets of the rows.
        levels: Nominal coverages in (0, 1).
        ax: Matplotlib axes; by default new axes are created.
    """
    if not len(levels):
        raise ValueError(bad_value("plot_calibration", "levels", "have at least one level", "none"))
    for level in levels:
        checks.check_interval("plot_calibration", "levels", level, "(0, 1)", "0.9 is for 90 % intervals.")
    targets = np.asarray(y, dtype=float)
    inside = [model.predict_interval(X, level).contains(targets) for level in levels]
    held = [of_level.reshape(len(targets), -1).mean(axis=0) for of_level in inside]
    axis = _axes(ax)
    low, high = zip(*(chance_band(level, len(targets)) for level in levels), strict=True)
    axis.fill_between(levels, low, high, color=report.GRAY, alpha=0.25, linewidth=0)
    axis.plot(levels, levels, color=report.INK, lw=0.8)
    axis.set(xlabel="nominal coverage", ylabel="observed coverage")
    colors = itertools.cycle(report.PALETTE)
    lines = [
        axis.plot(levels, of_output, marker="o", lw=1.6, color=next(colors))[0] for of_output in np.asarray(held).T
    ]
    if len(lines) > 1:
        for line, name in zip(lines, model.target_names_, strict=True):
            line.set_label(name)
    return _with_legend(axis, len(lines) > 1)


def _limits(density: Any) -> tuple[float, float]:
    """Return the limits of an interval that contains nearly all of the mass of all rows."""
    pieces = density.highest_density(0.995)
    low, high = float(pieces.lower[~pieces.lower.isnan()].min()), float(pieces.upper[~pieces.upper.isnan()].max())
    pad = 0.05 * (high - low)
    return low - pad, high + pad


def _place(model: Any, output: int) -> int:
    n_outputs = model.n_outputs_
    if not isinstance(output, int | np.integer) or not 0 <= output < n_outputs:
        raise ValueError(bad_value("plot", "output", f"be an integer from 0 to {n_outputs - 1}", repr(output)))
    return output


def _name(model: Any, output: int) -> str:
    return str(model.target_names_[_place(model, output)])


def _targets(model: Any, y: Any, n_rows: int, output: int) -> Any:
    """Return the targets of one output, [rows], or None."""
    if y is None:
        return None
    values, n_outputs = np.asarray(y, dtype=float), model.n_outputs_
    if values.shape[:1] != (n_rows,) or values.size != n_rows * n_outputs:
        rule = f"have {n_rows} rows, as X, and {n_outputs} columns"
        raise ValueError(bad_value("plot", "y", rule, values.shape, "Pass the targets of all outputs."))
    return values.reshape(n_rows, n_outputs)[:, _place(model, output)]


def _axes(ax: Any) -> Any:
    if ax is None:
        pyplot = optional.optional_import(
            "matplotlib.pyplot", package="torchmcl-tables", extra="", needed_by="torchmcl_tables.plots"
        )
        ax = pyplot.subplots()[1]
    return ax


def _with_legend(axis: Any, wanted: bool) -> Any:
    if wanted:
        axis.legend(frameon=False, fontsize=9)
    return axis
