"""One-dimensional mixtures of normal kernels as ONNX graphs: best points and highest-density sets, solved exactly.

The definitions are in `torchmcl.density`. Its compiled loops interpolate the density and stop at 1e-5 of the mass; here
the equations are solved to rounding error. The number of steps is fixed, so that rows do not depend on each other.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl._onnx.graph import Graph, Value

# The CDF is a cubic between nodes, with this many per width and an error of 1e-11; beyond _REACH it is 0 or 1.
_PER_WIDTH, _REACH = 128, 8.0
# Positions of the nodes of each kernel, in widths, between which the density is interpolated.
_NODES = (-5.0, -3.0, -1.8, -0.9, 0.0, 0.9, 1.8, 3.0, 5.0)
_ROUNDS, _HALVINGS, _DOUBLINGS, _POLISHING = 16, 40, 7, 8
# Atoms per kernel, and the minimum number of groups of them from which the first points are computed.
_ATOMS, _GROUPS = 5, 48
#: Maximum number of pieces of a set.
N_PIECES = 8
# Sets are extended to the mean of their row if at most this mass lies between, as in `torchmcl.sklearn`.
_ON_THE_WAY = 0.02


class LineKernels(NamedTuple):
    """Centers, probabilities and widths, [rows, kernels] each, and the number of kernels."""

    centres: Value
    shares: Value
    widths: Value
    n: int


@functools.cache
def _normal_terms() -> tuple[NDArray[np.float64], ...]:
    """Return the coefficients of the normal distribution function between two nodes."""
    at = np.arange(-_REACH * _PER_WIDTH, _REACH * _PER_WIDTH + 1) / _PER_WIDTH
    f = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in at])
    s = np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi) / _PER_WIDTH
    rise = np.diff(f)
    return f[:-1], s[:-1], 3 * rise - 2 * s[:-1] - s[1:], s[:-1] + s[1:] - 2 * rise


def normal_cdf(g: Graph, z: Value) -> Value:
    """Return the standard normal CDF in double precision, which not every runtime supports for ONNX's Erf."""
    place = g.clip((z + _REACH) * _PER_WIDTH, 0.0, 2 * _REACH * _PER_WIDTH - 1e-9)
    cell = g.Floor(place)
    index, u = cell.to(np.int64), place - cell
    a, b, c, d = (g.Gather(term, index, axis=0) for term in _normal_terms())
    return a + u * (b + u * (c + u * d))


def _at(k: LineKernels, x: Value) -> tuple[Value, Value]:
    """Return positions [rows, places] in units of each kernel, and width times density, [rows, places, kernels]."""
    g = x.graph
    z = (x.more(-1) - k.centres.more(1)) / k.widths.more(1)
    return z, g.Exp(z * z * -0.5) * (1 / math.sqrt(2 * math.pi))


def mass_below(k: LineKernels, x: Value) -> Value:
    """Return the cumulative distribution function at positions [rows, places]."""
    return (normal_cdf(x.graph, _at(k, x)[0]) * k.shares.more(1)).sum()


# ---------------------------------------------------------------------- points


def best_points(k: LineKernels, n_points: int) -> tuple[Value, Value, Value]:
    """Return points, masses and deviations [rows, points]: each point is the mean of its cell.

    Newton's method starts from the best groups of kernels.
    """
    g = k.centres.graph
    whole = k.shares.sum(keep=True)
    mean = (k.shares * k.centres).sum(keep=True) / whole
    k = LineKernels(k.centres - mean, k.shares / whole, k.widths, k.n)  # far from 0, digits would be lost
    points = _grouped(k, n_points)
    if n_points > 1:
        points = _moved(k, points, n_points, newton=False)
        (points,) = g.repeat(_ROUNDS, lambda now: [_moved(k, now, n_points, newton=True)], points)
    sums = _cells(k, points, n_points)
    masses, means = sums[0], g.where(sums[0] > 1e-12, sums[1] / g.Max(sums[0], np.array(1e-12)), points)
    variance = sums[2] / g.Max(masses, np.array(1e-12)) - means * means
    least = -(-k.widths).max(keep=True) * 1e-3
    deviations = g.where(masses > 1e-12, g.Sqrt(g.Max(variance, np.array(0.0))), 0.0)
    return means + mean, masses / masses.sum(keep=True), g.Max(deviations, least)


def _grouped(k: LineKernels, n_points: int) -> Value:
    """Return the means of the groups of the mass with the lowest total squared distance to their means.

    Each kernel is replaced by a few atoms. Candidate boundaries have the asymptotic density of the best points.
    """
    g = k.centres.graph
    steps, heights = np.polynomial.hermite_e.hermegauss(_ATOMS)
    n, n_groups = k.n * _ATOMS, max(_GROUPS, 4 * n_points)
    x, order = g.sorted((k.centres.more(2) + k.widths.more(2) * steps).shaped(0, -1), n)
    masses = g.GatherElements((k.shares.more(2) * (heights / heights.sum())).shaped(0, -1), order, axis=1)
    gaps = g.join(x.part(1, n) - x.part(0, n - 1), x.part(0, 1) * 0.0, axis=1)
    spread = g.CumSum(g.Pow(masses * gaps * gaps, np.array(1 / 3)), np.array(1))
    wanted = spread.part(n - 1, n) * (np.arange(1, n_groups) / n_groups)
    place = (spread.more(1) < wanted.more(2)).to(np.int64).sum()
    place = g.join(place, g.rows(np.full((1, 1), n - 1), x), axis=1)  # [rows, groups], the last atom of each
    none = g.rows(np.zeros((1, 1)), x)
    sums = []
    for each in (masses, masses * x, masses * x * x):
        upto = g.GatherElements(g.CumSum(each, np.array(1)), place, axis=1)
        before = g.join(none, upto.part(0, n_groups - 1), axis=1)
        sums.append(upto.more(1) - before.more(2))
    mass, first, second = sums
    later = np.arange(n_groups)[None] < np.arange(n_groups)[:, None]
    mean = first / g.Max(mass, np.array(1e-30))
    cost = g.where(g.constant(later[None]), np.inf, g.Max(second - first * mean, np.array(0.0)))
    means, end = [], g.rows(np.full((1, 1), n_groups - 1), x)
    for start in reversed(runs(g, cost, n_points, n_groups)):
        begin = g.GatherElements(start, end, axis=1)
        means.append(g.GatherElements(mean.shaped(0, -1), begin * n_groups + end, axis=1))
        end = g.Max(begin - 1, np.array(0))
    return g.join(*reversed(means), axis=1)


def runs(g: Graph, cost: Value, n_runs: int, n_items: int) -> list[Value]:
    """Return the start of the last run in the best split of items 0 to i into 1, 2, ... runs, [rows, items] each.

    Args:
        g: the graph.
        cost: [rows, starts, ends], of each run; infinite if the end is before the start.
        n_runs: the maximum number of runs.
        n_items: the number of items.
    """
    least = cost.part(0, 1, 1).shaped(0, -1)
    starts = [g.rows(np.zeros((1, n_items), dtype=np.int64), least)]
    for _ in range(n_runs - 1):
        before = g.join(g.rows(np.full((1, 1), np.inf, least.dtype), least), least.part(0, n_items - 1), axis=1)
        together = before.more(2) + cost
        starts.append(g.ArgMin(together, axis=1, keepdims=0))
        least = g.ReduceMin(together, np.array([1]), keepdims=0)
    return starts


def _cells(k: LineKernels, points: Value, n_points: int) -> tuple[Value, Value, Value]:
    """Return the integrals of 1, y and y^2 over the cells of points, [rows, points]."""
    g = points.graph
    if n_points == 1:
        return tuple((k.shares * each).sum(keep=True) for each in _moments(k))  # type: ignore[return-value]
    borders = (points.part(1, n_points) + points.part(0, n_points - 1)) * 0.5
    z, bell = _at(k, borders)
    below, heights = normal_cdf(g, z), bell * k.widths.more(1)
    one, centre, energy = (each.more(1) for each in _moments(k))
    upto = (below * one, below * centre - heights, below * energy - (centre + borders.more(2)) * heights)
    found = []
    for inner, total in zip(upto, (one, centre, energy), strict=True):
        ends = ((each * k.shares.more(1)).sum() for each in (inner, total))
        inside, whole = ends
        found.append(g.join(inside, whole, axis=1) - g.join(whole * 0.0, inside, axis=1))
    return found[0], found[1], found[2]


def _moments(k: LineKernels) -> tuple[Value, Value, Value]:
    return k.shares * 0.0 + 1.0, k.centres, k.centres * k.centres + k.widths * k.widths


def _moved(k: LineKernels, points: Value, n: int, *, newton: bool) -> Value:
    """Return the means of the cells, or the points after a Newton step if they stay in order."""
    g = points.graph
    masses, sums, _ = _cells(k, points, n)
    masses = g.Max(masses, np.array(1e-12))
    means = g.where(masses > 2e-12, sums / masses, points)
    if not newton:
        return means
    borders = (points.part(1, n) + points.part(0, n - 1)) * 0.5
    _, bell = _at(k, borders)
    height = (bell / k.widths.more(1) * k.shares.more(1)).sum()  # the density at the borders
    none = height.part(0, 1) * 0.0
    # The derivative of a cell's mean by both neighbors: a border moves by half of a neighbor's step.
    right = g.join(height * (borders - means.part(0, n - 1)) / masses.part(0, n - 1), none, axis=1) * 0.5
    left = g.join(none, height * (means.part(1, n) - borders) / masses.part(1, n), axis=1) * 0.5
    eye, up, down = (np.eye(n, k=shift)[None] for shift in (0, 1, -1))
    slope = (left + right).more(2) * eye + right.more(2) * up + left.more(2) * down
    inverse = slope + eye  # (1 - slope)^-1 = (1 + slope)(1 + slope^2)(1 + slope^4) ...
    for _ in range(_DOUBLINGS):
        slope = slope @ slope
        inverse = inverse + inverse @ slope
    step = (inverse @ (means - points).more(2)).shaped(0, -1)
    gaps = points.part(1, n) - points.part(0, n - 1)
    far = g.rows(np.full((1, 1), 1e300), points)
    room = g.Min(g.join(far, gaps, axis=1), g.join(gaps, far, axis=1))
    # Points must not cross, and steps that do not lower the distances, or are NaN, are rejected.
    share = g.Min(-(-(room * 0.4 / g.Max(g.Abs(step), np.array(1e-300)))).max(keep=True), np.array(1.0))
    falls = (step * (means - points) * masses).sum(keep=True) >= 0.0
    return g.where(falls & (share > 0.05), points + step * share, means)


# ---------------------------------------------------------------------- sets


def highest_density(k: LineKernels, mass: float, fill: float) -> tuple[Value, Value]:
    """Return lower and upper ends [rows, N_PIECES] of the densest sets of a mass, padded with infinity.

    Args:
        k: the kernels.
        mass: in (0, 1).
        fill: gaps whose depth is at least `fill` are closed.
    """
    g = k.centres.graph
    n = k.n * len(_NODES)
    spread = k.centres.more(2) + k.widths.more(2) * np.array(_NODES)
    x, _ = g.sorted(spread.shaped(0, -1), n)
    # The cells are found in single precision, in half the time; the ends in them are solved in double precision.
    narrow = LineKernels(k.centres.to(np.float32), k.shares.to(np.float32), k.widths.to(np.float32), k.n)
    f, slope = (each.to(np.float64) for each in _density(narrow, x.to(np.float32)))
    level = _level(x, f, slope, n, mass)
    inside = f >= level
    outside = g.rows(np.zeros((1, 1), bool), x)
    left, right = g.join(outside, inside.part(0, n - 1), axis=1), g.join(inside.part(1, n), outside, axis=1)
    rows = [_ends(x, f, level, marks, shift, n) for marks, shift in ((inside & ~left, -1), (inside & ~right, 1))]
    lower, upper = _polished(k, rows[0], rows[1], level, mass)
    if fill >= 1:
        return lower, upper
    joined = _shallow(f, inside, inside & ~left, fill)  # [rows, N_PIECES], to the next piece
    before = g.join(outside, joined.part(0, N_PIECES - 1), axis=1)
    return g.sorted(g.where(before, np.inf, lower), N_PIECES)[0], g.sorted(g.where(joined, np.inf, upper), N_PIECES)[0]


def _density(k: LineKernels, x: Value) -> tuple[Value, Value]:
    """Return the density and its derivative at positions [rows, places]."""
    z, bell = _at(k, x)
    heights = bell * (k.shares / k.widths).more(1)
    return heights.sum(), -(heights * z / k.widths.more(1)).sum()


def _level(x: Value, f: Value, slope: Value, n: int, mass: float) -> Value:
    """Return the approximate density level above which the mass lies, [rows, 1], by bisection."""
    g = x.graph
    ends = [(each.part(0, n - 1), each.part(1, n)) for each in (x, f, slope)]
    (x0, x1), (f0, f1), (g0, g1) = ends
    width = x1 - x0
    mean = (f0 + f1) * 0.5
    masses = g.Max(width * mean + width * width * (g0 - g1) * (1 / 12), np.array(0.0))
    share = masses / g.Max(mean, np.array(1e-300))
    low_end, high_end = g.Min(f0, f1), g.Max(f0, f1)
    range_ = g.Max(high_end - low_end, np.array(1e-300))

    wanted = masses.sum(keep=True) * mass

    def halved(low: Value, high: Value) -> list[Value]:
        level = (low + high) * 0.5
        part = g.clip((high_end - level) / range_, 0.0, 1.0)
        above = part * (high_end + g.Max(level, low_end)) * 0.5 * share
        much = above.sum(keep=True) > wanted
        return [g.where(much, level, low), g.where(much, high, level)]

    return g.repeat(_HALVINGS, halved, f.max(keep=True) * 0.0, f.max(keep=True))[0]


def _ends(x: Value, f: Value, level: Value, marks: Value, shift: int, n: int) -> tuple[Value, Value, Value]:
    """Return the positions of marked nodes [rows, N_PIECES], moved to the level, and the nodes on both sides."""
    g = x.graph
    edge = (0, 1) if shift < 0 else (n - 1, n)
    inner = (0, n - 1) if shift < 0 else (1, n)
    beside = [each.part(*inner) for each in (x, f)]
    x2, f2 = (
        g.join(*((each.part(*edge), near) if shift < 0 else (near, each.part(*edge))), axis=1)
        for each, near in zip((x, f), beside, strict=True)
    )
    u = g.clip((f - level) / g.Max(f - f2, np.array(1e-300)), 0.0, 1.0)
    order = g.sorted(g.where(marks, x, np.inf), n)[1].part(0, N_PIECES)
    marked = g.GatherElements(marks.to(np.float64), order, axis=1) > 0.5
    found = (g.where(marked, g.GatherElements(each, order, axis=1), np.inf) for each in (x + u * (x2 - x), x, x2))
    place, one, other = found
    return place, g.Min(one, other), g.Max(one, other)


def _polished(
    k: LineKernels, lower: tuple[Value, Value, Value], upper: tuple[Value, Value, Value], level: Value, mass: float
) -> tuple[Value, Value]:
    """Return the ends, at which the density equals the level with the given mass above it, by Newton's method."""
    g = level.graph
    places, low, high = (g.join(one, other, axis=1) for one, other in zip(lower, upper, strict=True))
    sign = np.repeat([-1.0, 1.0], N_PIECES)[None]
    real = places < 1e300
    room = high - low  # the first level is not exact: an end may be in an adjacent cell
    low, high = low - room, high + room

    def solved(x: Value, log_level: Value) -> list[Value]:
        f, slope = _density(k, x)
        logs = g.Log(g.Max(f, np.array(1e-300)))  # in a normal tail, logs are closer to linear
        steep = g.where(slope < 0.0, g.Min(slope, np.array(-1e-300)), g.Max(slope, np.array(1e-300)))
        per_log = g.clip(f / steep, -1e9, 1e9)  # the shift of an end per unit of the log level
        weights = g.where(real, per_log * f * sign, 0.0)
        mass_now = g.where(real, mass_below(k, x) * sign, 0.0).sum(keep=True)
        change = weights.sum(keep=True)
        better = (mass - mass_now + (weights * logs).sum(keep=True)) / g.where(change < -1e-12, change, -1e-12)
        log_level = log_level + g.clip(better - log_level, -2.0, 2.0)
        return [g.where(real, g.Min(g.Max(x + (log_level - logs) * per_log, low), high), 0.0), log_level]

    logs = g.Log(g.Max(level, np.array(1e-300)))
    x = g.where(real, g.repeat(_POLISHING, solved, g.where(real, places, 0.0), logs)[0], np.inf)
    return x.part(0, N_PIECES), x.part(N_PIECES, 2 * N_PIECES)


def _shallow(f: Value, inside: Value, starts: Value, fill: float) -> Value:
    """Return whether the depth of the gap after each piece is at least `fill`, [rows, N_PIECES]."""
    g = f.graph
    number = g.CumSum(starts.to(np.float64), np.array(1))  # pieces are numbered from 1
    own = number.more(1) - np.arange(1.0, N_PIECES + 2)[None, :, None]
    here = (own < 0.5) & (own > -0.5)
    peaks = g.where(here & inside.more(1), f.more(1), 0.0).max()
    valleys = -g.where(here & ~inside.more(1), -f.more(1), -1e300).max()
    n_pieces = number.max(keep=True)
    between = g.constant(np.arange(1.0, N_PIECES + 1)[None]) < n_pieces
    shallower = g.Min(peaks.part(0, N_PIECES), peaks.part(1, N_PIECES + 1))
    return between & (valleys.part(0, N_PIECES) >= shallower * fill)


def reaching(lower: Value, upper: Value, means: Value, between: Callable[[Value, Value], Value]) -> tuple[Value, Value]:
    """Return sets extended to the mean [rows, 1] of their row, if little mass lies between.

    Args:
        lower: [rows, pieces], padded with infinity.
        upper: the same.
        means: [rows, 1]
        between: returns the mass [rows, 1] strictly between two values [rows, 1].
    """
    g = lower.graph
    last = g.where(upper < 1e300, upper, -np.inf).max(keep=True)
    lowest = lower.part(0, 1)
    down = (means < lowest) & (between(means, lowest) <= _ON_THE_WAY)
    up = (means > last) & (between(last, means) <= _ON_THE_WAY)
    first = g.where(down, means, lowest)
    is_last = (upper <= last) & (upper >= last)
    return g.join(first, lower.part(1, 1 << 30), axis=1), g.where(is_last & up, means + upper * 0.0, upper)


def bounded(value: Value, scale: Any, mean: Any, bounds: NDArray[np.float64]) -> Value:
    """Return standardized values in the units of y, within the bounds."""
    return value.graph.clip(value * scale + mean, *bounds)
