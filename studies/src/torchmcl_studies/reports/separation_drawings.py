"""Figures of the separation study."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torchmcl.app.report import AMCL, INK, MCL, PALETTE, Spread, method_color, new_figure, spread_of
from torchmcl_studies.separation_records import RunRecords, StudyRecords

__all__ = [
    "LABELS",
    "METHODS",
    "by_genders",
    "draw_automatic",
    "draw_hypotheses",
    "draw_learning_curves",
    "draw_transition",
    "over_seeds",
    "seeds_apart",
]

METHODS = ("pit", "mcl", "relaxed-wta", "amcl")
LABELS = {"pit": "PIT", "mcl": "MCL", "relaxed-wta": "Relaxed-WTA (0.05)", "amcl": "aMCL"}


def over_seeds(runs: Sequence[RunRecords], measure: str) -> dict[str, float]:
    """Return a measure by mixture, averaged over the runs, for mixtures common to all of them."""
    values = [run.values(measure) for run in runs]
    common = set(values[0]).intersection(*values[1:])
    return {name: statistics.fmean(scores[name] for scores in values) for name in values[0] if name in common}


def seeds_apart(groups: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float | None:
    """Return the p-value for two methods in Tukey's test of all methods, with one mean per training run.

    The variance over runs is assumed to be equal for all methods. The result is None if a method has only one run, or
    if the runs of every method are equal.

    Example:
        >>> round(seeds_apart({"pit": [1.0, 1.1], "mcl": [1.1, 1.2], "amcl": [2.0, 2.1]}, "amcl", "pit"), 4)
        0.0016
    """
    if min(len(values) for values in groups.values()) < 2 or len(groups) < 2:
        return None
    if all(len(set(values)) == 1 for values in groups.values()):
        return None
    from scipy import stats

    names = list(groups)
    return float(stats.tukey_hsd(*groups.values()).pvalue[names.index(ours), names.index(theirs)])


def by_genders(study: StudyRecords, runs: Sequence[RunRecords], measure: str) -> dict[str, Spread]:
    """Return the spread of a measure over the mixtures of each set of genders; empty if genders are unknown."""
    if not study.genders:
        return {}
    group_of = {
        record["mixture"]: " + ".join(sorted(study.genders.get(speaker, "?") for speaker in record["speakers"]))
        for run in runs
        for record in run.mixtures
    }
    groups: dict[str, list[float]] = {}
    for name, value in over_seeds(runs, measure).items():
        groups.setdefault(group_of[name], []).append(value)
    return {name: spread_of(values) for name, values in sorted(groups.items())}


_DASHES = {"pit": "-", "mcl": "--", "relaxed-wta": ":", "amcl": "-"}


def draw_learning_curves(runs: Sequence[RunRecords]) -> Any:
    """Draw validation SI-SDR during training, with a panel per number of speakers and a line per training run.

    The lines of all seeds but the first are lighter.
    """
    numbers = sorted({run.n_speakers for run in runs})
    figure = new_figure(4.8 * len(numbers), 3.9, layout="tight")
    axes = figure.subplots(1, len(numbers), squeeze=False)
    first = min((run.seed for run in runs), default=0)
    for axis, number in zip(axes[0], numbers, strict=True):
        labelled = set()
        panel_runs = [run for run in runs if run.n_speakers == number]
        for run in sorted(panel_runs, key=lambda run: (METHODS.index(run.rule), run.seed)):
            axis.plot(
                [record["step"] for record in run.epochs],
                [record["val_pit_si_sdr"] for record in run.epochs],
                color=method_color(run.rule),
                ls=_DASHES[run.rule],
                lw=1.6,
                alpha=1 if run.seed == first else 0.4,
                label=None if run.rule in labelled else LABELS[run.rule],
            )
            labelled.add(run.rule)
        axis.set(title=f"{number} speakers", xlabel="training steps", ylabel="validation PIT SI-SDR in dB")
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_hypotheses(runs: Sequence[RunRecords]) -> Any:
    """Draw MCL SI-SDR of the test mixtures by the number of outputs: quartiles, median, and a point for the mean."""
    figure = new_figure(6.4, 4.0)
    axis = figure.subplots()
    numbers = sorted({run.n_outputs for run in runs})
    rules = [rule for rule in METHODS if any(run.rule == rule for run in runs)]
    for place, rule in enumerate(rules):
        rule_runs = sorted((run for run in runs if run.rule == rule), key=lambda run: run.n_outputs)
        shift = 0.36 * (place - (len(rules) - 1) / 2)
        boxes = axis.boxplot(
            [list(run.values("mcl_si_sdr").values()) for run in rule_runs],
            positions=[numbers.index(run.n_outputs) + shift for run in rule_runs],
            widths=0.3,
            whis=(5, 95),
            showfliers=False,
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            medianprops={"color": INK, "lw": 1.4},
            meanprops={"marker": "o", "mfc": "#ffffff", "mec": INK, "ms": 5},
        )
        for box in boxes["boxes"]:
            box.set(facecolor=method_color(rule), alpha=0.55)
        axis.plot([], [], color=method_color(rule), lw=8, alpha=0.55, label=LABELS[rule])
    axis.set_xticks(range(len(numbers)), [str(number) for number in numbers])
    axis.set(xlabel="outputs of the network", ylabel="MCL SI-SDR in dB")
    axis.grid(axis="y", alpha=0.25)
    axis.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_transition(runs: Sequence[RunRecords]) -> Any:
    """Draw the negative validation MCL SI-SDR against the temperature, which falls from right to left."""
    figure = new_figure(6.8, 4.0)
    axis = figure.subplots()
    for run, color in zip(sorted(runs, key=lambda run: run.temperature), PALETTE, strict=False):
        points = [
            (temperature, -record["val_mcl_si_sdr"])
            for temperature, record in zip(run.temperatures, run.epochs, strict=True)
            if temperature > 0  # it cannot be shown on a logarithmic axis
        ]
        label = f"from {run.temperature:g} dB"
        axis.plot(*zip(*points, strict=True), color=color, marker="o", ms=3, lw=1.3, label=label)
    axis.set(xscale="log", xlabel="temperature in dB", ylabel="negative MCL SI-SDR in dB")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=9)
    return figure


def draw_automatic(by_hand: Sequence[RunRecords], automatic: Sequence[RunRecords]) -> Any:
    """Draw temperature and validation SI-SDR during training, for manual and automatic schedules."""
    figure = new_figure(9.6, 3.7, layout="tight")
    left, right = figure.subplots(1, 2)
    for runs, color, label in ((by_hand, AMCL, "by hand"), (automatic, MCL, "automatic")):
        for place, run in enumerate(runs):
            style = {"color": color, "alpha": 1 if place == 0 else 0.4, "lw": 1.6}
            named = label if place == 0 else None
            warm = [(r["step"], t) for r, t in zip(run.epochs, run.temperatures, strict=True) if t > 0]
            if warm:  # zero cannot be shown on a logarithmic axis
                left.plot(*zip(*warm, strict=True), marker="o", ms=3, label=named, **style)
            steps = [record["step"] for record in run.epochs]
            right.plot(steps, [record["val_pit_si_sdr"] for record in run.epochs], label=named, **style)
    left.set(yscale="log", xlabel="training steps", ylabel="temperature in dB, until it is 0", xlim=right.get_xlim())
    right.set(xlabel="training steps", ylabel="validation PIT SI-SDR in dB")
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=9)
    return figure
