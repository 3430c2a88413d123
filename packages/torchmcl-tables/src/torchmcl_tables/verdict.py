"""Verdicts on the reliability of models of tables, from measures on test rows."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl.app import report

#: Default coverage of prediction sets.
LEVEL = 0.9
#: A gain, or a difference between probabilities and frequencies, is significant above this many standard errors.
STANDARD_ERRORS = 2.0
# Minimum numbers of rows for training and for testing.
_FEW_LEARNED, _FEW_MEASURED = 100, 30
# Significance levels for coverage below the default level, and for coverage below other levels or above any level (sets
# that are too wide are less harmful).
_CHANCE_BELOW, _CHANCE = 0.025, 0.005


class Verdict(NamedTuple):
    """Verdict on a model, with reasons.

    Attributes:
        word: Verdict, "good" or "careful".
        reasons: Descriptions of the problems; empty for "good".
        evidence: Description of the measurements; empty for "careful".
    """

    word: str
    reasons: tuple[str, ...]
    evidence: str

    @property
    def line(self) -> str:
        """Verdict as one line.

        Example:
            >>> Verdict("careful", ("it was trained on only 40 rows", "its test rows are few"), "").line
            'Verdict: careful, because it was trained on only 40 rows; its test rows are few.'
        """
        explanation = f", because {'; '.join(self.reasons)}" if self.reasons else f": {self.evidence}"
        return f"Verdict: {self.word}{explanation}."


def _row_reasons(records: dict[str, Any]) -> list[str]:
    """Return problems with the training and test rows: too few rows, training rows in the test, or a bad split."""
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
        >>> [round(23 * fraction) for fraction in chance_band(0.9, 23)]
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


# If the background has a larger weight, the columns contain little information.
_MOSTLY_BACKGROUND = 0.3
# A set with this fraction of the range contains nearly all values.
_EVERYTHING = 0.9
# If a target has at most this many distinct values, predictions are values, and sets with several pieces are no forks.
_FEW_VALUES = 64
# With fewer rows, no comparison is significant.
_FEWEST = 10


def verdict_on(records: dict[str, Any]) -> Verdict:
    """Return the verdict on records from `torchmcl_tables.model.table_records`."""
    found = records["evaluation"]
    if "classes" in found:
        target = str(records["schema"]["target_columns"][0]["name"])
        problems = [*_not_better_than_frequencies(found, target), *_one_guess(found)]
        problems += [*_miscalibrated(found), *_classes_not_covered(found)]
    else:
        problems = [*_not_better(found), *_not_covered(found)]
        problems += [*_inverted(found["calibration"]), *_uninformative(records)]
    reasons = (*_row_reasons(records), *problems, *_suspicious_columns(records))
    if reasons:
        return Verdict("careful", reasons, "")
    low, high = map(report.percent, chance_band(LEVEL, found["n_rows"]))
    chance = f"where correct {report.percent(LEVEL)} sets contain {low} to {high} of the true values"
    return Verdict("good", (), f"no problem was found on {found['n_rows']:,} test rows, {chance}")


def forks(records: dict[str, Any]) -> str:
    """Describe whether predictions fork, that is, whether prediction sets have several pieces."""
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
    """Return a reason for each target whose predictions are not better than constant predictions."""
    predictions = found["answers"]
    truth, probabilities = _columns(predictions["truth"]), np.asarray(predictions["probabilities"], dtype=np.float64)
    values = np.asarray(predictions["hypotheses"], dtype=np.float64)  # [rows, hypotheses, targets]
    if len(truth) < _FEWEST:
        return []
    n_answers = probabilities.shape[1]
    baseline = "the mean" if n_answers == 1 else f"{n_answers} constant predictions"
    reasons = []
    for place, target in enumerate(found["targets"]):
        scores = _distances(values[..., place], probabilities, truth[:, place])
        gains = _constant_distances(truth[:, place], n_answers) - scores
        if gains.mean() <= STANDARD_ERRORS * gains.std(ddof=1) / math.sqrt(len(gains)):
            reasons.append(f"the predictions for {target['name']} are not clearly better than {baseline}")
    return reasons


def _distances(
    values: NDArray[np.float64], probabilities: NDArray[np.float64], truth: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the continuous ranked probability score of predictions, [rows, hypotheses], with probabilities, [rows].

    Example:
        >>> _distances(np.array([[0.0, 4.0]]), np.array([[0.5, 0.5]]), np.array([0.0]))
        array([1.])
    """
    near = (probabilities * np.abs(values - truth[:, None])).sum(axis=1)
    distances = np.abs(values[:, :, None] - values[:, None])
    apart = np.einsum("ri,rj,rij->r", probabilities, probabilities, distances)
    return np.asarray(near - apart / 2)


def scored_by_other_half(
    rows: NDArray[Any], score: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Compute `score(rows, others)`, [rows], for constant predictions computed from the other half of the rows.

    Example:
        >>> scored_by_other_half(np.array([1.0, 2.0, 3.0, 6.0]), lambda rows, others: rows - others.mean())
        array([-3.,  0., -1.,  4.])
    """
    scores = np.empty(len(rows))
    for half in (slice(0, None, 2), slice(1, None, 2)):
        scores[half] = score(rows[half], np.delete(rows, half, axis=0))
    return scores


def _constant_distances(truth: NDArray[np.float64], n_answers: int) -> NDArray[np.float64]:
    """Compute the score of constant predictions: means of equal groups of the other half of the rows."""

    def score(scored: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
        groups = np.array_split(np.sort(others), min(n_answers, len(others)))
        values = np.array([group.mean() for group in groups])
        fractions = np.array([len(group) / len(others) for group in groups])
        shape = (len(scored), len(groups))
        return _distances(np.broadcast_to(values, shape), np.broadcast_to(fractions, shape), scored)

    return scored_by_other_half(truth, score)


def _not_covered(found: dict[str, Any]) -> list[str]:
    truth = _columns(found["answers"]["truth"])
    # One reason per target, at the default level if possible.
    entries = sorted(found["coverage"], key=lambda entry: abs(entry["level"] - LEVEL))
    reasons = []
    for place, target in enumerate(found["targets"]):
        few = _takes_few_values(truth[:, [place]])
        candidates = (_coverage_reason(entry, place, target["name"], truth[:, place], few) for entry in entries)
        reasons += [reason for reason in candidates if reason][:1]
    return reasons


def _coverage_reason(entry: dict[str, Any], place: int, name: str, truth: NDArray[np.float64], few: bool) -> str:
    """Return the problem with the sets for a target at a level, or an empty string."""
    covered, width, sets = (
        entry["covered"][place],
        entry["width"][place],
        f"the {report.percent(entry['level'])} sets for {name}",
    )
    low, high = chance_band(entry["level"], entry["n_rows"])
    if width is None:
        infinite = f"{sets} are infinite, because too few rows were left for calibration"
        return infinite if entry["level"] <= LEVEL else ""  # no table has enough rows for all levels
    if covered < low:
        return f"{sets} contain the true value in only {report.percent(covered)} of the rows"
    if few:  # such sets cover more than requested, because a value is either in a set or not
        everything = entry["level"] == LEVEL and len(truth) > 1 and width >= _EVERYTHING * np.ptp(truth)
        return f"{sets} contain nearly all of its values" if everything else ""
    wide = f"{sets} contain the true value in {report.percent(covered)} of the rows: they are wider than needed"
    return wide if covered > high else ""


def _inverted(found: dict[str, Any]) -> list[str]:
    """Return a reason if predictions with a higher probability are significantly less often the nearest."""
    predicted, won, count = (np.asarray(found[name], dtype=np.float64) for name in ("given", "won", "count"))
    apart = predicted - np.average(predicted, weights=count)
    slope, deviation = (count * apart * won).sum(), math.sqrt((count * apart**2 * won * (1 - won)).sum())
    if slope < 0 and abs(slope) > STANDARD_ERRORS * deviation:
        return ["its probabilities are misleading: predictions with a higher probability are less often the nearest"]
    return []


def _uninformative(records: dict[str, Any]) -> list[str]:
    weight = (records.get("member_weights") or {}).get("background", 0.0)
    if weight <= _MOSTLY_BACKGROUND:
        return []
    return [
        f"the columns contain little information: {report.percent(weight)} of the density is the same for every row"
    ]


def _columns(truth: Any) -> NDArray[np.float64]:
    return np.asarray(truth, dtype=np.float64)  # [rows, targets]


def _takes_few_values(truth: NDArray[np.float64]) -> bool:
    """Return whether each column [rows, targets] has few distinct values, which are repeated."""
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
    comparison = f"first guesses are right in {right}, their mean probability is {promised}"
    return [f"its probabilities are too {words}: {comparison}"]


def _classes_not_covered(found: dict[str, Any]) -> list[str]:
    """Return a reason if the coverage of the sets of classes at the default level is too low."""
    entry = coverage_at(found)
    if entry is None or entry["covered"] >= chance_band(LEVEL, found["n_rows"])[0]:
        return []
    covered = report.percent(entry["covered"])
    return [f"the {report.percent(LEVEL)} sets contain the true class in only {covered} of the rows"]
