"""Parts of a verdict on any model of a table."""

from typing import Any, NamedTuple

__all__ = ["LEVEL", "STANDARD_ERRORS", "Verdict", "chance_band", "coverage_at", "row_reasons", "suspicious_columns"]

#: The probability of the sets that people use.
LEVEL = 0.9
#: A gain, or a difference of probabilities and frequencies, is real from this many standard errors on.
STANDARD_ERRORS = 2.0
# Below these numbers of rows little can be learned, or measured.
_FEW_LEARNED, _FEW_MEASURED = 100, 30
# Coverage that chance explains this rarely is not what was promised: below the level that people use, below the other
# levels, and above any level, where sets are only wider than needed.
_CHANCE_BELOW, _CHANCE = 0.025, 0.005


class Verdict(NamedTuple):
    """The verdict on a model, with its reasons.

    Attributes:
        word: "good" or "careful".
        reasons: what there is to be careful about, in plain words; none for "good".
        evidence: the measurements in plain words; none for "careful".
    """

    word: str
    reasons: tuple[str, ...]
    evidence: str

    @property
    def line(self) -> str:
        """The verdict as one line.

        Example:
            >>> Verdict("careful", ("it learned from 40 rows only", "the 90 % sets hold 70 %"), "").line
            'Verdict: careful, because it learned from 40 rows only; the 90 % sets hold 70 %.'
        """
        said = f", because {'; '.join(self.reasons)}" if self.reasons else f": {self.evidence}"
        return f"Verdict: {self.word}{said}."


def row_reasons(records: dict[str, Any]) -> list[str]:
    """Return the problems of the training and test rows: too few, not new, or badly split."""
    learned, measured = records["metrics"]["rows"]["learned_from"], records["evaluation"]["n_rows"]
    reasons = []
    if learned < _FEW_LEARNED:
        reasons.append(f"it learned from {learned:,} rows only")
    if measured < _FEW_MEASURED:
        reasons.append(f"it was measured on {measured:,} rows only, so that all measures are rough")
    if not records["set_apart"] and records["evaluation"]["source"] == records["source"]:
        reasons.append(f"it was measured on {records['source']}, which may hold the rows that it learned from")
    split = records["metrics"].get("split") or {}
    if records["set_apart"] and split.get("by") == "random" and split.get("dated"):
        reasons.append(
            f"its rows are dated by {split['dated']} and were set apart at random, which says nothing about later rows "
            "(--split time does)"
        )
    return reasons


def coverage_at(found: dict[str, Any], level: float = LEVEL) -> dict[str, Any] | None:
    """Return the coverage of the sets of a level, None if it was not measured."""
    return next((entry for entry in found["coverage"] if entry["level"] == level), None)


def chance_band(level: float, n_rows: int) -> tuple[float, float]:
    """Return the range of coverage on a number of rows that chance explains, for a true level.

    Example:
        >>> [round(23 * share) for share in chance_band(0.9, 23)]
        [18, 23]
    """
    from scipy.stats import binom

    lowest = binom.ppf(_CHANCE_BELOW if level == LEVEL else _CHANCE, n_rows, level)
    highest = n_rows - binom.ppf(_CHANCE, n_rows, 1 - level)
    return float(lowest / n_rows), float(highest / n_rows)


def suspicious_columns(records: dict[str, Any]) -> list[str]:
    """Return a reason for each column that may be unsuitable for training."""
    columns = records["schema"].get("suspicious", ())
    return [f"the column {c['name']} should perhaps not be learned from: {c['reason']}" for c in columns]
