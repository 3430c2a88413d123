"""Verdicts on models of tables, from measures on test rows."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl.app import report

#: The usual coverage of prediction sets.
LEVEL = 0.9
#: A gain, or a difference between probabilities and frequencies, is significant above this many standard errors.
STANDARD_ERRORS = 2.0
# Fewer rows are too few for training, or for a test.
_FEW_LEARNED, _FEW_MEASURED = 100, 30
# Significance levels: coverage below the usual level, and below other levels or above any level (sets that are
# too wide are less harmful).
_CHANCE_BELOW, _CHANCE = 0.025, 0.005


class Verdict(NamedTuple):
    """The verdict on a model, with its reasons.

    Attributes:
        word: "good" or "careful".
        reasons: the problems, in plain words; none for "good".
        evidence: the measurements in plain words; none for "careful".
    """

    word: str
    reasons: tuple[str, ...]
    evidence: str

    @property
    def line(self) -> str:
        """The verdict as one line.

        Example:
            >>> Verdict("careful", ("it was trained on only 40 rows", "its test rows are few"), "").line
            'Verdict: careful, because it was trained on only 40 rows; its test rows are few.'
        """
        said = f", because {'; '.join(self.reasons)}" if self.reasons else f": {self.evidence}"
        return f"Verdict: {self.word}{said}."


def _row_reasons(records: dict[str, Any]) -> list[str]:
    """Return the problems of the training and test rows: too few, not new, or badly split."""
    learned, measured = records["metrics"]["rows"]["learned_from"], records["evaluation"]["n_rows"]
    reasons = []
    if learned < _FEW_LEARNED:
        reasons.append(f"it was trained on only {learned:,} rows")
    if measured < _FEW_MEASURED:
        reasons.append(f"it was tested on only {measured:,} rows, so all measures are rough")
    if not records["set_apart"] and records["evaluation"]["source"] == records["source"]:
        reasons.append(f"it was tested on {records['source']}, which may contain its training rows")
    split = records["metrics"].get("split") or {}
    if records["set_apart"] and split.get("by") == "random" and split.get("dated"):
        reasons.append(
            f"its rows are dated by {split['dated']}, but the test rows are random: errors on later rows may be larger "
            "(use --split time)"
        )
    return reasons


def coverage_at(found: dict[str, Any], level: float = LEVEL) -> dict[str, Any] | None:
    """Return the coverage of the sets at a level; None if it was not measured."""
    return next((entry for entry in found["coverage"] if entry["level"] == level), None)


def chance_band(level: float, n_rows: int) -> tuple[float, float]:
    """Return the range of measured coverage that is consistent with a true coverage of `level`.

    Example:
        >>> [round(23 * share) for share in chance_band(0.9, 23)]
        [18, 23]
    """
    from scipy.stats import binom

    lowest = binom.ppf(_CHANCE_BELOW if level == LEVEL else _CHANCE, n_rows, level)
    highest = n_rows - binom.ppf(_CHANCE, n_rows, 1 - level)
    return float(lowest / n_rows), float(highest / n_rows)


def _suspicious_columns(records: dict[str, Any]) -> list[str]:
    """Return a reason for each column that may be unsuitable for training."""
    columns = records["schema"].get("suspicious", ())
    return [f"the column {c['name']} may be unsuitable for training: {c['reason']}" for c in columns]


# A larger weight of the background means that the columns contain little information.
_MOSTLY_IGNORANT = 0.3
# A set with this share of the range contains nearly all values.
_EVERYTHING = 0.9
# For a target with at most this many different values, the answers are values, and pieces of its sets are not forks.
_FEW_VALUES = 64
# With fewer rows, no comparison is significant.
_FEWEST = 10


def verdict_on(records: dict[str, Any]) -> Verdict:
    """Return the verdict on records from `torchmcl_tables.model.table_records`."""
    found = records["evaluation"]
    if "classes" in found:
        target = str(records["schema"]["target_columns"][0]["name"])
        own = [*_not_better_than_frequencies(found, target), *_one_guess(found)]
        own += [*_miscalibrated(found), *_classes_not_covered(found)]
    else:
        own = [*_not_better(found), *_not_covered(found), *_upside_down(found["calibration"]), *_ignorant(records)]
    reasons = (*_row_reasons(records), *own, *_suspicious_columns(records))
    if reasons:
        return Verdict("careful", reasons, "")
    return Verdict("good", (), f"no problem was found on {found['n_rows']:,} test rows")


def forks(records: dict[str, Any]) -> str:
    """Return a sentence on whether answers fork, that is, whether sets have several pieces."""
    found = records["evaluation"]
    if _takes_few_values(_columns(found["answers"]["truth"])):
        return "The target has few different values: a set is a list of them, and its pieces are not forks."
    nine = coverage_at(found)
    if nine is not None and nine["pieces"] > 0:
        return (
            f"Forks: {report.percent(nine['pieces'], 1)} of the 90 % sets have several pieces. The true value is in "
            "one of them, not between them."
        )
    return "No forks in the 90 % sets: every one is an interval."


def _not_better(found: dict[str, Any]) -> list[str]:
    """Return a reason for each target whose answers are not better than constant ones."""
    answers = found["answers"]
    truth, probabilities = _columns(answers["truth"]), np.asarray(answers["probabilities"], dtype=np.float64)
    values = np.asarray(answers["hypotheses"], dtype=np.float64)  # [rows, answers, targets]
    if len(truth) < _FEWEST:
        return []
    n_answers = probabilities.shape[1]
    same = "the mean" if n_answers == 1 else f"{n_answers} constant answers"
    reasons = []
    for place, target in enumerate(found["targets"]):
        ours = _distances(values[..., place], probabilities, truth[:, place])
        gains = _constant_distances(truth[:, place], n_answers) - ours
        if gains.mean() <= STANDARD_ERRORS * gains.std(ddof=1) / math.sqrt(len(gains)):
            reasons.append(f"the answers for {target['name']} are not clearly better than {same}")
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


def scored_by_other_half(
    rows: NDArray[Any], score: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return `score(own, others)` [rows], the score of constant answers computed from the other half of the rows.

    Example:
        >>> scored_by_other_half(np.array([1.0, 2.0, 3.0, 6.0]), lambda own, others: own - others.mean())
        array([-3.,  0., -1.,  4.])
    """
    scores = np.empty(len(rows))
    for half in (slice(0, None, 2), slice(1, None, 2)):
        scores[half] = score(rows[half], np.delete(rows, half, axis=0))
    return scores


def _constant_distances(truth: NDArray[np.float64], n_answers: int) -> NDArray[np.float64]:
    """Return the score `_distances` of constant answers: means of equal groups of the other half of the rows."""

    def score(own: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
        groups = np.array_split(np.sort(others), min(n_answers, len(others)))
        values = np.array([group.mean() for group in groups])
        shares = np.array([len(group) / len(others) for group in groups])
        every = (len(own), len(groups))
        return _distances(np.broadcast_to(values, every), np.broadcast_to(shares, every), own)

    return scored_by_other_half(truth, score)


def _not_covered(found: dict[str, Any]) -> list[str]:
    truth = _columns(found["answers"]["truth"])
    # One reason per target, at the usual level if possible.
    entries = sorted(found["coverage"], key=lambda entry: abs(entry["level"] - LEVEL))
    reasons = []
    for place, target in enumerate(found["targets"]):
        few = _takes_few_values(truth[:, [place]])
        told = (_coverage_reason(entry, place, target["name"], truth[:, place], few) for entry in entries)
        reasons += [reason for reason in told if reason][:1]
    return reasons


def _coverage_reason(entry: dict[str, Any], place: int, name: str, truth: NDArray[np.float64], few: bool) -> str:
    """Return the problem with the sets for a target at a level, or an empty string."""
    share, width, sets = (
        entry["covered"][place],
        entry["width"][place],
        f"the {report.percent(entry['level'])} sets for {name}",
    )
    low, high = chance_band(entry["level"], entry["n_rows"])
    if width is None:
        infinite = f"{sets} are infinite, because too few rows were left for calibration"
        return infinite if entry["level"] <= LEVEL else ""  # no table has enough rows for all levels
    if share < low:
        return f"{sets} contain the true value in only {report.percent(share)} of the rows"
    if few:  # such sets cover more than requested, because a value is either in a set or not
        everything = entry["level"] == LEVEL and len(truth) > 1 and width >= _EVERYTHING * np.ptp(truth)
        return f"{sets} contain nearly all of its values" if everything else ""
    wide = f"{sets} contain the true value in {report.percent(share)} of the rows: they are wider than needed"
    return wide if share > high else ""


def _upside_down(found: dict[str, Any]) -> list[str]:
    """Return a reason if answers with a higher probability are significantly less often the nearest."""
    given, won, count = (np.asarray(found[name], dtype=np.float64) for name in ("given", "won", "count"))
    apart = given - np.average(given, weights=count)
    slope, deviation = (count * apart * won).sum(), math.sqrt((count * apart**2 * won * (1 - won)).sum())
    if slope < 0 and abs(slope) > STANDARD_ERRORS * deviation:
        return ["its probabilities are misleading: answers with a higher probability are less often the nearest"]
    return []


def _ignorant(records: dict[str, Any]) -> list[str]:
    share = (records.get("member_weights") or {}).get("background", 0.0)
    if share <= _MOSTLY_IGNORANT:
        return []
    return [f"the columns contain little information: {report.percent(share)} of the density is the same for every row"]


def _columns(truth: Any) -> NDArray[np.float64]:
    return np.asarray(truth, dtype=np.float64)  # [rows, targets]


def _takes_few_values(truth: NDArray[np.float64]) -> bool:
    """Return whether each column [rows, targets] has few different values, which are repeated."""
    return all(len(np.unique(column)) <= min(_FEW_VALUES, len(column) // 4) for column in truth.T)


def _not_better_than_frequencies(found: dict[str, Any], target: str) -> list[str]:
    """Return a reason if the model is not better than the constant class frequencies."""
    constant = found["constant"]
    if found["n_rows"] < _FEWEST or constant["gain"] > STANDARD_ERRORS * constant["error"]:
        return []
    return [
        f"the probabilities for {target} are not clearly better than the frequencies of the classes (log-loss "
        f"{report.number(found['measures']['log_loss'])} against {report.number(constant['log_loss'])})"
    ]


def _one_guess(found: dict[str, Any]) -> list[str]:
    only = found["first"]["only_guess"]
    if only is None or found["n_rows"] < _FEWEST:
        return []
    accuracy = report.percent(found["measures"]["accuracy"])
    return [f"its first guess is always {only}, which is right in {accuracy} of the rows"]


def _miscalibrated(found: dict[str, Any]) -> list[str]:
    """Return a reason if the accuracy of first guesses clearly differs from their probabilities."""
    first = found["first"]
    off = first["right"] - first["promised"]
    if abs(off) <= STANDARD_ERRORS * math.sqrt(first["variance"] / found["n_rows"]) or found["n_rows"] < _FEWEST:
        return []
    words = "low" if off > 0 else "high"
    right, promised = report.percent(first["right"]), report.percent(first["promised"])
    told = f"first guesses are right in {right}, their mean probability is {promised}"
    return [f"its probabilities are too {words}: {told}"]


def _classes_not_covered(found: dict[str, Any]) -> list[str]:
    """Return a reason if the coverage of the sets of classes at the usual level is too low."""
    entry = coverage_at(found)
    if entry is None or entry["covered"] >= chance_band(LEVEL, found["n_rows"])[0]:
        return []
    covered = report.percent(entry["covered"])
    return [f"the {report.percent(LEVEL)} sets contain the true class in only {covered} of the rows"]
