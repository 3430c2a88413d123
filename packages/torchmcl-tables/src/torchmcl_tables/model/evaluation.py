"""Evaluation of a table model, as JSON records for the HTML report."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.density import Mixture
from torchmcl.errors import bad_value
from torchmcl.postprocess import greedy_medoids
from torchmcl_fleet import least_distortions
from torchmcl_tables.data import CategoryColumn, Column, Table
from torchmcl_tables.data.splits import times_of
from torchmcl_tables.model.model import Answering, TableModel

_MOST_PARTS, _ROWS_IN_PART, _FEWEST_PARTS = 24, 8, 3


def over_time(
    model: Answering, table: Table, errors: NDArray[np.float64], measure: str, power: int = 1
) -> dict[str, Any] | None:
    """Compute the error in consecutive parts of equal size, ordered by the date column; None if there is none.

    Args:
        model: Model whose metrics name the date column.
        table: Evaluated rows.
        errors: Error of each row, [rows, targets].
        measure: Description of the errors.
        power: Exponent of the power mean of the errors in each part.
    """
    name = (model.metrics.get("split") or {}).get("dated")
    if not name or name not in table.frame.columns:
        return None
    times = times_of(table, name, model.schema)
    order = np.argsort(times, kind="stable")[: int(np.isfinite(times).sum())]
    n_parts = min(_MOST_PARTS, len(order) // _ROWS_IN_PART)
    if n_parts < _FEWEST_PARTS:
        return None
    parts = np.array_split(order, n_parts)
    return {
        "column": name,
        "dates": name in model.schema.dating_columns,
        "measure": measure,
        "times": [float(times[part].mean()) for part in parts],
        "errors": [((np.abs(errors[part]) ** power).mean(axis=0) ** (1 / power)).tolist() for part in parts],
    }


_N_SHOWN = 400  # number of rows in a scatter plot
#: Number of rows that a report shows as the most ambiguous.
N_AMBIGUOUS = 8
_N_INTERVALS = 2000  # number of rows for the coverage: its standard error at 90 % is then 0.7 points
_N_LIKELIHOODS = 50_000
_N_BINS = 24
_LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_MOST_CELLS = 8
_MOST_HYPOTHESES = 64  # maximum number of hypotheses in the curve of distortion


class _Judged(NamedTuple):
    """Model with evaluated rows.

    Attributes:
        model: Evaluated model.
        table: Evaluated rows.
        places: Index of each row in its file, [rows].
        inputs: Encoded rows, [rows, inputs].
        targets: Targets, [rows, targets].
        values: Hypotheses, [rows, hypotheses, targets].
        probabilities: Probabilities of the hypotheses, [rows, hypotheses].
    """

    model: TableModel
    table: Table
    places: NDArray[np.int64]
    inputs: NDArray[np.float64]
    targets: NDArray[np.float64]
    values: NDArray[np.float64]
    probabilities: NDArray[np.float64]

    @property
    def scale(self) -> NDArray[np.float64]:
        """Standard deviation of each target, by which outputs in different units are made comparable."""
        return np.asarray(self.model.estimator.target_scale_)

    @property
    def costs(self) -> NDArray[np.float64]:
        """Squared distance of each hypothesis from the target in units of `scale`, [rows, hypotheses]."""
        return np.asarray((((self.values - self.targets[:, None]) / self.scale) ** 2).sum(axis=-1))


def evaluated(model: TableModel, table: Table, places: NDArray[np.int64] | None = None) -> dict[str, Any]:
    """Evaluate a model on a table with targets, as records for a report; rows without a target are skipped.

    Args:
        model: Model to evaluate.
        table: Table without training rows.
        places: Index of each row in its file, [rows]; consecutive by default.

    Raises:
        ValueError: If a column is missing, or there is no row with all targets.
    """
    targets = model.schema.target_values(table)
    known = np.flatnonzero(~np.isnan(targets).any(axis=1))
    if len(known) == 0:
        advice = "Check the target columns."
        raise ValueError(bad_value("evaluated", table.name, "have a row with a value for each target", "none", advice))
    rows, targets = table.take(known), targets[known]
    inputs = model.inputs(rows)
    values, probabilities = model.estimator.predict_hypotheses(inputs)
    judged = _Judged(model, rows, known if places is None else places[known], inputs, targets, values, probabilities)
    errors = model.estimator.predict(inputs).reshape(targets.shape) - targets
    winners = judged.costs.argmin(axis=1)
    won = np.arange(probabilities.shape[1]) == winners[:, None]
    shown = _spread(len(known), _N_SHOWN)
    return {
        "source": table.name,
        "n_rows": len(known),
        "n_without_target": len(table) - len(known),
        "targets": [{"name": n} | _distribution(c) for n, c in zip(model.schema.targets, targets.T, strict=True)],
        "measures": _measures(judged, errors),
        "answers": {
            name: _lists(part[shown])
            for name, part in (("truth", targets), ("hypotheses", values), ("probabilities", probabilities))
        },
        "by_number": _by_number(judged),
        "calibration": calibration(probabilities.ravel(), won.ravel(), "won"),
        "coverage": _coverage(judged),
        "over_time": over_time(model, rows, errors, "error of the mean", power=2),
        "ambiguous": _ambiguous(judged),
    }


def _measures(judged: _Judged, off_mean: NDArray[np.float64]) -> dict[str, Any]:
    model, _, _, inputs, targets, values, _ = judged
    costs = judged.costs
    off_nearest = values[np.arange(len(values)), costs.argmin(axis=1)] - targets
    some = slice(0, _N_LIKELIHOODS)
    return {
        "rmse": _lists(np.sqrt((off_mean**2).mean(axis=0))),
        "nearest_rmse": _lists(np.sqrt((off_nearest**2).mean(axis=0))),
        "distortion": float(costs.min(axis=1).mean()),
        "mean_distortion": float(((off_mean / judged.scale) ** 2).sum(axis=1).mean()),
        "constant_rmse": _lists(targets.std(axis=0)),
        "log_likelihood": float(model.estimator.log_prob(inputs[some], targets[some]).mean()),
    }


def summary_of_data(model: Answering, table: Table) -> list[dict[str, Any]]:
    """Summarize the kind and the distribution of each input column."""
    values = model.schema.values(table)
    summaries, place = [], 0
    for column in model.schema.columns:
        n_values = len(column.value_names)
        summaries.append(
            {"name": column.name, "kind": column.kind} | _column_summary(column, values[:, place : place + n_values])
        )
        place += n_values
    return summaries


def _column_summary(column: Column, values: NDArray[np.float64]) -> dict[str, Any]:
    if isinstance(column, CategoryColumn):
        codes = values[:, 0]
        fractions = [float((codes == code).mean()) for code in range(len(column.categories))]
        common = sorted(zip(fractions, column.categories, strict=True), reverse=True)[:_MOST_CELLS]
        return {
            "missing": float((codes == column.missing_code).mean()),
            "n_categories": len(column.categories),
            "is_open": column.is_open,
            "common": [[name, fraction] for fraction, name in common],
        }
    numbers = values[:, -1]  # for a date, the days since 1970
    present = numbers[np.isfinite(numbers)]
    missing = {"missing": float(np.isnan(numbers).mean())}
    return missing | (_distribution(present) if len(present) else {})


def _distribution(values: NDArray[np.float64]) -> dict[str, Any]:
    """Compute moments, quantiles and a histogram, which excludes 0.5 % of the values at each end as outliers."""
    left, low, middle, high, right = map(float, np.quantile(values, (0.005, 0.05, 0.5, 0.95, 0.995)))
    if left == right:
        left, right = left - 0.5, right + 0.5
    counts, edges = np.histogram(values, bins=_N_BINS, range=(left, right))
    moments = {"mean": float(values.mean()), "std": float(values.std())}
    ends = {"min": float(values.min()), "low": low, "median": middle, "high": high, "max": float(values.max())}
    return moments | ends | {"histogram": {"counts": counts.tolist(), "edges": _lists(edges)}}


def _spread(n_rows: int, n_shown: int) -> NDArray[np.int64]:
    """Return the indices of at most `n_shown` evenly spaced rows."""
    return np.unique(np.linspace(0, n_rows - 1, min(n_rows, n_shown)).round().astype(np.int64))


def _by_number(judged: _Judged) -> dict[str, Any]:
    """Compute the distortion of the best n hypotheses for each n, and its expected lower bound."""
    model, costs, values = judged.model, judged.costs, judged.values / judged.scale
    n_hypotheses = min(costs.shape[1], _MOST_HYPOTHESES)
    some = _spread(len(costs), max(4, 4_000_000 // costs.shape[1] ** 2))
    apart = ((values[some][:, :, None] - values[some][:, None]) ** 2).sum(axis=-1)
    weights = torch.from_numpy(judged.probabilities[some])
    # Hypotheses are selected by the predicted probabilities, without the true values.
    order = greedy_medoids(torch.from_numpy(apart), weights, n_hypotheses).numpy()
    kept = np.minimum.accumulate(np.take_along_axis(costs[some], order, axis=1), axis=1)
    numbers = list(range(1, n_hypotheses + 1))
    curve: dict[str, Any] = {"numbers": numbers, "distortion": _lists(kept.mean(axis=0)), "floor": None}
    if len(model.schema.targets) == 1:
        density = model.estimator.predict_distribution(judged.inputs[_spread(len(judged.inputs), 20_000)])
        scale = judged.scale[0]
        standardized = Mixture(density.hypotheses / scale, density.probabilities, density.widths / scale)
        curve["floor"] = least_distortions(standardized, numbers)
    return curve


def calibration(predicted: NDArray[np.float64], hit: NDArray[np.bool_], word: str) -> dict[str, Any]:
    """Compute the calibration in ten bins of the predicted probability; hit frequencies have the key `word`."""
    bins = np.minimum((predicted * 10).astype(int), 9)
    counts, sums, hit_sums = (np.bincount(bins, weights, minlength=10) for weights in (None, predicted, hit))
    filled = counts > 0
    return {
        "given": (sums[filled] / counts[filled]).tolist(),
        word: (hit_sums[filled] / counts[filled]).tolist(),
        "count": counts[filled].tolist(),
        "error": float(np.abs(sums - hit_sums).sum() / counts.sum()),
    }


def _coverage(judged: _Judged) -> list[dict[str, Any]]:
    some = _spread(len(judged.inputs), _N_INTERVALS)
    entries = []
    truth = judged.targets[some, 0] if judged.targets.shape[1] == 1 else judged.targets[some]
    for level in _LEVELS:
        sets = judged.model.estimator.predict_interval(judged.inputs[some], coverage=level)
        inside, width = (part.reshape(len(some), -1) for part in (sets.contains(truth), sets.width))
        entry = {
            "level": level,
            "covered": _lists(inside.mean(axis=0)),
            "width": _lists(np.median(width, axis=0)),
            "pieces": float((sets.n_pieces > 1).mean()),
            "n_rows": len(some),
        }
        entries.append(entry)
    return entries


def _ambiguous(judged: _Judged) -> list[dict[str, Any]]:
    """Return records of the rows whose hypotheses lie furthest apart, in standard deviations of the targets."""
    model, table, places, _, targets, values, probabilities = judged
    weights = probabilities[..., None]
    center = (weights * values).sum(axis=1, keepdims=True)
    apart = np.sqrt((weights * ((values - center) / judged.scale) ** 2).sum(axis=(1, 2)))
    records = []
    for place in np.argsort(-apart, kind="stable")[:N_AMBIGUOUS]:
        order = np.argsort(-probabilities[place], kind="stable")
        records.append(
            described_row(model, table, places, place)
            | {
                "apart": float(apart[place]),
                "truth": _lists(targets[place]),
                "hypotheses": _lists(values[place, order]),
                "probabilities": _lists(probabilities[place, order]),
            }
        )
    return records


def described_row(model: Answering, table: Table, places: NDArray[np.int64], place: int) -> dict[str, Any]:
    """Return the number of a row in its file, counted from 1, and its cells."""
    cells = table.frame.select(list(model.schema.features)).row(int(place), named=True)
    texts = [[name, "" if cell is None else str(cell)] for name, cell in cells.items()]
    return {"row": int(places[place]) + 1, "cells": texts}


def trajectory(model: Answering) -> dict[str, Any]:
    """Return the training curves by epoch."""
    curves = {name: getattr(model.estimator, f"{name}_curve_", None) for name in ("loss", "temperature", "validation")}
    known = {name: None if curve is None else _lists(curve) for name, curve in curves.items()}
    return known | {"kept_epoch": int(model.estimator.best_epoch_)}


def _lists(values: NDArray[Any] | Sequence[float]) -> Any:
    """Convert numbers to lists at full precision, with None for NaN and infinity."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim:
        return [_lists(part) for part in array]
    return float(array) if np.isfinite(array) else None
