"""Fitting of classification models for tables, and evaluation records for the HTML report."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl import WTA, AutoAnnealing, RelaxedWTA
from torchmcl.errors import bad_value
from torchmcl_tables.data import Table, TableSchema
from torchmcl_tables.estimators import Cooling, MCLClassifier
from torchmcl_tables.model.evaluation import N_AMBIGUOUS, calibration, described_row, over_time
from torchmcl_tables.model.model import ClassModel, likely_sets
from torchmcl_tables.verdict import scored_by_other_half

__all__ = ["CLASS_RULE", "CLASS_RULES", "NAMED_RULES", "class_summary", "evaluated_classes", "fitted_classifier"]

_LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
# Maximum number of classes in a confusion matrix; rarer classes are merged.
_MOST_CLASSES = 20


def evaluated_classes(model: ClassModel, table: Table, places: NDArray[np.int64] | None = None) -> dict[str, Any]:
    """Evaluate a model on a table with classes, as records for a report; rows without a class are skipped.

    Args:
        model: Model to evaluate.
        table: Table without training rows.
        places: Index of each row in its file, [rows]; consecutive by default.

    Raises:
        ValueError: If a column is missing, or there is no row with a class.
    """
    codes = model.schema.target_values(table)[:, 0]
    known = np.flatnonzero(np.isfinite(codes))
    if len(known) == 0:
        advice = "Check the target column."
        raise ValueError(bad_value("evaluated_classes", table.name, "have a row with a class", "none", advice))
    rows = table.take(known)
    probabilities = model.estimator.predict_proba(model.inputs(rows))
    names = model.estimator.classes_.tolist()
    places_of = np.array([names.index(name) if name in names else -1 for name in model.schema.classes])
    truth = places_of[codes[known].astype(np.int64)]
    return {
        "source": table.name,
        "n_rows": len(known),
        "n_without_target": len(table) - len(known),
        "classes": names,
        "frequencies": [float((truth == place).mean()) for place in range(len(names))],
        "measures": measures_of_classes(probabilities, truth, int(model.estimator.n_hypotheses)),
        "constant": _against_constant(probabilities, truth),
        "first": _first_guesses(probabilities, truth, names),
        "over_time": over_time(
            model, rows, 1.0 - (probabilities.argmax(axis=1) == truth)[:, None], "fraction of errors"
        ),
        "top": _top(probabilities, truth),
        "calibration": _calibration(probabilities, truth),
        "coverage": _coverage(probabilities, truth),
        "confusion": _confusion(probabilities, truth, names),
        "ambiguous": _ambiguous(model, rows, known if places is None else places[known], truth, probabilities),
    }


def measures_of_classes(probabilities: NDArray[np.float64], truth: NDArray[np.int64], n_guesses: int) -> dict[str, Any]:
    """Compute accuracy, log-loss and similar measures; predictions for an unseen class, -1, are always wrong."""
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
    """Compute the log-loss of constant class frequencies, and the gain of the model with its standard error.

    The frequencies for each half of the rows are computed from the other half, so that no row predicts itself.
    """
    n_classes = probabilities.shape[1]

    def losses(scored: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.bincount(others[others >= 0], minlength=n_classes) + 1.0 / n_classes
        return _log_losses(np.broadcast_to(counts / counts.sum(), (len(scored), n_classes)), scored)

    constant = scored_by_other_half(truth, losses)
    gains = constant - _log_losses(probabilities, truth)
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return {"log_loss": float(constant.mean()), "gain": float(gains.mean()), "error": float(error)}


def _first_guesses(probabilities: NDArray[np.float64], truth: NDArray[np.int64], names: list[str]) -> dict[str, Any]:
    """Compute the accuracy of first guesses, their mean probability, and the guess if it is constant."""
    guesses, highest = probabilities.argmax(axis=1), probabilities.max(axis=1)
    return {
        "right": float((guesses == truth).mean()),
        "promised": float(highest.mean()),
        "variance": float((highest * (1 - highest)).mean()),
        "only_guess": names[guesses[0]] if (guesses == guesses[0]).all() else None,
    }


def _log_losses(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the log-loss of each row; an unseen class, -1, has probability 0."""
    of_truth = np.where(truth >= 0, probabilities[np.arange(len(truth)), truth], 0.0)
    return -np.log(np.maximum(of_truth, 1e-12))


def _top(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, Any]:
    """Compute the fraction of rows whose class is among the k most probable, and its expected value, for each k."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    covered = (order == truth[:, None]).cumsum(axis=1).mean(axis=0)
    expected = np.take_along_axis(probabilities, order, axis=1).cumsum(axis=1).mean(axis=0)
    n_shown = min(len(covered), 10)
    return {
        "numbers": list(range(1, n_shown + 1)),
        "covered": covered[:n_shown].tolist(),
        "expected": np.minimum(expected[:n_shown], 1.0).tolist(),
    }


def _calibration(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> dict[str, Any]:
    """Compute the accuracy of first guesses by bins of their probability."""
    return calibration(probabilities.max(axis=1), probabilities.argmax(axis=1) == truth, "right")


def _coverage(probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Compute the coverage and mean size of the smallest sets of classes that reach each probability level."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    rank = np.where((order == truth[:, None]).any(axis=1), (order == truth[:, None]).argmax(axis=1), len(ranked[0]))
    entries = []
    for level in _LEVELS:
        sizes = likely_sets(ranked, level)
        entries.append({"level": level, "covered": float((rank < sizes).mean()), "classes": float(sizes.mean())})
    return entries


def _confusion(probabilities: NDArray[np.float64], truth: NDArray[np.int64], names: list[str]) -> dict[str, Any]:
    """Count true classes (rows) by first guess (columns); rare classes are merged."""
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
    """Return records of the rows whose class probabilities have the largest entropy."""
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=1)
    names = model.estimator.classes_
    records = []
    for place in np.argsort(-entropy, kind="stable")[:N_AMBIGUOUS]:
        order = np.argsort(-probabilities[place], kind="stable")[: int(model.estimator.n_hypotheses)]
        records.append(
            described_row(model, table, places, place)
            | {
                "truth": str(names[truth[place]]) if truth[place] >= 0 else "a class without training rows",
                "guesses": names[order].tolist(),
                "probabilities": probabilities[place, order].tolist(),
            }
        )
    return records


#: Default rule for classes. A temperature of 1 corresponds to the likelihood of the mixture.
CLASS_RULE = Cooling(5.0, 1.0, share=0.5, linear=True)


def fitted_classifier(
    schema: TableSchema,
    inputs: NDArray[np.float64],
    codes: NDArray[np.float64],
    parameters: dict[str, Any],
    checkpoint: Path | None,
) -> MCLClassifier:
    """Fit a classifier to class indices of a schema."""
    labels = np.array(schema.classes)[codes.astype(np.int64)]
    if parameters.get("rule") is None and parameters.get("search") is None:
        parameters = parameters | {"rule": CLASS_RULE}
    classifier = MCLClassifier(**parameters).fit(inputs, labels, checkpoint=checkpoint)
    classifier.progress = False
    return classifier


def class_summary(model: ClassModel) -> str:
    """Return the summary of the test rows that `torchmcl fit` prints."""
    measures = model.metrics["set_apart"]
    what = f"{len(model.estimator.classes_)} classes of {model.schema.targets[0]}"
    return (
        f"On {set_apart_words(model.metrics)}, {what}:\n"
        f"  the first guess is right in {measures['accuracy']:.1%} of the rows (most common class: "
        f"{measures['most_common']:.1%}), one of {model.n_answers} guesses in {measures['top_accuracy']:.1%}; "
        f"log-loss {measures['log_loss']:.3g}, calibration error {100 * measures['calibration_error']:.1f} points"
    )


def set_apart_words(metrics: dict[str, Any]) -> str:
    """Describe the test rows.

    Example:
        >>> split = {"by": "time", "column": "day", "since": "2024-01-01"}
        >>> set_apart_words({"rows": {"set_apart": 90}, "split": split})
        '90 test rows, the last by day (since 2024-01-01)'
    """
    rows, split = f"{metrics['rows']['set_apart']:,} test rows", metrics.get("split") or {}
    if split.get("by") == "time" and "since" in split:
        return f"{rows}, the last by {split['column']} (since {split['since']})"
    return f"{rows}, whole groups of {split['column']}" if split.get("by") == "group" else rows


NAMED_RULES: dict[str, Any] = {
    "annealed": Cooling(),  # the temperatures of the paper, in units of the variance of the targets
    "auto": AutoAnnealing(),
    "mcl": WTA(),
    "relaxed": RelaxedWTA(0.1),
}
CLASS_RULES: dict[str, Any] = NAMED_RULES | {"annealed": CLASS_RULE}
