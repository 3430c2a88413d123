"""Training and evaluation of a model on a table."""

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
from torchmcl_tables.data.kinds import MIN_ROWS, check_rows
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
    """Options of training on a table.

    Attributes:
        targets: Names of the columns to predict.
        drop: Columns to ignore.
        categorical: Columns to treat as categories, whatever they contain.
        numeric: Columns to treat as numbers; other cells count as missing.
        date: Columns to treat as dates; other cells count as missing.
        keep: Columns to use that would otherwise be dropped.
        test_fraction: Fraction of test rows, which are used only for the evaluation.
        seed: Seed of the test rows and of the estimator.
        task: Kind of target, "classes" or "numbers"; by default decided by the cells of the targets.
        split: Choice of the test rows, "time", "group" or "random"; by default "time" if a column has dates.
        split_column: Column of times or groups; by default the date column.
        parameters: Parameters of the estimator: `MCLClassifier` for classes, `MCLRegressor` with a rule or a search,
            otherwise `DensityRegressor`.
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
    """Train a model on a table and evaluate it, with metrics and the records for a report.

    Args:
        table: Training table, including the test rows.
        how: Options of the training.
        progress: Whether to show a progress bar.
        checkpoint: Folder for checkpoints during training; after an interruption, the same call resumes from there.

    Raises:
        ValueError: If the table or a parameter is invalid; the message names the problem and the remedy.
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
    """Train a model on a table; `measure_table` adds the records for a report.

    Args:
        table: Training table, including the test rows.
        how: Options of the training.
        schema: Schema of the table; by default inferred.
        progress: Whether to show a progress bar.
        checkpoint: Folder for checkpoints during training; after an interruption, the same call resumes from there.

    Raises:
        ValueError: If the table or a parameter is invalid.
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
    del values  # save memory: for a large table, the values are as large as the inputs
    parameters = {"random_state": how.seed, "progress": progress, **how.parameters}
    begin = time.perf_counter()
    estimator: DensityRegressor | MCLRegressor | MCLClassifier
    if schema.classes:
        estimator = fitted_classifier(schema, inputs, targets[train, 0], parameters, checkpoint)
        validation = {"validation_log_loss": _finite_or_none(float(estimator.validation_losses_.mean()))}
    else:
        estimator = _fitted_regressor(how, inputs, targets[train], parameters, checkpoint)
        validation = {"validation_loss": _finite_or_none(estimator.validation_losses_[estimator.best_restart_])}
    end = time.perf_counter()
    metrics = {
        "rows": {"learned_from": len(train), "set_apart": len(test), "without_target": len(table) - len(known)},
        "split": _split_record(table, schema, how, test),
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
    """Fit a regressor. Held-out rows for `partial_fit` are removed, because models of tables do not need them."""
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
    """Return the indices of the rows with all targets, of the training rows and of the test rows.

    Copies of a row stay together, so that a model is not evaluated on copies of its training rows.
    """
    known = np.flatnonzero(~np.isnan(targets).any(axis=1))
    if len(known) < MIN_ROWS:
        rule, advice = f"have a target in at least {MIN_ROWS} rows", "Check the target, or add rows."
        raise ValueError(bad_value("train_table", table.name, rule, len(known), advice))
    split = choose_split(table, schema, how.split, how.split_column, how.test_fraction)
    units = units_of(values[known], targets[known]) if split.by == "random" else None
    return known, *split.rows(table, schema, known, how.test_fraction, how.seed, units)


def _split_record(table: Table, schema: TableSchema, how: TableFit, test: NDArray[np.int64]) -> dict[str, Any]:
    """Return the split and, for a split by time, the first time of the test rows, as JSON values."""
    split = choose_split(table, schema, how.split, how.split_column, how.test_fraction)
    record: dict[str, Any] = asdict(split)
    if split.by == "time" and len(test):
        first = float(times_of(table, split.column, schema)[test].min())
        record["since"] = moment_text(first) if split.column in schema.dating_columns else f"{first:g}"
    return record


def measure_table(model: TableModel | ClassModel, table: Table, how: TableFit) -> TableModel | ClassModel:
    """Add records of the training and test rows, and a verdict, to a model from `train_table`."""
    values, targets = model.schema.values(table), model.schema.target_values(table)
    _, train, test = _rows(table, model.schema, values, targets, how)
    described = {"columns": summary_of_data(model, table.take(train)), "training": trajectory(model)}
    results: dict[str, Any] = {"verdict": None}
    if not model.schema.classes:
        results |= {"member_weights": _member_weights(model), "forks": None}
    if not len(test):
        return replace(model, metrics=model.metrics | results, evaluation=described | {"held_out": None})
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
    results["verdict"] = verdict._asdict() | {"reasons": list(verdict.reasons)}
    results |= {} if model.schema.classes else {"forks": forks(evidence)}
    return replace(model, metrics=model.metrics | results)


def _member_weights(model: TableModel | ClassModel) -> dict[str, float] | None:
    """Return the weights of the members of a blend; None for networks trained with a rule."""
    return model.estimator.member_weights_ if isinstance(model.estimator, DensityRegressor) else None


def table_records(model: TableModel | ClassModel, data: Table | None = None) -> dict[str, Any]:
    """Return the records for a report: the saved records of the test rows, or new records of another table.

    Raises:
        ValueError: If there is neither a table nor a saved evaluation, or the table is invalid.
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
            bad_value("table_records", "--data", rule, got, "Name a table that contains no training rows of the model.")
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
    """Return the summary that `torchmcl fit` prints at the end."""
    rows, measures = model.metrics["rows"], model.metrics.get("set_apart")
    schema = model.schema
    dates = f", {len(schema.dates)} date" if schema.dates else ""
    columns = f"{len(schema.numbers)} numeric{dates} and {len(schema.categories)} categorical columns"
    lines = [
        f"Trained on {rows['learned_from']:,} rows of {model.source}: {columns}; {model.metrics['epochs']} epochs."
    ]
    if rows["without_target"]:
        lines.append(f"Skipped: {rows['without_target']:,} rows without a target.")
    if measures is not None and isinstance(model, ClassModel):
        lines.append(class_summary(model))
    elif measures is not None:
        lines.append(f"On {set_apart_words(model.metrics)}:")
        for place, name in enumerate(schema.targets):
            mean, nearest = (
                number_text(error, error, grouped=True) for error in (measures[key][place] for key in _ERRORS)
            )
            lines.append(
                f"  {name}: root mean square error {mean} of the mean, {nearest} of the nearest prediction; coverage "
                f"of the 90 % sets {100 * measures['coverage_of_90_percent_sets'][place]:.0f} %"
            )
    return "\n".join(lines)


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
