"""The numbers of the study of separation, from its records: means, errors, paired tests."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchmcl.experiments.separation.study_records import RunRecords, StudyRecords
from torchmcl.extending import optional_import

__all__ = [
    "LABELS",
    "METHODS",
    "Difference",
    "Spread",
    "by_genders",
    "difference",
    "over_seeds",
    "seeds_apart",
    "spread_of",
]

METHODS = ("pit", "mcl", "relaxed-wta", "amcl")
LABELS = {"pit": "PIT", "mcl": "MCL", "relaxed-wta": "Relaxed-WTA (0.05)", "amcl": "aMCL"}


class Spread(NamedTuple):
    """A mean over mixtures, how far they spread, and how far the mean may be off for their being few."""

    mean: float
    std: float
    error: float
    n: int


class Difference(NamedTuple):
    """One training minus another over the same mixtures; `p` is that of Wilcoxon's test, None where all are equal."""

    mean: float
    error: float
    median: float
    p: float | None


def spread_of(values: Sequence[float]) -> Spread:
    """Return mean, standard deviation and standard error.

    Example:
        >>> spread_of([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, error=1.0, n=2)
    """
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), std, std / math.sqrt(len(values)), len(values))


def over_seeds(runs: Sequence[RunRecords], measure: str) -> dict[str, float]:
    """Return a measure by mixture, its mean over the runs; only of mixtures that all of them have."""
    values = [run.values(measure) for run in runs]
    common = set(values[0]).intersection(*values[1:])
    return {name: statistics.fmean(found[name] for found in values) for name in values[0] if name in common}


def difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Difference | None:
    """Return ours minus theirs over the mixtures that both have; None if there are fewer than five.

    Example:
        >>> ours, theirs = {str(i): 1.0 + i for i in range(6)}, {str(i): float(i) for i in range(6)}
        >>> difference(ours, theirs)
        Difference(mean=1.0, error=0.0, median=1.0, p=0.03125)
    """
    found = [ours[name] - theirs[name] for name in ours if name in theirs]
    if len(found) < 5:
        return None
    stats = optional_import("scipy.stats", extra="transport", needed_by="the report about separation")
    mean, _, error, _ = spread_of(found)
    p = float(stats.wilcoxon(found).pvalue) if any(found) else None
    return Difference(mean, error, statistics.median(found), p)


def seeds_apart(groups: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float | None:
    """Return the p of Tukey's test of two methods among all, a value being the mean of one training over its mixtures.

    It asks how far trainings of one method lie apart, taking that to be equally far for all methods. None where a
    method has one training only, or all its trainings are equal for every method.

    Example:
        >>> round(seeds_apart({"pit": [1.0, 1.1], "mcl": [1.1, 1.2], "amcl": [2.0, 2.1]}, "amcl", "pit"), 4)
        0.0016
    """
    if min(len(values) for values in groups.values()) < 2 or len(groups) < 2:
        return None
    if all(len(set(values)) == 1 for values in groups.values()):
        return None
    stats = optional_import("scipy.stats", extra="transport", needed_by="the report about separation")
    names = list(groups)
    return float(stats.tukey_hsd(*groups.values()).pvalue[names.index(ours), names.index(theirs)])


def by_genders(study: StudyRecords, runs: Sequence[RunRecords], measure: str) -> dict[str, Spread]:
    """Return the spread of a measure over the mixtures of each set of genders; nothing if they are not known."""
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
