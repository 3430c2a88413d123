"""Models of tables: an estimator with a schema that predicts the rows of a file; saving to and loading from folders."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from torchmcl import checks, io
from torchmcl.app.progress import Progress
from torchmcl_fleet import placement
from torchmcl_tables.data import Table, TableSchema, Unfit
from torchmcl_tables.estimators import DensityRegressor, MCLClassifier, MCLRegressor, PredictionIntervals
from torchmcl_tables.estimators.base import CODEC, from_state, to_state
from torchmcl_tables.saved_model import MODEL_FORMAT, MODEL_KIND, check_folder, check_model

# Number of rows that are parsed at once, and of rows passed through the networks at once, which fit in the cache.
_ROWS_AT_ONCE, _ROWS_IN_CACHE = 262_144, 8_192


@dataclass(frozen=True)
class Answering(ABC):
    """Base class of models that predict the rows of a file.

    Attributes:
        schema: Schema of the table.
        estimator: Estimator that computes the predictions.
        source: Name of the training file.
        metrics: Metrics of the fit, as JSON values.
        evaluation: Evaluation records for the report; None without test rows.
    """

    schema: TableSchema
    estimator: Any
    source: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None

    @property
    def n_answers(self) -> int:
        """Number of predictions per row; it is smaller than requested if the target has fewer values or classes."""
        return int(self.estimator.n_answers_)

    @abstractmethod
    def _prediction_columns(self, inputs: NDArray[np.float64], interval: float | None) -> dict[str, Any]:
        """Compute the columns of the predictions for encoded rows."""

    def inputs(self, table: Table) -> NDArray[np.float64]:
        """Encode the rows of a table as inputs of the estimator."""
        return self.schema.encode(self.schema.values(table))

    def predict(
        self,
        table: Table,
        *,
        interval: float | None = None,
        keep: Sequence[str] = (),
        strict: bool = False,
        notify: Callable[[str], None] | None = None,
        progress: bool = False,
    ) -> Any:
        """Predict the rows of a table, as a polars data frame with the most probable predictions first.

        The suffix `_kept` is added to the name of a kept column that is also the name of a column of predictions.

        Args:
            table: Table with the columns of the schema.
            interval: Coverage of the prediction sets; None for no sets.
            keep: Columns of the table that are copied in front of the predictions.
            strict: Whether to reject unseen categories; by default they are encoded as none of the known categories.
            notify: Function that is called with a notice about each decision on the file, and about each column with
                accepted cells that do not fit.
            progress: Whether to show a progress bar.

        Raises:
            ValueError: If columns are missing or contain cells of another kind; the message lists all problems.
        """
        if interval is not None:
            checks.check_interval("predict", "--interval", interval, "(0, 1)", "0.9 is for 90 % sets.")
        kept = [table.series(name, "--keep") for name in keep]
        parts, unfit = [], Unfit()
        self.schema.decide_decimal(table)
        with Progress(len(table), "Predicting", show=progress, unit="row") as bar:
            for low in range(0, len(table), _ROWS_AT_ONCE):
                part = table.take(slice(low, low + _ROWS_AT_ONCE))
                values = self.schema.values(part, strict=strict, unfit=unfit, first_row=low)
                pieces = [values[start : start + _ROWS_IN_CACHE] for start in range(0, len(values), _ROWS_IN_CACHE)]

                def predicted(piece: NDArray[np.float64]) -> Any:
                    columns = pl.DataFrame(self._prediction_columns(self.schema.encode(piece), interval))
                    bar.step(len(piece))  # after each block, because a blend takes seconds per block
                    return columns

                parts += placement.in_threads(predicted, pieces, self._n_threads())
        if notify is not None:
            for notice in filter(None, (*table.notes, table.decide_decimal(())[1], *unfit.notices())):
                notify(notice)
        predictions = pl.concat(parts)
        if notify is not None and interval is not None:
            for notice in self._notices(predictions, interval):
                notify(notice)
        taken = {*predictions.columns, *keep}
        kept = [series.alias(_free(series.name, taken)) if series.name in predictions else series for series in kept]
        return predictions if not kept else pl.DataFrame(kept).hstack(predictions)

    def _notices(self, predictions: Any, interval: float) -> list[str]:
        """Return notices about the prediction sets."""
        return []

    def _n_threads(self) -> int:
        return 1 if torch.device(self.estimator.device).type == "cuda" else torch.get_num_threads()


def word_for_probability(targets: Sequence[str]) -> str:
    """Return the prefix of the probability columns, distinct from all targets."""
    word = "probability"
    while word in targets:
        word = f"answer_{word}"
    return word


def _free(name: str, taken: set[str]) -> str:
    """Return a unique name for a kept column, and reserve it."""
    while name in taken:
        name = f"{name}_kept"
    taken.add(name)
    return name


# Digits relative to the deviation of a target, maximum number of decimals, and decimals of probabilities.
_DIGITS, _MOST_DECIMALS, _PROBABILITY_DIGITS = 6, 300, 8


@dataclass(frozen=True)
class TableModel(Answering):
    """Regressor for the rows of a file.

    The columns of the predictions are, for each target, `<target>_mean` and `<target>_1`, `<target>_2` ..., then
    `probability_1`, `probability_2` ... (`answer_probability_1` ... if a target is named probability). With an
    interval, `<target>_low`, `<target>_high` and `<target>_set` are added; `<target>_set` is the prediction set, which
    is a union of several intervals if the predictions lie far apart.
    """

    estimator: DensityRegressor | MCLRegressor

    def _prediction_columns(self, inputs: NDArray[np.float64], interval: float | None) -> dict[str, Any]:
        values, probabilities = self.estimator.predict_hypotheses(inputs)
        means = self.estimator.predict(inputs).reshape(len(values), -1)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        probabilities = np.take_along_axis(probabilities, order, axis=1)
        probabilities = probabilities.round(_PROBABILITY_DIGITS)
        columns: dict[str, Any] = {}
        sets = None if interval is None else self.estimator.predict_interval(inputs, coverage=interval)
        for place, target in enumerate(self.schema.targets):
            scale = float(self.estimator.target_scale_[place])
            ranked = rounded(np.take_along_axis(values[..., place], order, axis=1), scale)
            columns[f"{target}_mean"] = rounded(means[:, place], scale)
            columns |= {f"{target}_{k + 1}": ranked[:, k] for k in range(ranked.shape[1])}
            if sets is not None:
                lower, upper = (side.reshape(len(values), values.shape[-1], -1)[:, place] for side in sets)
                ends = PredictionIntervals(lower, upper).hull
                columns[f"{target}_low"], columns[f"{target}_high"] = _outwards(*ends, scale)
                columns[f"{target}_set"] = _set_texts(lower, upper, scale)
        word = word_for_probability(self.schema.targets)
        return columns | {f"{word}_{k + 1}": probabilities[:, k] for k in range(probabilities.shape[1])}

    def _notices(self, predictions: Any, interval: float) -> list[str]:
        n_rows = self.estimator.n_calibrating_
        notices = []
        for target in self.schema.targets:
            ends = (predictions.get_column(f"{target}_{end}").is_infinite() for end in ("low", "high"))
            n_infinite = int((next(ends) | next(ends)).sum())
            if n_infinite and interval > n_rows / (n_rows + 1):
                notices.append(
                    f"{target}: {n_infinite:,} of {predictions.height:,} sets are infinite, as {n_rows:,} rows "
                    f"calibrate them: enough for --interval {math.floor(1000 * n_rows / (n_rows + 1)) / 1000:g} at most"
                )
        return notices


def rounded(values: NDArray[Any], scale: float) -> NDArray[np.float64]:
    """Round numbers to six digits relative to the standard deviation of the target; further digits are noise.

    Example:
        >>> rounded(np.array([1.23456789, 100.0]), 1.0), rounded(np.array([1234567.891]), 5000.0)
        (array([  1.23457, 100.     ]), array([1234567.89]))
    """
    return np.asarray(np.round(np.asarray(values, dtype=np.float64), _decimals(scale)))


def _decimals(scale: float) -> int:
    return int(np.clip(_DIGITS - 1 - np.floor(np.log10(scale)), 0, _MOST_DECIMALS))


def _outwards(low: NDArray[Any], high: NDArray[Any], scale: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Round the ends of sets outwards to as many digits as in `rounded`."""
    step = 10.0 ** _decimals(scale)
    # An end that is already rounded is unchanged.
    ends = [
        np.where(rounded(end, scale) == end, end, whole(end * step) / step)
        for end, whole in ((low, np.floor), (high, np.ceil))
    ]
    return ends[0], ends[1]


def _set_texts(lower: NDArray[Any], upper: NDArray[Any], scale: float) -> list[str]:
    """Format sets as text. Ends are rounded outwards, so that no value is excluded by rounding.

    Example:
        >>> _set_texts(np.array([[0.1234567, 2.0]]), np.array([[0.7654321, np.inf]]), 1.0)
        ['[0.12345, 0.76544] or [2, inf]']
    """
    lower, upper = _outwards(lower, upper, scale)
    return [
        " or ".join(f"[{a:.15g}, {b:.15g}]" for a, b in zip(low, high, strict=True) if not np.isnan(a))
        for low, high in zip(lower.tolist(), upper.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class ClassModel(Answering):
    """Classifier for the rows of a file.

    The columns of the predictions are `<target>_1`, `<target>_2` ..., the most probable classes, then `probability_1`,
    `probability_2` ... With an interval, `<target>_set` is added, the smallest set of classes with that probability.
    """

    estimator: MCLClassifier

    def _prediction_columns(self, inputs: NDArray[np.float64], interval: float | None) -> dict[str, Any]:
        probabilities = self.estimator.predict_proba(inputs)
        n_guesses = self.n_answers
        order = np.argsort(-probabilities, axis=1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, axis=1)
        names = self.estimator.classes_[order]
        target = self.schema.targets[0]
        columns: dict[str, Any] = {f"{target}_{k + 1}": names[:, k].tolist() for k in range(n_guesses)}
        if interval is not None:
            counts = likely_sets(ranked, interval)
            columns[f"{target}_set"] = [" or ".join(row[:n]) for row, n in zip(names.tolist(), counts, strict=True)]
        word = word_for_probability(self.schema.targets)
        return columns | {f"{word}_{k + 1}": ranked[:, k].round(8) for k in range(n_guesses)}


def likely_sets(ranked: NDArray[np.float64], level: float) -> NDArray[np.int64]:
    """Return the number of the most probable classes that are needed to reach a probability, [rows].

    Example:
        >>> likely_sets(np.array([[0.6, 0.3, 0.1], [0.95, 0.03, 0.02]]), 0.9)
        array([2, 1])
    """
    enough = ranked.cumsum(axis=1) < level - 1e-9
    return np.minimum(enough.sum(axis=1) + 1, ranked.shape[1])


_METRICS, _EVALUATION = "metrics.json", "evaluation.json"
_WITHOUT = "the model works without it: remove it, and report with --data"
_KINDS = (DensityRegressor, MCLRegressor, MCLClassifier)


def save_table_model(model: TableModel | ClassModel, folder: Path, *, private: bool = False) -> None:
    """Write a model to `model.safetensors`, `metrics.json` and `evaluation.json` in a folder.

    Args:
        model: Model to write.
        folder: Folder that is new or empty, or contains a model.
        private: Whether to exclude rows of the table: `evaluation.json` is omitted, and the leaves of the forest are
            averaged.

    Raises:
        ValueError: If the folder contains other files.
        OSError: If the folder cannot be written.
    """
    check_folder(folder)
    estimator, weights = to_state(model.estimator.without_rows() if private else model.estimator)
    model = replace(model, evaluation=None) if private else model
    evaluation, metrics = _json(model.evaluation), _json(model.metrics)
    content = {
        "format": MODEL_FORMAT,
        "source": model.source,
        "schema": model.schema,
        "metrics": model.metrics,
        "evaluation": io.digest(json.loads(evaluation)),
    }
    state, tensors = CODEC.encode(content)
    io.write_checkpoint(
        folder / io.MODEL_FILE, MODEL_KIND, state=state | {_word(model): estimator}, tensors=weights | tensors
    )
    if model.evaluation is None:
        (folder / _EVALUATION).unlink(missing_ok=True)
    else:
        io.write_atomically(folder / _EVALUATION, evaluation)
    io.write_atomically(folder / _METRICS, metrics)


def load_table_model(folder: Path, *, records: bool = True) -> TableModel | ClassModel:
    """Load the model in a folder.

    Args:
        folder: Folder that was written by `torchmcl fit`.
        records: Whether to read the records for a report too; predictions do not need them.

    Raises:
        ValueError: If the folder contains no model, or the model is damaged or has another version.
    """
    check_model(folder)
    _, state, tensors, _ = io.saved_contents(
        "load_table_model", folder, MODEL_KIND, "`torchmcl fit`", io.read_checkpoint
    )
    kept = records and (folder / _EVALUATION).is_file()
    evaluation = _read_evaluation(folder) if kept else None
    with io.as_written("load_table_model", "folder", "`torchmcl fit`"):
        estimator = from_state(state.pop("classifier" if "classifier" in state else "regressor"), tensors, _KINDS)
        content = CODEC.decode(state, tensors)
        schema, metrics = content["schema"], content["metrics"]
        if not isinstance(schema, TableSchema) or not isinstance(metrics, dict):
            raise TypeError("the schema or the metrics are missing")
        if evaluation is not None and io.digest(evaluation) != content["evaluation"]:
            raise ValueError(f"{_EVALUATION} has changed since it was written; {_WITHOUT}")
        if isinstance(estimator, MCLClassifier) != bool(schema.classes):
            raise TypeError("the estimator does not match the targets")
        kind = ClassModel if schema.classes else TableModel
        return kind(schema, estimator, content["source"], metrics, evaluation)


def _read_evaluation(folder: Path) -> Any:
    try:
        return io.read_json("load_table_model", folder / _EVALUATION)
    except ValueError as error:
        raise ValueError(f"{error} It is damaged; {_WITHOUT}.") from error


def _word(model: TableModel | ClassModel) -> str:
    return "classifier" if isinstance(model, ClassModel) else "regressor"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
