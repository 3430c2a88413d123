"""How far to trust a model of a table: statistics of rows that trained nothing, apart from how a page draws them."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchmcl_tables.verdict.base import Verdict, chance_band
from torchmcl_tables.verdict.classes import class_verdict
from torchmcl_tables.verdict.numbers import forks, number_verdict

if TYPE_CHECKING:  # torch is loaded by the commands that need it
    from torchmcl_tables.data import Table

__all__ = ["Verdict", "chance_band", "forks", "records_of", "verdict_on", "with_verdict"]


def verdict_on(records: dict[str, Any]) -> Verdict:
    """Return the verdict on records of `records_of`."""
    return (class_verdict if "classes" in records["evaluation"] else number_verdict)(records)


def records_of(model: Any, data: "Table | None" = None) -> dict[str, Any]:
    """Return the records that a verdict and a report are made from, with the shares of the members of a blend.

    Args:
        model: of `torchmcl fit`.
        data: a table to measure it on; by default the records of the rows that were set apart.
    """
    from torchmcl_tables.model import table_records

    return table_records("table_records", model, data) | {"shares": getattr(model.estimator, "shares_", None)}


def with_verdict(model: Any) -> Any:
    """Return a model with a verdict and, of numbers, whether sets fork and the shares of its members in the metrics."""
    found: dict[str, Any] = {"verdict": None}
    if not model.schema.classes:
        found |= {"shares": getattr(model.estimator, "shares_", None), "forks": None}
    if model.metrics.get("set_apart"):
        records = records_of(model)
        verdict = verdict_on(records)
        found["verdict"] = verdict._asdict() | {"reasons": list(verdict.reasons)}
        found |= {} if model.schema.classes else {"forks": forks(records)}
    return replace(model, metrics=model.metrics | found)
