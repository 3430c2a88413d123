"""Training of a classifier on a table, and its measures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.sklearn import Cooling, MCLClassifier
from torchmcl_tables.data import Table, TableSchema
from torchmcl_tables.model.class_evaluation import class_trajectory, evaluated_classes
from torchmcl_tables.model.class_model import ClassModel

__all__ = ["CLASS_RULE", "class_summary", "fitted_classifier", "measured_classes", "set_apart_words"]

#: The rule of classes by default. A temperature of 1 is the likelihood of the mixture.
CLASS_RULE = Cooling(5.0, 1.0, share=0.5, linear=True)


def fitted_classifier(
    schema: TableSchema,
    inputs: NDArray[np.float32],
    codes: NDArray[np.float64],
    parameters: dict[str, Any],
    checkpoint: Path | None,
) -> MCLClassifier:
    """Return a classifier of the classes of a schema, given by their indices."""
    labels = np.array(schema.classes)[codes.astype(np.int64)]
    if parameters.get("rule") is None and parameters.get("search") is None:
        parameters = parameters | {"rule": CLASS_RULE}
    classifier = MCLClassifier(**parameters).fit(inputs, labels, checkpoint=checkpoint)
    classifier.progress = False
    return classifier


def measured_classes(
    owner: str, model: ClassModel, test: Table, places: NDArray[np.int64], columns: list[dict[str, Any]]
) -> ClassModel:
    """Return a model with records of the test rows and of the training rows."""
    described = {"columns": columns, "training": class_trajectory(model)}
    if not len(test):
        return replace(model, evaluation=described | {"held_out": None})
    records = evaluated_classes(owner, model, test, places)
    metrics = model.metrics | {"set_apart": records["measures"]}
    return replace(model, metrics=metrics, evaluation=described | {"held_out": records})


def class_summary(model: ClassModel) -> str:
    """Return the lines of `torchmcl fit` about the test rows."""
    measures = model.metrics["set_apart"]
    what = f"{len(model.classifier.classes_)} classes of {model.schema.targets[0]}"
    return (
        f"On {set_apart_words(model.metrics)}, {what}:\n"
        f"  the first guess is right in {measures['accuracy']:.1%} (the most common class: "
        f"{measures['most_common']:.1%}), one of {model.n_answers} in {measures['top_accuracy']:.1%}; "
        f"log-loss {measures['log_loss']:.3g}, calibration off by {100 * measures['calibration_error']:.1f} points"
    )


def set_apart_words(metrics: dict[str, Any]) -> str:
    """Return a description of the test rows.

    Example:
        >>> split = {"by": "time", "column": "day", "since": "2024-01-01"}
        >>> set_apart_words({"rows": {"set_apart": 90}, "split": split})
        '90 rows set apart, the last by day (since 2024-01-01)'
    """
    rows, split = f"{metrics['rows']['set_apart']:,} rows set apart", metrics.get("split") or {}
    if split.get("by") == "time" and "since" in split:
        return f"{rows}, the last by {split['column']} (since {split['since']})"
    return f"{rows}, whole groups of {split['column']}" if split.get("by") == "group" else rows
