"""Training on a table, and its evaluation."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from torchmcl import checks
from torchmcl.errors import bad_value, number_text
from torchmcl_tables.data import Table, TableSchema, infer_schema
from torchmcl_tables.data.inference import MIN_ROWS, check_rows
from torchmcl_tables.data.splits import choose_split, times_of
from torchmcl_tables.data.values import moment_text
from torchmcl_tables.estimators import DensityRegressor, MCLClassifier, MCLRegressor
from torchmcl_tables.estimators.rows import units_of
from torchmcl_tables.model.classes import class_summary, evaluated_classes, fitted_classifier, set_apart_words
from torchmcl_tables.model.evaluation import evaluated, summary_of_data, trajectory
from torchmcl_tables.model.model import ClassModel, TableModel
from torchmcl_tables.verdict import forks, verdict_on

_ERRORS = ("rmse", "nearest_rmse")


@dataclass(frozen=True)
class TableFit:
    """The options of training on a table.

    Attributes:
        targets: the columns to predict.
        drop: columns to leave out.
        categorical: columns to treat as categories, for any content.
        numeric: columns to treat as numbers; other cells count as missing.
        date: columns to treat as dates; other cells count as missing.
        keep: columns to use although they would be dropped.
        test_fraction: share of test rows, which are used only for the evaluation.
        seed: for the held-out rows and the estimator.
        task: what to predict, "classes" or "numbers"; by default decided by the cells of the targets.
        split: choice of the test rows, "time", "group" or "random"; by default "time" if a column has dates.
        split_column: the column that orders or groups the rows; by default the column of dates.
        parameters: of `DensityRegressor`; of `MCLRegressor` with a rule or a search; of `MCLClassifier` for classes.
    """

    targets: Sequence[str]
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    date: Sequence[str] = ()
    keep: Sequence[str] = ()
    test_fraction: float = 0.1
    seed: int = 0
    task: str | None = None
    split: str | None = None
    split_column: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


def fit_table(
    table: Table, how: TableFit, *, progress: bool = False, checkpoint: Path | None = None
) -> TableModel | ClassModel:
    """Return a model trained on a table, with its metrics and the records for a report.

    Args:
        table: to learn from.
        how: the columns, and the parameters of the estimator.
        progress: show a bar.
        checkpoint: folder to save the training to on the way; the same call resumes from there after a kill.

    Raises:
        ValueError: if the table or a parameter cannot be used; the message names it and the remedy.
    """
    model = train_table(table, how, progress=progress, checkpoint=checkpoint)
    return measure_table(model, table, how)


def train_table(
    table: Table,
    how: TableFit,
    *,
    schema: TableSchema | None = None,
    progress: bool = False,
    checkpoint: Path | None = None,
) -> TableModel | ClassModel:
    """Return a model trained on a table; `measure_table` adds the records for a report.

    Args:
        table: to learn from.
        how: the columns, and the parameters of the estimator.
        schema: Schema of the table; by default inferred.
        progress: show a bar.
        checkpoint: folder to save the training to on the way; the same call resumes from there after a kill.

    Raises:
        ValueError: if the table or a parameter cannot be used.
    """
    check_rows(table)
    checks.check_interval("train_table", "--test", how.test_fraction, "[0, 1)")
    start = time.perf_counter()
    if schema is None:
        columns = {name: getattr(how, name) for name in ("drop", "categorical", "numeric", "date", "keep")}
        schema = infer_schema(table, how.targets, task=how.task, interpret=True, **columns)
    targets = schema.target_values(table)
    values = schema.values(table)
    known, train, test = _rows(table, schema, values, targets, how)
    values = values[train]
    inputs = schema.encode(values)
    del values  # for a large table, they are as large as the inputs
    parameters = {"random_state": how.seed, "progress": progress, **how.parameters}
    begin = time.perf_counter()
    estimator: DensityRegressor | MCLRegressor | MCLClassifier
    if schema.classes:
        estimator = fitted_classifier(schema, inputs, targets[train, 0], parameters, checkpoint)
        validation = {"validation_log_loss": _finite_or_none(float(estimator.validation_losses_.mean()))}
    else:
        estimator = _fitted_regressor(how, inputs, targets[train], parameters, checkpoint)
        distortion = estimator.validation_distortions_[estimator.best_restart_]
        validation = {"validation_distortion": _finite_or_none(distortion)}
    end = time.perf_counter()
    metrics = {
        "rows": {"learned_from": len(train), "set_apart": len(test), "without_target": len(table) - len(known)},
        "split": _split_facts(table, schema, how, test),
        "inputs": len(schema.input_names),
        "seconds": {"epochs": estimator.seconds_, "training": end - begin, "all": end - start},
        "epochs": estimator.n_epochs_,
        "kept_epoch": estimator.best_epoch_,
        **validation,
    }
    if isinstance(estimator, MCLClassifier):
        return ClassModel(schema, estimator, table.name, metrics)
    return TableModel(schema, estimator, table.name, metrics)


def _fitted_regressor(
    how: TableFit,
    inputs: NDArray[np.float64],
    targets: NDArray[np.float64],
    parameters: dict[str, Any],
    checkpoint: Path | None,
) -> DensityRegressor | MCLRegressor:
    """Return a fitted regressor that stores no rows of the table, which do not belong in a model's folder."""
    by_rule = any(parameters.get(name) is not None for name in ("rule", "search"))
    if not by_rule:
        parameters = {name: value for name, value in parameters.items() if name not in ("rule", "search")}
    y = pl.DataFrame(targets, schema=list(how.targets))
    regressor = (MCLRegressor if by_rule else DensityRegressor)(**parameters)
    regressor.fit(inputs, y.to_series() if len(how.targets) == 1 else y, checkpoint=checkpoint)
    regressor.progress = False
    return regressor.without_rows() if isinstance(regressor, MCLRegressor) else regressor


def _rows(
    table: Table,
    schema: TableSchema,
    values: NDArray[np.float64],
    targets: NDArray[np.float64],
    how: TableFit,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of rows with all targets, of training rows and of test rows.

    Copies of a row stay together: a model trained on one of them is not evaluated on the others.
    """
    known = np.flatnonzero(~np.isnan(targets).any(axis=1))
    if len(known) < MIN_ROWS:
        rule, advice = f"have a target in at least {MIN_ROWS} rows", "Check the target, or add rows."
        raise ValueError(bad_value("train_table", table.name, rule, len(known), advice))
    split = choose_split(table, schema, how.split, how.split_column)
    units = units_of(values[known], targets[known]) if split.by == "random" else None
    return known, *split.rows(table, schema, known, how.test_fraction, how.seed, units)


def _split_facts(table: Table, schema: TableSchema, how: TableFit, test: NDArray[np.int64]) -> dict[str, Any]:
    """Return the split and, for a split by time, the first time of the test rows, as a JSON value."""
    split = choose_split(table, schema, how.split, how.split_column)
    facts: dict[str, Any] = asdict(split)
    if split.by == "time" and len(test):
        first = float(times_of(table, split.column, schema)[test].min())
        facts["since"] = moment_text(first) if split.column in schema.dating_columns else f"{first:g}"
    return facts


def measure_table(model: TableModel | ClassModel, table: Table, how: TableFit) -> TableModel | ClassModel:
    """Return a model from `train_table` with records of the test rows and of the training rows, and a verdict."""
    values, targets = model.schema.values(table), model.schema.target_values(table)
    _, train, test = _rows(table, model.schema, values, targets, how)
    described = {"columns": summary_of_data(model, table.take(train)), "training": trajectory(model)}
    found: dict[str, Any] = {"verdict": None}
    if not model.schema.classes:
        found |= {"member_weights": _member_weights(model), "forks": None}
    if not len(test):
        return replace(model, metrics=model.metrics | found, evaluation=described | {"held_out": None})
    if isinstance(model, ClassModel):
        records = evaluated_classes(model, table.take(test), test)
        chosen = records["measures"]
    else:
        records = evaluated(model, table.take(test), test)
        chosen = {name: records["measures"][name] for name in ("distortion", "rmse", "nearest_rmse", "log_likelihood")}
        chosen["coverage_of_90_percent_sets"] = next(e["covered"] for e in records["coverage"] if e["level"] == 0.9)
    model = replace(model, metrics=model.metrics | {"set_apart": chosen}, evaluation=described | {"held_out": records})
    evidence = table_records(model)
    verdict = verdict_on(evidence)
    found["verdict"] = verdict._asdict() | {"reasons": list(verdict.reasons)}
    found |= {} if model.schema.classes else {"forks": forks(evidence)}
    return replace(model, metrics=model.metrics | found)


def _member_weights(model: TableModel | ClassModel) -> dict[str, float] | None:
    """Return the weights of the members of a blend; None for networks trained with a rule."""
    return model.estimator.member_weights_ if isinstance(model.estimator, DensityRegressor) else None


def table_records(model: TableModel | ClassModel, data: Table | None = None) -> dict[str, Any]:
    """Return the data of a report: the records of the fit, and of another table if given.

    Raises:
        ValueError: if there are no records of either, or the table cannot be used.
    """
    stored = model.evaluation or {}
    if data is None:
        fresh = stored.get("held_out")
    elif isinstance(model, ClassModel):
        fresh = evaluated_classes(model, data)
    else:
        fresh = evaluated(model, data)
    if fresh is None:
        rule, got = "be given for a model without test rows (--test 0)", "none"
        raise ValueError(
            bad_value("table_records", "--data", rule, got, "Name a table without training rows of the model.")
        )
    return {
        "source": model.source,
        "schema": asdict(model.schema),
        "decisions": model.schema.decisions(),
        "warnings": model.schema.warnings(),
        "parameters": {"n_hypotheses": model.n_answers, "rule": str(getattr(model.estimator, "rule", None))},
        "metrics": model.metrics,
        "columns": stored.get("columns", []),
        "training": stored.get("training") or trajectory(model),
        "evaluation": fresh,
        "set_apart": data is None,
        "member_weights": _member_weights(model),
    }


def fit_summary(model: TableModel | ClassModel) -> str:
    """Return the final lines of `torchmcl fit`."""
    rows, measures = model.metrics["rows"], model.metrics.get("set_apart")
    schema = model.schema
    dates = f", {len(schema.dates)} of dates" if schema.dates else ""
    columns = f"{len(schema.numbers)} columns of numbers{dates} and {len(schema.categories)} of categories"
    lines = [
        f"Trained on {rows['learned_from']:,} rows of {model.source}: {columns}; {model.metrics['epochs']} epochs."
    ]
    if rows["without_target"]:
        lines.append(f"Left out: {rows['without_target']:,} rows without a target.")
    if measures is not None and isinstance(model, ClassModel):
        lines.append(class_summary(model))
    elif measures is not None:
        lines.append(f"On {set_apart_words(model.metrics)}:")
        for place, name in enumerate(schema.targets):
            mean, nearest = (
                number_text(error, error, grouped=True) for error in (measures[key][place] for key in _ERRORS)
            )
            lines.append(
                f"  {name}: root mean square error {mean} of the mean, {nearest} of the nearest answer; coverage of "
                f"the 90 % sets {100 * measures['coverage_of_90_percent_sets'][place]:.0f} %"
            )
    return "\n".join(lines)


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
