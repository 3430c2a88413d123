"""Export of fitted estimators to a single ONNX file: columns, networks, answers and calibrated sets.

`predict` is the output "mean", `predict_hypotheses` "hypotheses" and "probabilities", `predict_interval` "lower" and
"upper", which are NaN where a row has fewer pieces; a classifier has "probabilities", "classes" and "label".
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from torchmcl import __version__
from torchmcl.checks import bad_value
from torchmcl.density import Bandwidth
from torchmcl.postprocess import quantile
from torchmcl_tables.mcl.predictive import Predictive
from torchmcl_tables.mcl.preprocessing import MOST_DEVIATIONS, Encoder, MissingIndicators, PiecewiseLinear, Scaler
from torchmcl_tables.mcl.tables import Targets
from torchmcl_tables.onnx import line
from torchmcl_tables.onnx.graph import Graph, Value
from torchmcl_tables.onnx.line import LineKernels
from torchmcl_tables.onnx.points import best_points


def encoded(g: Graph, rows: Value, encoder: Encoder, dtype: Any, *, bins: bool = True) -> Value:
    """Return rows [rows, columns] as inputs of a network.

    Args:
        g: the graph.
        rows: in double precision, NaN where a value is missing.
        encoder: of the columns.
        dtype: of the network.
        bins: whether to add the bins of columns, and a last column of ones, the factor of biases.
    """
    if isinstance(encoder, MissingIndicators):
        missing = g.Gather(g.IsNaN(rows), encoder.columns, axis=1).to(dtype)
        inner = encoded(g, g.where(g.IsNaN(rows), encoder.means, rows), encoder.encoder, dtype, bins=bins)
        return g.join(missing, inner, axis=1)
    scaler: Scaler = encoder.scaler if isinstance(encoder, PiecewiseLinear) else encoder
    standard = (g.where(g.IsNaN(rows), scaler.mean, rows) - scaler.mean) / scaler.scale
    standard = g.clip(standard, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    if not bins:
        return standard.to(dtype)
    edges = encoder.edges if isinstance(encoder, PiecewiseLinear) else []
    parts, place = [standard.to(dtype)], 0
    for n_edges, together in itertools.groupby(edges, len):  # neighboring columns with equally many bins at once
        own = np.array(list(together))
        columns = slice(place, place + len(own))
        if n_edges > 2:
            mean, scale = (part[columns, None] for part in (scaler.mean, scaler.scale))
            passed = standard.part(columns.start, columns.stop, 1).more(2) - (own[:, :-1] - mean) / scale
            shares = passed.to(dtype) * (scale / np.diff(own, axis=1))  # no digits of differences are lost
            parts.append(g.clip(shares.shaped(0, len(own) * (n_edges - 1)), 0.0, 1.0))
        place = columns.stop
    return g.join(*parts, g.rows(np.ones((1, 1), dtype), rows), axis=1)


def network_outputs(g: Graph, inputs: Value, modules: Sequence[Any]) -> list[Value | None]:
    """Return the outputs of networks of the same shape, side by side; None for absent parts.

    These are values [rows, networks * hypotheses, dim], score logits [rows, networks, hypotheses] and raw scales.
    The last column of the inputs is all ones.
    """
    hidden, head, ones = inputs, modules[0].head, True
    for place, layer in enumerate(modules[0].trunk):
        if isinstance(layer, nn.Linear):
            hidden, ones = _linear(g, hidden, [module.trunk[place] for module in modules], ones=ones), False
        elif isinstance(layer, nn.ReLU):
            hidden = g.Relu(hidden)
    heads = [module.head.linear for module in modules]
    n_values, n_scores, n_all = (int(end) for end in np.cumsum(head.output_sizes))
    shape = 0, len(modules) * head.n_hypotheses, math.prod(head.event)

    def outputs(start: int, stop: int) -> Value:  # [rows, networks, outputs]
        made: Value = g.Transpose(_linear(g, hidden, heads, slice(start, stop), ones=ones), perm=[1, 0, 2])
        return made

    both = outputs(0, n_scores)  # scales are apart: means do not need them
    logits = both.part(n_values, n_scores) if n_scores > n_values else None
    raw = outputs(n_scores, n_all).shaped(*shape) if n_all > n_scores else None
    return [both.part(0, n_values).shaped(*shape), logits, raw]


def _linear(g: Graph, inputs: Value, layers: Sequence[Any], outputs: slice = slice(None), *, ones: bool) -> Value:
    """Return outputs of the layers of all networks, [networks, rows, outputs]; inputs may be common to them.

    With a last input of ones, biases are a part of the product, which takes less time than an addition.
    """
    stacked = (
        [getattr(layer, name)[outputs].detach().cpu().numpy() for layer in layers] for name in ("weight", "bias")
    )
    weight, bias = (np.stack(part).astype(inputs.dtype) for part in stacked)
    weight, bias = weight.transpose(0, 2, 1), bias[:, None]
    if ones:
        return inputs @ np.concatenate([weight, bias], axis=1)
    return inputs @ np.ascontiguousarray(weight) + bias


def normalized_scores(g: Graph, logits: Value) -> Value:
    """Return sigmoid scores, normalized to sum to 1."""
    return g.Softmax(g.Min(logits, np.array(0.0)) - g.Log(g.Exp(-g.Abs(logits)) + 1.0), axis=-1)


def _hypotheses(g: Graph, rows: Value, predictive: Predictive) -> tuple[Value, Value]:
    """Return standardized hypotheses of all networks [rows, kernels, outputs], and probabilities [rows, kernels]."""
    inputs = encoded(g, rows, predictive.encoder, np.float64)
    values, logits, _ = network_outputs(g, inputs, predictive.modules)
    assert values is not None
    assert logits is not None
    modules: Any = predictive.modules
    shares = normalized_scores(g, logits) * (1 / len(modules))
    return values, shares.shaped(0, len(modules) * modules[0].head.n_hypotheses)


def _bandwidth(g: Graph, rule: Bandwidth, values: Value, shares: Value) -> Value:
    """Return the bandwidth of each row, [rows, 1]."""
    weights = shares.more(-1)
    off = values - (weights * values).sum(1, keep=True)
    variance = g.ReduceMean((weights * off * off).sum(1), np.array([-1]), keepdims=1)
    return g.Sqrt(variance * rule.spread**2 + rule.floor**2)


def add_line_sets(g: Graph, kernels: LineKernels, means: Value, level: float, fill: float) -> tuple[Value, Value]:
    """Return the calibrated set of one output in standardized units, [rows, pieces], padded with infinity."""
    if level >= 1:
        rule = "be low enough for a set of less than all of the mass"
        advice = "The calibrating rows were too surprising; export a lower coverage, or calibrate with more rows."
        raise ValueError(bad_value("export", "coverage", rule, f"a level of {level:g}", advice))
    lower, upper = line.highest_density(kernels, math.nextafter(level, 1.0), fill)

    def between(low: Value, high: Value) -> Value:
        return line.mass_below(kernels, high) - line.mass_below(kernels, low)

    return line.reaching(lower, upper, means, between)


def add_sets(g: Graph, kernels: Sequence[LineKernels], means: Value, answers: Any, coverage: float) -> None:
    """Add "lower" and "upper" of all outputs, [rows, pieces] or [rows, outputs, pieces]."""
    calibrator, targets = answers.calibrator, answers.predictive.targets
    found = []
    for place, own in enumerate(kernels):
        level = quantile(calibrator.scores[place], calibrator.counts, 1 - coverage)
        if math.isinf(level):
            whole = g.rows(np.array([[np.inf]]), means)
            found.append((-whole, whole))
            continue
        mean = means.part(place, place + 1, 1)
        ends = add_line_sets(g, own, mean, level, float(calibrator.fill[place]))
        unit = targets.scaler.scale[place], targets.scaler.mean[place], targets.bounds[:, place]
        lower, upper = (g.where(end < 1e300, line.bounded(end, *unit), np.nan) for end in ends)
        found.append((lower, upper))
    add_ends(g, found, targets)


def add_ends(g: Graph, found: Sequence[Any], targets: Targets) -> None:
    """Add the outputs "lower" and "upper", without trailing pieces that are NaN in all rows."""
    for name, ends in zip(("lower", "upper"), zip(*found, strict=True), strict=True):
        joined = g.join(*(end.more(1) for end in _alike(g, ends)), axis=1)  # [rows, outputs, pieces]
        used = (~g.IsNaN(joined)).to(np.int64).sum(-1)
        n_pieces = g.Max(g.ReduceMax(used, keepdims=0), np.array(1)).shaped(1)
        cut = g.Slice(joined, np.array([0]), n_pieces, np.array([2]))
        flat = targets.is_flat
        g.output(name, cut.sum(1) if flat else cut, ["rows", *([] if flat else [targets.n_outputs]), "pieces"])


def _alike(g: Graph, ends: Sequence[Value]) -> list[Value]:
    """Return ends [rows, pieces] of all outputs, padded with NaN to the same number of pieces."""
    sizes = [g.Shape(end, start=1, end=2) for end in ends]
    most = g.Max(*sizes)
    none = np.zeros(3, dtype=np.int64)
    return [
        g.Pad(end, g.join(g.constant(none), most - size, axis=0), np.array(np.nan))
        for end, size in zip(ends, sizes, strict=True)
    ]


def add_mean(g: Graph, means: Value, targets: Targets) -> None:
    """Add the output "mean"."""
    restored = line.bounded(means, targets.scaler.scale, targets.scaler.mean, targets.bounds)
    flat = targets.is_flat
    g.output("mean", restored.shaped(-1) if flat else restored, ["rows"] if flat else ["rows", targets.n_outputs])


def add_answers(g: Graph, values: Value, probabilities: Value, targets: Targets) -> None:
    """Add "hypotheses" and "probabilities" from standardized values [rows, answers, outputs]."""
    restored = line.bounded(values, targets.scaler.scale, targets.scaler.mean, targets.bounds)
    g.output("hypotheses", restored, ["rows", "hypotheses", targets.n_outputs])
    g.output("probabilities", probabilities, ["rows", "hypotheses"])


def check_outputs(owner: str, targets: Targets, outputs: Sequence[str] | None, possible: Sequence[str]) -> None:
    """Check that all requested outputs can be exported if y has several columns.

    Raises:
        ValueError: for other outputs, or none.
    """
    wrong = [name for name in outputs or ["hypotheses"] if name not in possible]
    if targets.n_outputs > 1 and wrong:
        rule = f"be some of {', '.join(possible)} for several networks with {targets.n_outputs} columns of y"
        advice = f"Pass outputs={list(possible)!r}, or fit one model for each column."
        raise ValueError(bad_value(f"{owner}.export", "outputs", rule, repr(outputs), advice))


def _regressor(g: Graph, rows: Value, estimator: Any, coverage: float, outputs: Sequence[str] | None) -> None:
    answers, predictive = estimator._answers, estimator._answers.predictive
    targets = predictive.targets
    values, shares = _hypotheses(g, rows, predictive)
    widths = _bandwidth(g, predictive.bandwidth, values, shares)
    means = (values * shares.more(-1)).sum(1)
    add_mean(g, means, targets)
    n = predictive.n_answers
    if len(predictive.modules) == 1:
        add_answers(g, values, shares, targets)
        wide = [widths + shares * 0.0] * targets.n_outputs
    else:
        check_outputs(type(estimator).__name__, targets, outputs, ["mean"])
        if targets.n_outputs > 1:
            return
        centres = values.shaped(0, -1)
        kernels = LineKernels(centres, shares, widths + shares * 0.0, n * len(predictive.modules))
        points, shares, deviations = best_points(kernels, n)
        low, high = (targets.bounds - targets.scaler.mean) / targets.scaler.scale
        values, wide = g.clip(points, low, high).more(-1), [deviations]
        add_answers(g, values, shares, targets)
    columns = [g.Gather(values, np.array(place), axis=2) for place in range(targets.n_outputs)]
    own = [LineKernels(column, shares, width, n) for column, width in zip(columns, wide, strict=True)]
    add_sets(g, own, means, answers, coverage)


def _classifier(g: Graph, rows: Value, estimator: Any) -> None:
    mixture, classes = estimator._mixture, np.asarray(estimator.classes_)
    inputs = encoded(g, rows, mixture.encoder, np.float64)
    values, logits, _ = network_outputs(g, inputs, mixture.modules)
    assert values is not None
    assert logits is not None
    n, n_classes = mixture.modules[0].head.n_hypotheses, len(classes)
    logs = g.LogSoftmax(values.shaped(0, len(mixture.modules), n, n_classes), axis=-1)
    mixed = g.ReduceLogSumExp(logs + g.LogSoftmax(logits, axis=-1).more(-1), np.array([2]), keepdims=0)
    total = g.Softmax(mixed * (1 / mixture.temperature), axis=-1).sum(1)
    shares = total / total.sum(keep=True)
    named = classes.astype(object) if classes.dtype.kind in "OU" else classes
    n = estimator.n_answers_
    top, places = g.node("TopK", shares, np.array([n]), n_outputs=2, axis=-1, largest=1, sorted=1)
    g.output("label", g.Gather(named, g.ArgMax(shares, axis=-1, keepdims=0), axis=0), ["rows"])
    g.output("probabilities", shares, ["rows", n_classes])
    g.output("hypotheses", g.Gather(named, places, axis=0), ["rows", n])
    g.output("hypothesis_probabilities", top, ["rows", n])


def check_exportable(estimator: Any, path: str | Path, coverage: float) -> Path:
    """Check all arguments of `export`, and return the path of the file.

    Raises:
        ValueError: for a suffix other than ".onnx", or a coverage outside of (0, 1).
    """
    check_is_fitted(estimator)
    owner, path = f"{type(estimator).__name__}.export", Path(path)
    if path.suffix != ".onnx":
        advice = "A file for Python is written by `save`."
        raise ValueError(bad_value(owner, "path", "end with .onnx", repr(str(path)), advice))
    if not 0 < coverage < 1:
        raise ValueError(bad_value(owner, "coverage", "lie in (0, 1)", repr(coverage)))
    return path


def notes(estimator: Any, coverage: float) -> dict[str, str]:
    """Return the metadata of an ONNX file."""
    return {"model": type(estimator).__name__, "coverage": str(coverage), "torchmcl": __version__}


def export(self: Any, path: str | Path, *, coverage: float = 0.9, outputs: Sequence[str] | None = None) -> Path:
    """Write the complete fitted estimator to an ONNX file, which needs only onnxruntime and NumPy.

    The input "X" is [rows, features] in double precision, NaN where a value is missing. Pass a
    few hundred rows at a time if the file has answers and sets of densities, which need up to a megabyte per row. A
    runtime computes all outputs of a file, so write only the ones you need: "mean" alone takes a hundredth of the time.

    Args:
        self: the estimator.
        path: ending with ".onnx".
        coverage: of the sets "lower" and "upper"; classifiers have none.
        outputs: names of the outputs to write; all by default.

    Returns:
        The path.

    Raises:
        ImportError: without the package onnx: the extra `export`.
        ValueError: for a different suffix, a coverage that is out of range or that the calibration rows do not support,
            or outputs that cannot be exported: of an ensemble for several columns of y, only "mean" can.
    """
    path = check_exportable(self, path, coverage)
    g = Graph(type(self).__name__)
    rows = g.some(g.input("X", np.float64, ["rows", self.n_features_in_]), 2)
    if hasattr(self, "_mixture"):
        _classifier(g, rows, self)
    else:
        _regressor(g, rows, self, coverage, outputs)
    g.save(path, notes(self, coverage), outputs)
    return path
