"""The reliability of a model of numbers in one word, with reasons, from records of test rows."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl._pages.numbers import percent
from torchmcl_tables.verdict.base import (
    LEVEL,
    STANDARD_ERRORS,
    Verdict,
    chance_band,
    coverage_at,
    row_reasons,
    suspicious_columns,
)

__all__ = ["forks", "number_verdict"]

_MOSTLY_IGNORANT = 0.3
# A set of this share of the range holds nearly all values.
_EVERYTHING = 0.9
# A target with this many different values or fewer is answered by values: pieces of its sets are no forks.
_FEW_VALUES = 64


def number_verdict(records: dict[str, Any]) -> Verdict:
    """Return the verdict on records of `torchmcl_tables.model.table_records`, optionally with `shares`."""
    reasons = (
        *row_reasons(records),
        *_not_better(records["evaluation"]),
        *_not_covered(records["evaluation"]),
        *_upside_down(records["evaluation"]["calibration"]),
        *_ignorant(records),
        *suspicious_columns(records),
    )
    return Verdict("careful", reasons, "") if reasons else Verdict("good", (), _evidence(records["evaluation"]))


def forks(records: dict[str, Any]) -> str:
    """Return a sentence on forks, which are sets with gaps supported by held-out rows."""
    found = records["evaluation"]
    if _takes_few_values(_columns(found["answers"]["truth"])):
        return "The target takes few values, so that a set is a list of them: its pieces are not forks."
    nine = coverage_at(found)
    if nine is not None and nine["pieces"] > 0:
        return (
            f"Forks: {percent(nine['pieces'], 1)} of the 90 % sets are in pieces. The truth lies in one of them and "
            "not between; held-out rows support the gaps."
        )
    narrow = [entry for entry in found["coverage"] if entry["pieces"] > 0]
    if not narrow:
        return "No forks found: every set is one interval."
    level = max(entry["level"] for entry in narrow)
    share = next(entry["pieces"] for entry in narrow if entry["level"] == level)
    return f"No forks in the 90 % sets; {percent(share, 1)} of the {percent(level)} sets are in pieces."


def _evidence(found: dict[str, Any]) -> str:
    nine = coverage_at(found)
    held = "" if nine is None else " and ".join(percent(share) for share in nine["covered"])
    answers = "the answers are better than the same ones for every row"
    return f"on {found['n_rows']:,} rows {answers}" + (f", and the 90 % sets hold {held} of the truth" if held else "")


def _not_better(found: dict[str, Any]) -> list[str]:
    """Return the targets whose answers are no better than constant ones."""
    answers = found["answers"]
    truth, probabilities = _columns(answers["truth"]), np.asarray(answers["probabilities"], dtype=np.float64)
    values = np.asarray(answers["hypotheses"], dtype=np.float64)  # [rows, answers, targets]
    if len(truth) < 10:
        return []
    n_answers = probabilities.shape[1]
    same = "the mean" if n_answers == 1 else f"the same {n_answers} answers"
    reasons = []
    for place, target in enumerate(found["targets"]):
        ours = _distances(values[..., place], probabilities, truth[:, place])
        gains = _constant_distances(truth[:, place], n_answers) - ours
        if gains.mean() <= STANDARD_ERRORS * gains.std(ddof=1) / math.sqrt(len(gains)):
            reasons.append(f"the answers for {target['name']} are not clearly better than {same} for every row")
    return reasons


def _distances(
    values: NDArray[np.float64], shares: NDArray[np.float64], truth: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the continuous ranked probability score of answers [rows, answers] with shares, [rows]; lower is better.

    Example:
        >>> _distances(np.array([[0.0, 4.0]]), np.array([[0.5, 0.5]]), np.array([0.0]))
        array([1.])
    """
    near = (shares * np.abs(values - truth[:, None])).sum(axis=1)
    apart = np.einsum("ri,rj,rij->r", shares, shares, np.abs(values[:, :, None] - values[:, None]))
    return np.asarray(near - apart / 2)


def _constant_distances(truth: NDArray[np.float64], n_answers: int) -> NDArray[np.float64]:
    """Return the same score of constant answers, with each half of the rows evaluated by the other half."""
    scores = np.empty(len(truth))
    for half in (slice(0, None, 2), slice(1, None, 2)):
        others = np.sort(np.delete(truth, np.arange(len(truth))[half]))
        groups = np.array_split(others, min(n_answers, len(others)))
        values = np.array([group.mean() for group in groups])
        shares = np.array([len(group) / len(others) for group in groups])
        own = truth[half]
        every = (len(own), len(groups))
        scores[half] = _distances(np.broadcast_to(values, every), np.broadcast_to(shares, every), own)
    return scores


def _not_covered(found: dict[str, Any]) -> list[str]:
    truth = _columns(found["answers"]["truth"])
    # One reason for each target: about the sets that people use, else about others.
    entries = sorted(found["coverage"], key=lambda entry: abs(entry["level"] - LEVEL))
    reasons = []
    for place, target in enumerate(found["targets"]):
        few = _takes_few_values(truth[:, [place]])
        told = (_coverage_reason(entry, place, target["name"], truth[:, place], few) for entry in entries)
        reasons += [reason for reason in told if reason][:1]
    return reasons


def _coverage_reason(entry: dict[str, Any], place: int, name: str, truth: NDArray[np.float64], few: bool) -> str:
    """Return the problem of the sets of a level for a target, empty if there is none."""
    share, width, sets = (
        entry["covered"][place],
        entry["width"][place],
        f"the {percent(entry['level'])} sets for {name}",
    )
    low, high = chance_band(entry["level"], entry["n_rows"])
    if width is None:
        infinite = f"{sets} are infinite, as too few rows were left to calibrate them"
        return infinite if entry["level"] <= LEVEL else ""  # no table has enough rows for all levels
    if share < low:
        return f"{sets} hold only {percent(share)} of the truth"
    if few:  # a set of few values holds more than was asked for, as it cannot hold a part of a value
        everything = entry["level"] == LEVEL and len(truth) > 1 and width >= _EVERYTHING * np.ptp(truth)
        return f"{sets} hold nearly all of its values" if everything else ""
    return f"{sets} hold {percent(share)} of the truth: they are wider than needed" if share > high else ""


def _upside_down(found: dict[str, Any]) -> list[str]:
    """Return whether answers of higher probability are clearly less often the nearest."""
    given, won, count = (np.asarray(found[name], dtype=np.float64) for name in ("given", "won", "count"))
    apart = given - np.average(given, weights=count)
    slope, deviation = (count * apart * won).sum(), math.sqrt((count * apart**2 * won * (1 - won)).sum())
    if slope < 0 and abs(slope) > STANDARD_ERRORS * deviation:
        return ["its probabilities are upside down: answers of higher probability are less often the nearest"]
    return []


def _ignorant(records: dict[str, Any]) -> list[str]:
    share = (records.get("shares") or {}).get("background", 0.0)
    if share <= _MOSTLY_IGNORANT:
        return []
    return [f"it knows little: {percent(share)} of its density is the same for every row"]


def _columns(truth: Any) -> NDArray[np.float64]:
    return np.asarray(truth, dtype=np.float64)  # [rows, targets]


def _takes_few_values(truth: NDArray[np.float64]) -> bool:
    """Return whether each column [rows, targets] has few distinct values, with repetitions."""
    return all(len(np.unique(column)) <= min(_FEW_VALUES, len(column) // 4) for column in truth.T)
