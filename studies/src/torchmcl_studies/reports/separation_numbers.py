"""The numbers of the separation study, from its records: means over seeds, tests, genders."""

import statistics
from collections.abc import Mapping, Sequence

from torchmcl._pages.numbers import Spread, spread_of
from torchmcl_studies.separation_records import RunRecords, StudyRecords

__all__ = [
    "LABELS",
    "METHODS",
    "by_genders",
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
    """Return the p-value of Tukey's test of two methods among all, with one mean per training run.

    The spread over runs of one method is assumed to be equal for all methods. None if a method has one run
    only, or if all training runs are equal for every method.

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
    """Return the spread of a measure over the mixtures of each set of genders; empty if unknown."""
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
