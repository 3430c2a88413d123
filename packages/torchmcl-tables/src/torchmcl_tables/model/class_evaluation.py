"""The quality of a classifier: JSON records for a report."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl._messages import bad_value
from torchmcl_tables.data import Table
from torchmcl_tables.model.class_model import ClassModel, likely_sets
from torchmcl_tables.model.over_time import over_time

__all__ = ["class_trajectory", "evaluated_classes", "measures_of_classes"]

_N_AMBIGUOUS = 8
_N_BINS = 10
_LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
# Classes that a confusion matrix shows; the rarest beyond them are one.
_MOST_CLASSES = 20


def evaluated_classes(
    owner: str, model: ClassModel, table: Table, places: NDArray[np.int64] | None = None
) -> dict[str, Any]:
    """Return the records of a model on a table with classes; rows without one are left out.

    Args:
        owner: who asks.
        model: to be measured.
        table: rows that it has not learned from.
        places: [rows], where each row stands in its file, counted from 0; by default in order.

    Raises:
        ValueError: if the table lacks a column, has other classes, or no row with a class.
    """
    codes = model.schema.target_values(table)[:, 0]
    known = np.flatnonzero(np.isfinite(codes))
    if len(known) == 0:
        raise ValueError(bad_value(owner, table.name, "have a row with a class", "none"))
    rows = table.take(known)
    probabilities = model.classifier.predict_proba(model.inputs(owner, rows))
    names = model.classifier.classes_.tolist()
    places_of = np.array([names.index(name) if name in names else -1 for name in model.schema.classes])
    truth = places_of[codes[known].astype(np.int64)]
    return {
        "source": table.name,
        "n_rows": len(known),
        "n_without_target": len(table) - len(known),
        "classes": names,
        "shares": [float((truth == place).mean()) for place in range(len(names))],
        "measures": measures_of_classes(probabilities, truth, int(model.classifier.n_hypotheses)),
        "constant": _against_constant(probabilities, truth),
        "first": _first_guesses(probabilities, truth, names),
        "over_time": over_time(model, rows, 1.0 - (probabilities.argmax(axis=1) == truth)[:, None], "share of errors"),
        "top": _top(probabilities, truth),
        "calibration": _calibration(probabilities, truth),
        "coverage": _coverage(probabilities, truth),
        "confusion": _confusion(probabilities, truth, names),
        "ambiguous": _ambiguous(model, rows, known if places is None else places[known], truth, probabilities),
    }


def measures_of_classes(probabilities: NDArray[np.float64], truth: NDArray[np.int64], n_guesses: int) -> dict[str, Any]:
    """Return accuracy, log-loss and similar measures; an unseen class, -1, is never right."""
    right = probabilities.argmax(axis=1) == truth
    common = np.bincount(truth[truth >= 0], minlength=probabilities.shape[1]).max() / len(truth)
    return {
        "accuracy": float(right.mean()),
        "log_loss": float(_log_losses(probabilities, truth).mean()),
        "top_accuracy": _top(probabilities, truth)["covered"][min(n_guesses, probabilities.shape[1]) - 1],
        "most_common": float(common),
        "calibration_error": _calibration(probabilities, truth)["error"],
    }


def _against_constant(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, float]:
    """Return the log-loss of the class frequencies, and the gain of the probabilities over it.

    The frequencies for each half of the rows are those of the other half, so no row predicts its own class.
    """
    n_classes = probabilities.shape[1]
    constant = np.empty(len(truth))
    for half in (slice(0, None, 2), slice(1, None, 2)):
        others = np.delete(truth, np.arange(len(truth))[half])
        counts = np.bincount(others[others >= 0], minlength=n_classes) + 1.0 / n_classes
        constant[half] = _log_losses(np.broadcast_to(counts / counts.sum(), (len(truth[half]), n_classes)), truth[half])
    gains = constant - _log_losses(probabilities, truth)
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return {"log_loss": float(constant.mean()), "gain": float(gains.mean()), "error": float(error)}


def _first_guesses(probabilities: NDArray[np.float64], truth: NDArray[np.int64], names: list[str]) -> dict[str, Any]:
    """Return the accuracy of first guesses, their mean probability, and the guess if it is constant."""
    guesses, given = probabilities.argmax(axis=1), probabilities.max(axis=1)
    return {
        "right": float((guesses == truth).mean()),
        "promised": float(given.mean()),
        "variance": float((given * (1 - given)).mean()),
        "only_guess": names[guesses[0]] if (guesses == guesses[0]).all() else None,
    }


def _log_losses(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the log-loss of each row; an unseen class, -1, has probability 0."""
    given = np.where(truth >= 0, probabilities[np.arange(len(truth)), truth], 0.0)
    losses: NDArray[np.float64] = -np.log(np.maximum(given, 1e-12))
    return losses


def _top(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, Any]:
    """Return the share of rows whose class is among the k most probable, and its expected value."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    found = (order == truth[:, None]).cumsum(axis=1).mean(axis=0)
    expected = np.take_along_axis(probabilities, order, axis=1).cumsum(axis=1).mean(axis=0)
    n_shown = min(len(found), 10)
    return {
        "numbers": list(range(1, n_shown + 1)),
        "covered": found[:n_shown].tolist(),
        "expected": np.minimum(expected[:n_shown], 1.0).tolist(),
    }


def _calibration(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, Any]:
    """Return the accuracy by bins of the probability of the first guess."""
    given, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    bins = np.minimum((given * _N_BINS).astype(int), _N_BINS - 1)
    counts, given_sums, right_sums = (np.bincount(bins, each, minlength=_N_BINS) for each in (None, given, right))
    filled = counts > 0
    return {
        "given": (given_sums[filled] / counts[filled]).tolist(),
        "right": (right_sums[filled] / counts[filled]).tolist(),
        "count": counts[filled].tolist(),
        "error": float(np.abs(given_sums - right_sums).sum() / counts.sum()),
    }


def _coverage(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the coverage of the smallest sets of classes with some probability, and their size."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    rank = np.where((order == truth[:, None]).any(axis=1), (order == truth[:, None]).argmax(axis=1), len(ranked[0]))
    made = []
    for level in _LEVELS:
        sizes = likely_sets(ranked, level)
        made.append({"level": level, "covered": float((rank < sizes).mean()), "classes": float(sizes.mean())})
    return made


def _confusion(probabilities: NDArray[np.float64], truth: NDArray[np.int64], names: list[str]) -> dict[str, Any]:
    """Return counts of each class (rows) by the first guess (columns); rare classes are merged."""
    counts = np.bincount(truth[truth >= 0], minlength=len(names))
    shown = np.sort(np.argsort(-counts, kind="stable")[:_MOST_CLASSES])
    place = np.full(len(names) + 1, len(shown))
    place[shown] = np.arange(len(shown))
    matrix = np.zeros((len(shown) + 1, len(shown) + 1), dtype=np.int64)
    np.add.at(matrix, (place[truth], place[probabilities.argmax(axis=1)]), 1)
    others = bool(matrix[-1].any() or matrix[:, -1].any())
    n_shown = len(shown) + others
    return {
        "names": [names[k] for k in shown] + ["others"] * others,
        "counts": matrix[:n_shown, :n_shown].tolist(),
    }


def _ambiguous(
    model: ClassModel,
    table: Table,
    places: NDArray[np.int64],
    truth: NDArray[np.int64],
    probabilities: NDArray[np.float64],
) -> list[dict[str, Any]]:
    """Return the rows whose probabilities have the largest entropy."""
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=1)
    names = model.classifier.classes_
    made = []
    for place in np.argsort(-entropy, kind="stable")[:_N_AMBIGUOUS]:
        order = np.argsort(-probabilities[place], kind="stable")[: int(model.classifier.n_hypotheses)]
        cells = table.frame.select(list(model.schema.features)).row(int(place), named=True)
        made.append(
            {
                "row": int(places[place]) + 1,
                "cells": [[name, "" if cell is None else str(cell)] for name, cell in cells.items()],
                "truth": str(names[truth[place]]) if truth[place] >= 0 else "a class that was never learned",
                "guesses": names[order].tolist(),
                "probabilities": probabilities[place, order].tolist(),
            }
        )
    return made


def class_trajectory(model: ClassModel) -> dict[str, Any]:
    """Return the training history, epoch by epoch."""
    curves = {name: getattr(model.classifier, f"{name}_curve_", None) for name in ("loss", "temperature", "validation")}
    lists = {
        name: None if curve is None else [float(value) if np.isfinite(value) else None for value in curve]
        for name, curve in curves.items()
    }
    return lists | {"kept_epoch": int(model.classifier.best_epoch_)}
