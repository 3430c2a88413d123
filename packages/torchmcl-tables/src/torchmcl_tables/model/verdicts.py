"""The verdict on a model, from the records of test rows."""

from dataclasses import replace
from typing import Any

from torchmcl_tables.data import Table
from torchmcl_tables.model.class_model import ClassModel
from torchmcl_tables.model.fitting import table_records
from torchmcl_tables.model.model import TableModel
from torchmcl_tables.verdict import forks, verdict_on

__all__ = ["records_of", "with_verdict"]


def records_of(model: TableModel | ClassModel, data: Table | None = None) -> dict[str, Any]:
    """Return the records for a verdict and a report, with the weights of the members of a blend.

    Args:
        model: of `torchmcl fit`.
        data: a table to measure it on; by default the records of the rows that were set apart.

    Raises:
        ValueError: if there are no records of either, or the table cannot be used.
    """
    return table_records("records_of", model, data) | {"shares": getattr(model.estimator, "member_weights_", None)}


def with_verdict(model: TableModel | ClassModel) -> TableModel | ClassModel:
    """Return a model with a verdict and, for numbers, forks and member weights in the metrics."""
    found: dict[str, Any] = {"verdict": None}
    if not model.schema.classes:
        found |= {"shares": getattr(model.estimator, "member_weights_", None), "forks": None}
    if model.metrics.get("set_apart"):
        records = records_of(model)
        verdict = verdict_on(records)
        found["verdict"] = verdict._asdict() | {"reasons": list(verdict.reasons)}
        found |= {} if model.schema.classes else {"forks": forks(records)}
    return replace(model, metrics=model.metrics | found)
