"""The reliability of a model of a table: statistics of its records, independent of the page."""

from typing import Any

from torchmcl_tables.verdict.base import Verdict, chance_band
from torchmcl_tables.verdict.classes import class_verdict
from torchmcl_tables.verdict.numbers import forks, number_verdict

__all__ = ["Verdict", "chance_band", "forks", "verdict_on"]


def verdict_on(records: dict[str, Any]) -> Verdict:
    """Return the verdict on records of `torchmcl_tables.model.verdicts.records_of`."""
    return (class_verdict if "classes" in records["evaluation"] else number_verdict)(records)
