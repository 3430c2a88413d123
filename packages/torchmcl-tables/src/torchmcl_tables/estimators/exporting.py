"""DensityRegressor as one ONNX file: columns of any kind, networks, forest, blend, answers and calibrated sets."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.postprocess import quantile
from torchmcl_tables.data.columns import BOOLEANS, CategoryColumn, Column, DateColumn, NumberColumn
from torchmcl_tables.data.values import MISSING
from torchmcl_tables.estimators.blend import Blend
from torchmcl_tables.estimators.exported_forest import at_leaves
from torchmcl_tables.estimators.frames import FrameColumns
from torchmcl_tables.estimators.kernels import MOSTLY_BACKGROUND, Kernels, background
from torchmcl_tables.mcl import exporting
from torchmcl_tables.mcl.exporting import add_answers, add_mean, add_sets, encoded, network_outputs
from torchmcl_tables.onnx import line
from torchmcl_tables.onnx.graph import Graph, Value
from torchmcl_tables.onnx.line import LineKernels, normal_cdf
from torchmcl_tables.onnx.points import best_points, runs

# The level is the score of one of the rows, which must not fall outside its own set by rounding.
_ROUNDING = 1e-9


class Members(NamedTuple):
    """Kernels: values and widths [rows, kernels, outputs], probabilities [rows, kernels], and their number."""

    values: Value
    shares: Value
    widths: Value
    n: int


# ---------------------------------------------------------------------- columns


def frame_inputs(g: Graph, frame: FrameColumns) -> Value:
    """Return the columns of a frame as numbers [rows, columns] in double precision, from one graph input per column."""
    encoder = frame.encoder
    parts, place = [], 0
    for column in frame.schema.columns:
        n_values = len(column.value_names)
        unit = encoder.mean[place : place + n_values], encoder.scale[place : place + n_values]
        parts.append(_column(g, column, *unit))
        place += n_values
    return g.join(*parts, axis=1).to(np.float64)


def _column(g: Graph, column: Column, mean: NDArray[np.float64], scale: NDArray[np.float64]) -> Value:
    """Return the network inputs computed from a column, [rows, inputs], in single precision."""
    if isinstance(column, CategoryColumn):
        codes = _codes(g, column)
        every = np.arange(len(column.input_names), dtype=np.int64)
        return g.Equal(codes.more(1), every).to(np.float32)
    given = g.some(g.input(column.name, np.float64, ["rows"]), 1).more(1)
    for code in column.codes if isinstance(column, NumberColumn) else ():
        given = g.where(g.Equal(given, np.array(code)), np.nan, given)
    missing = g.IsNaN(given)
    values = _date_parts(g, given, column.parts) if isinstance(column, DateColumn) else given
    standard = g.where(missing, 0.0, (values - mean) / scale).to(np.float32)
    return g.join(standard, missing.to(np.float32), axis=1) if column.missing else standard


def _codes(g: Graph, column: CategoryColumn) -> Value:
    """Return the code of each text; an empty one is missing."""
    places = {category: place for place, category in enumerate(column.categories)}
    ways = {way: places[text] for text, ways in BOOLEANS.items() if text in places for way in ways}
    known = dict.fromkeys(["", *MISSING], column.missing_code) | ways | places
    texts, numbers = list(known), list(known.values())
    default = {"default_int64": column.other_code, "keys_strings": texts, "values_int64s": numbers}
    codes: Value = g.LabelEncoder(g.input(column.name, object, ["rows"]), domain="ai.onnx.ml", **default)
    codes.dtype = np.dtype(np.int64)
    return g.some(codes, 1)


def _date_parts(g: Graph, days: Value, parts: tuple[str, ...]) -> Value:
    """Return the parts of dates [rows, parts] from days since 1970 [rows, 1], in the Gregorian calendar.

    Years begin in March here, so that a leap day is the last day; 400 years have 146 097 days.
    """

    def whole(value: Value, by: float) -> Value:
        return g.Floor((value + 0.5) / by)  # integers, to avoid rounding

    day = g.Floor(days)
    since = day + 719_468.0
    era = whole(since, 146_097)
    of_era = since - era * 146_097.0
    year = whole(of_era - whole(of_era, 1460) + whole(of_era, 36_524) - whole(of_era, 146_096), 365)
    of_year = of_era - (year * 365.0 + whole(year, 4) - whole(year, 100))
    month = whole(of_year * 5.0 + 2.0, 153)
    later = month >= 10.0  # January and February
    found = {
        "year": year + era * 400.0 + later.to(np.float64),
        "month": g.where(later, month - 9.0, month + 3.0),
        "weekday": day + 3.0 - whole(day + 3.0, 7) * 7.0 + 1.0,
        "hour": g.Floor((days - day) * 24.0 + 1e-9),
        "days": days,
    }
    return g.join(*(found[part] for part in parts), axis=1)


# ---------------------------------------------------------------------- members


def _members(g: Graph, rows: Value, blend: Blend, dtype: Any, *, widths: bool) -> list[Members]:
    """Return the kernels of each member of a blend except the background; those of the forest may lack widths."""
    stretches = np.ones(len(blend.encoders)) if blend.stretches is None else blend.stretches
    members = []
    for encoder, networks, stretch in zip(blend.encoders, blend.networks, stretches, strict=True):
        given: list[Any] = network_outputs(g, encoded(g, rows, encoder, np.float32), networks)
        values, logits, raw = (each.to(dtype) for each in given)
        n = len(networks) * networks[0].head.n_hypotheses
        shares = (g.Softmax(logits, axis=-1) * (1 / len(networks))).shaped(0, n)
        positive = g.Max(raw, np.array(0.0, dtype)) + g.Log(g.Exp(-g.Abs(raw)) + 1.0)  # Softplus would overflow
        scales = (positive + networks[0].head.min_scale) * float(stretch)
        members.append(Members(values, shares, scales, n))
    if blend.forest is not None:
        dense = encoded(g, rows, blend.encoders[0], np.float32, bins=False)
        members.append(_forest(g, dense, blend, dtype, widths=widths))
    return members


def _forest(g: Graph, inputs: Value, blend: Blend, dtype: Any, *, widths: bool) -> Members:
    """Return a kernel for each tree. Leaves hold values and widths: indices of leaves would have to be looked up."""
    forest = blend.forest
    assert forest is not None
    n_trees, n_outputs = forest.n_trees, forest.values.shape[1]
    spreads = np.hypot(blend.floor, blend.factor * forest.spreads)[:, None]
    held = np.concatenate([forest.values, spreads], axis=1) if widths else forest.values
    parts = at_leaves(g, inputs, forest, held).to(dtype).shaped(0, n_trees, held.shape[1])
    values, shares = parts.part(0, n_outputs), g.rows(np.full((1, n_trees), 1 / n_trees, dtype), parts)
    return Members(values, shares, parts.part(n_outputs, n_outputs + 1) + values * 0.0 if widths else values, n_trees)


def _background(g: Graph, like: Value, n_outputs: int, dtype: Any) -> Members:
    zeros = torch.zeros(1, 1, n_outputs, dtype=torch.float64)
    fixed = background(Kernels(zeros, zeros[..., 0], zeros))
    values, shares, widths = (g.rows(part.contiguous().numpy().astype(dtype), like) for part in fixed)
    return Members(values, shares, widths, fixed.values.shape[1])


def _mixed(g: Graph, members: list[Members], weights: NDArray[np.float64]) -> Members:
    shares = [member.shares * float(weight) for member, weight in zip(members, weights, strict=True)]
    values, widths = ([getattr(member, name) for member in members] for name in ("values", "widths"))
    n = sum(member.n for member in members)
    return Members(g.join(*values, axis=1), g.join(*shares, axis=1), g.join(*widths, axis=1), n)


def _informed(g: Graph, blend: Blend, members: list[Members]) -> Members:
    """Return the kernels of all members, without the background unless it has nearly all of the weight."""
    n_known = len(blend.weights) - (blend.weights[-1] < MOSTLY_BACKGROUND)
    own = blend.weights[:n_known]
    return _mixed(g, members[:n_known], own / own.sum())


def _trimmed(g: Graph, k: Members, share: float) -> Members:
    """Return the kernels of one output in increasing order, without a share of the probability at each end."""
    values, order = g.sorted(k.values.shaped(0, k.n), k.n)
    own, widths = (g.GatherElements(part.shaped(0, k.n), order, axis=1) for part in (k.shares, k.widths))
    above = g.CumSum(own, np.array(1))
    total = above.part(k.n - 1, k.n)
    kept = g.Max(g.Min(above, total * (1 - share)) - g.Max(above - own, total * share), np.array(0.0))
    return Members(values.more(2), kept * (1.0 / (total * (1 - 2 * share))), widths.more(2), k.n)


def _means(k: Members) -> Value:
    return (k.values * k.shares.more(2)).sum(1)


def _means_alone(g: Graph, blend: Blend, k: Members) -> Value:
    """Return the means [rows, outputs] where no other output needs the trimmed kernels."""
    n_outer = _n_outer(blend, k)
    if blend.trim and 4 * n_outer < k.n:
        return _trimmed_means(g, k, blend.trim, n_outer)
    return _means(_trimmed(g, k, blend.trim) if blend.trim else k)


def _trimmed_means(g: Graph, k: Members, share: float, n_outer: int) -> Value:
    """Return the means of `_trimmed` kernels, [rows, 1], by sorting only the outermost `n_outer` at each end."""
    values = k.values.shaped(0, k.n)
    ends = [_outer_sum(g, values, k, share, n_outer, largest) for largest in (0, 1)]
    return ((values * k.shares).sum(keep=True) - ends[0] - ends[1]) * (1 / (1 - 2 * share))


def _outer_sum(g: Graph, values: Value, k: Members, share: float, n_outer: int, largest: int) -> Value:
    """Return the integral over a share of the probability at one end, [rows, 1]; all are sorted if any row needs it."""

    def found(n: int) -> tuple[Value, Value]:
        outer, order = g.node("TopK", values, np.array([n]), n_outputs=2, axis=-1, largest=largest, sorted=1)
        own = g.GatherElements(k.shares, order, axis=1)
        upto = g.CumSum(own, np.array(1))
        taken = g.Max(g.Min(own, share - (upto - own)), np.array(0, own.dtype))
        return (outer * taken).sum(keep=True), upto.part(n - 1, n)

    total, reached = found(n_outer)
    n_short = g.ReduceSum((reached < share).to(np.int64), keepdims=0)
    return g.choose(n_short < 1, total, lambda: found(k.n)[0])


def _n_outer(blend: Blend, k: Members) -> int:
    """Return how many kernels usually hold the trimmed share at one end: trees are equal, most others are heavier."""
    n_trees = 0 if blend.forest is None else blend.forest.n_trees
    n_trimmed = min(n_trees, math.ceil(blend.trim * n_trees / max(blend.weights[len(blend.encoders)], 1e-9)))
    return n_trimmed + (k.n - n_trees) // 12 + 1


# ---------------------------------------------------------------------- few values


def _masses(g: Graph, k: Members, atoms: NDArray[np.float64]) -> Value:
    """Return the mass nearest to each atom, [rows, atoms]."""
    borders = (atoms[1:] + atoms[:-1]) / 2
    below = normal_cdf(g, (k.values * -1.0 + borders) / k.widths)  # [rows, kernels, borders]
    upto = (below * k.shares.more(2)).sum(1)
    none = upto.part(0, 1) * 0.0
    masses = g.Max(g.join(upto, none + 1.0, axis=1) - g.join(none, upto, axis=1), np.array(0.0))
    return masses / masses.sum(keep=True)


def _best_atoms(g: Graph, masses: Value, atoms: NDArray[np.float64], n_points: int) -> tuple[Value, Value]:
    """Return the most representative atoms and the mass nearest to each, as `atoms.best_atoms` does."""
    n = len(atoms)
    if n_points >= n:
        return g.rows(atoms[None], masses), masses
    parts = masses, masses * atoms, masses * atoms**2
    upto = [g.CumSum(part, np.array(1)) for part in parts]
    before = [total - own for total, own in zip(upto, parts, strict=True)]
    mass, first, second = (one.more(1) - other.more(2) for one, other in zip(upto, before, strict=True))
    every = np.arange(n)
    place = _searched(g, first / g.Max(mass, np.array(1e-300)), (atoms[1:] + atoms[:-1]) / 2)
    place = g.Min(g.Max(place, every[:, None]), np.maximum(every, every[:, None]))
    at = g.Gather(atoms, place, axis=0)
    cost = g.Max(second - at * first * 2.0 + at * at * mass, np.array(0.0))
    cost = g.where(g.constant((every < every[:, None])[None]), np.inf, cost)
    end, values, shares = g.rows(np.full((1, 1), n - 1), masses), [], []
    for start in reversed(runs(g, cost, n_points, n)):
        begin = g.GatherElements(start, end, axis=1)
        values.append(g.GatherElements(at.shaped(0, -1), begin * n + end, axis=1))
        earlier = g.Max(begin - 1, np.array(0))
        below = g.where(begin > 0, g.GatherElements(upto[0], earlier, axis=1), 0.0)
        shares.append(g.GatherElements(upto[0], end, axis=1) - below)
        end = earlier
    shares = [g.Max(share, np.array(0.0)) for share in shares]
    return g.join(*reversed(values), axis=1), g.join(*reversed(shares), axis=1)


def _searched(g: Graph, values: Value, borders: NDArray[np.float64]) -> Value:
    """Return the number of borders below each value; the borders must increase."""
    padded = np.append(borders, np.inf)
    place = g.constant(np.array(0))
    step = 1 << max(len(borders).bit_length() - 1, 0)
    while step:
        last = g.Min(place + step, np.array(len(borders) + 1)) - 1
        passed = g.Gather(padded, last, axis=0) < values
        place = g.where(passed, last + 1, place)
        step //= 2
    return place


def _atom_sets(g: Graph, masses: Value, means: Value, answers: Any, coverage: float) -> None:
    """Add the sets of a discrete target."""
    calibrator, values = answers.calibrator, answers.predictive.values
    level = quantile(calibrator.scores, calibrator.counts, 1 - coverage)
    n = len(values)
    if math.isinf(level):
        whole = g.rows(np.array([[np.inf]]), masses)
        return exporting.add_ends(g, [(-whole, whole)], answers.predictive.targets)
    logs = g.Log(g.Max(masses, np.array(1e-300)))
    ratios = g.Max(logs.more(1) - logs.more(2), np.array(0.0))
    inner = normal_cdf(g, g.Sqrt(ratios * 2.0)) * 2.0 - 1.0  # the error function of the square root
    inside = (masses.more(1) * inner).sum() <= level + _ROUNDING
    outside = g.rows(np.zeros((1, 1), bool), masses)
    left, right = g.join(outside, inside.part(0, n - 1), axis=1), g.join(inside.part(1, n), outside, axis=1)
    ends = [g.sorted(g.where(inside & ~near, values + masses * 0.0, np.inf), n)[0] for near in (left, right)]

    def between(low: Value, high: Value) -> Value:
        return (masses * ((low < values) & (high > values)).to(np.float64)).sum(keep=True)

    reached = line.reaching(ends[0], ends[1], means, between)
    return exporting.add_ends(g, [tuple(g.where(e < 1e300, e, np.nan) for e in reached)], answers.predictive.targets)


# ---------------------------------------------------------------------- the whole


def _blend(g: Graph, rows: Value, estimator: Any, coverage: float, outputs: Sequence[str] | None) -> None:
    answers, blend = estimator._answers, estimator._answers.predictive
    targets = blend.targets
    only_means = blend.values is None and outputs is not None and set(outputs) == {"mean"}
    dtype = np.float32 if only_means else np.float64  # the networks have single precision
    members = _members(g, rows, blend, dtype, widths=not only_means)
    members.append(_background(g, rows, targets.n_outputs, dtype))
    informed = _informed(g, blend, members)
    if only_means:
        return add_mean(g, _means_alone(g, blend, informed).to(np.float64), targets)
    whole = _mixed(g, members, blend.weights)
    if blend.values is not None:
        return _few_values(g, whole, informed, estimator, coverage)
    if blend.trim:
        informed = _trimmed(g, informed, blend.trim)
    means = _means(informed)
    add_mean(g, means, targets)
    exporting.check_outputs(type(estimator).__name__, targets, outputs, ["mean", "lower", "upper"])
    if targets.n_outputs == 1:
        points, masses, _ = best_points(_lines(informed, 1)[0], blend.n_points)
        low, high = (targets.bounds - targets.scaler.mean) / targets.scaler.scale
        add_answers(g, g.clip(points, low, high).more(2), masses, targets)
    return add_sets(g, _lines(whole, targets.n_outputs), means, answers, coverage)


def _lines(k: Members, n_outputs: int) -> list[LineKernels]:
    """Return the kernels of each output."""
    gather = k.values.graph.Gather
    places = [np.array(place) for place in range(n_outputs)]
    return [LineKernels(gather(k.values, at, axis=2), k.shares, gather(k.widths, at, axis=2), k.n) for at in places]


def _few_values(g: Graph, whole: Members, informed: Members, estimator: Any, coverage: float) -> None:
    answers, blend = estimator._answers, estimator._answers.predictive
    assert blend.atoms is not None
    atoms, values = blend.atoms.numpy(), blend.values
    masses, informed_masses = _masses(g, whole, atoms), _masses(g, informed, atoms)
    if blend.trim:
        at_atoms = Members(g.rows(atoms[None, :, None], masses), informed_masses, informed_masses, len(atoms))
        informed_masses = _trimmed(g, at_atoms, blend.trim).shares  # atoms increase
    means = (informed_masses * values).sum(keep=True)
    flat = blend.targets.is_flat
    g.output("mean", means.shaped(-1) if flat else means, ["rows"] if flat else ["rows", 1])
    found, shares = _best_atoms(g, informed_masses, values, blend.n_points)
    g.output("hypotheses", found.more(2), ["rows", "hypotheses", 1])
    g.output("probabilities", shares, ["rows", "hypotheses"])
    _atom_sets(g, masses, means, answers, coverage)


def export(self: Any, path: str | Path, *, coverage: float = 0.9, outputs: Sequence[str] | None = None) -> Path:
    """Write the whole fitted estimator to an ONNX file, which runs with onnxruntime and NumPy alone.

    A model fitted on an array has the input "X", [rows, features] in double precision. A model fitted on a data frame
    has an input [rows] for each column, with its
    name: numbers in double precision, NaN where one is missing; dates as days since
    1970 in double precision (`dates.astype("datetime64[us]").astype(float) / 86_400e6`), NaN where one is missing;
    categories as text, "" where one is missing. Unseen categories are encoded as none of the known ones. The metadata
    "dates" of the file is the JSON list of columns of dates.

    Outputs and the number of rows at a time are those of `MCLRegressor.export`.

    Args:
        self: the estimator.
        path: ending with ".onnx".
        coverage: of the sets "lower" and "upper".
        outputs: names of the outputs to write; all by default.

    Returns:
        The path.

    Raises:
        ImportError: without the package onnx: the extra `export`.
        ValueError: for another suffix, a coverage that is out of range or that the calibrating rows do not support, or
            outputs that cannot be exported: with several columns of y, only "mean", "lower" and "upper" can.
    """
    path = exporting.check_exportable(self, path, coverage)
    g = Graph(type(self).__name__)
    if self._frame is None:
        rows = g.some(g.input("X", np.float64, ["rows", self.n_features_in_]), 2)
    else:
        rows = frame_inputs(g, self._frame)
    _blend(g, rows, self, coverage, outputs)
    columns = () if self._frame is None else self._frame.schema.columns
    dates = [column.name for column in columns if isinstance(column, DateColumn)]
    g.save(path, exporting.notes(self, coverage) | {"dates": json.dumps(dates)}, outputs)
    return path
