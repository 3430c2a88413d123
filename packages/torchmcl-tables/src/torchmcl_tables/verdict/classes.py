"""The reliability of a classifier, from records of test rows."""

import math
from typing import Any

from torchmcl._pages.numbers import number, percent
from torchmcl_tables.verdict.base import (
    LEVEL,
    STANDARD_ERRORS,
    Verdict,
    chance_band,
    coverage_at,
    row_reasons,
    suspicious_columns,
)

__all__ = ["class_verdict"]

_FEWEST = 10


def class_verdict(records: dict[str, Any]) -> Verdict:
    """Return the verdict on records of `torchmcl_tables.model.table_records` about classes."""
    found = records["evaluation"]
    target = str(records["schema"]["target_columns"][0]["name"])
    reasons = (
        *row_reasons(records),
        *_not_better(found, target),
        *_one_guess(found),
        *_miscalibrated(found),
        *_not_covered(found),
        *suspicious_columns(records),
    )
    return Verdict("careful", reasons, "") if reasons else Verdict("good", (), _evidence(found))


def _evidence(found: dict[str, Any]) -> str:
    measures = found["measures"]
    return (
        f"on {found['n_rows']:,} rows the first guess is right in {percent(measures['accuracy'])} "
        f"({percent(measures['most_common'])} by always naming the most common class), and the probabilities are "
        f"better than the frequencies of the classes (log-loss {number(measures['log_loss'])} against "
        f"{number(found['constant']['log_loss'])})"
    )


def _not_better(found: dict[str, Any], target: str) -> list[str]:
    """Return whether constant probabilities are as good."""
    constant = found["constant"]
    if found["n_rows"] < _FEWEST or constant["gain"] > STANDARD_ERRORS * constant["error"]:
        return []
    return [
        f"the probabilities for {target} are not clearly better than the frequencies of the classes (log-loss "
        f"{number(found['measures']['log_loss'])} against {number(constant['log_loss'])})"
    ]


def _one_guess(found: dict[str, Any]) -> list[str]:
    only = found["first"]["only_guess"]
    if only is None or found["n_rows"] < _FEWEST:
        return []
    return [f"its first guess is always {only}, right in {percent(found['measures']['accuracy'])} as without a model"]


def _miscalibrated(found: dict[str, Any]) -> list[str]:
    """Return whether the accuracy of first guesses clearly differs from their probabilities."""
    first = found["first"]
    off = first["right"] - first["promised"]
    if abs(off) <= STANDARD_ERRORS * math.sqrt(first["variance"] / found["n_rows"]) or found["n_rows"] < _FEWEST:
        return []
    words = "low" if off > 0 else "high"
    told = f"first guesses are right in {percent(first['right'])}, and promised {percent(first['promised'])}"
    return [f"its probabilities are too {words}: {told}"]


def _not_covered(found: dict[str, Any]) -> list[str]:
    """Return whether the sets of classes of the usual probability have too low a coverage."""
    entry = coverage_at(found)
    if entry is None or entry["covered"] >= chance_band(LEVEL, found["n_rows"])[0]:
        return []
    return [f"the {percent(LEVEL)} sets hold the class in only {percent(entry['covered'])} of the rows"]
