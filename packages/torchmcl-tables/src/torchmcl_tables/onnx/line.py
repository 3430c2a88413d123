"""One-dimensional mixtures of normal kernels as ONNX graphs: highest-density sets, solved exactly.

The definitions are in `torchmcl.density`. Ends of sets are solved by the steps of its compiled loops, `line_sets.h`.
The number of steps is fixed, so that rows do not depend on each other.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.onnx.graph import Graph, Value

# The CDF is a cubic between nodes, with this many per width and an error of 1e-11; beyond _REACH it is 0 or 1.
_PER_WIDTH, _REACH = 128, 8.0
# Positions of the nodes of each kernel, in widths, between which the density is interpolated. A mixture of few kernels
# has `_N_NODES` in total, because the nodes of one kernel do not fill the gaps of another.
_NODES, _N_NODES = (-8.0, -5.0, -3.0, -1.8, -0.9, 0.0, 0.9, 1.8, 3.0, 5.0, 8.0), 900
# Steps of the bisection, of Newton's method in single precision for the first and the second level, and in double.
_HALVINGS, _FIRST_ROUNDS, _POLISHING, _EXACT = 20, 6, 14, 2
# The lowest level is that of the highest peak times exp(-_DEEP).
_DEEP = 70.0
# Ends of a set that are beyond a peak or a valley are moved back by this share of the local scale.
_OUT = 0.02
# Sets are extended to the mean of their row if at most this mass lies between, as in `torchmcl_tables.mcl`.
_ON_THE_WAY = 0.02


class LineKernels(NamedTuple):
    """Centers, probabilities and widths, [rows, kernels] each, and the number of kernels."""

    centres: Value
    shares: Value
    widths: Value
    n: int


@functools.cache
def _normal_terms() -> tuple[NDArray[np.float64], ...]:
    """Return the coefficients of a cubic interpolation of the normal CDF between neighboring nodes."""
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


def standard_at(k: LineKernels, x: Value) -> tuple[Value, Value]:
    """Return positions [rows, n] in units of each kernel, and width times density, [rows, n, kernels] each."""
    g = x.graph
    z = (x.more(-1) - k.centres.more(1)) / k.widths.more(1)
    return z, g.Exp(z * z * -0.5) * (1 / math.sqrt(2 * math.pi))


def mass_below(k: LineKernels, x: Value) -> Value:
    """Return the cumulative distribution function at positions [rows, n]."""
    return (normal_cdf(x.graph, standard_at(k, x)[0]) * k.shares.more(1)).sum()


def highest_density(k: LineKernels, mass: float, fill: float) -> tuple[Value, Value]:
    """Return lower and upper ends [rows, pieces] of the densest sets with a given mass, padded with infinity.

    The number of pieces is that of the row with the most.

    Args:
        k: the kernels.
        mass: in (0, 1).
        fill: gaps whose depth is at least `fill` are closed.
    """
    g = k.centres.graph
    nodes = _nodes(k)
    n = k.n * _steps(k.n).shape[-1]
    level = _level(*nodes, n, mass)
    x, f = _turned(*nodes, n)
    n = 2 * n - 1
    exactly, quickly = _slopes(k), _slopes_quickly(k)
    # A better level may have other pieces.
    for rounds in ([(quickly, _FIRST_ROUNDS)], [(quickly, _POLISHING), (exactly, _EXACT)]):
        inside = g.Log(g.Max(f, np.array(1e-300))) >= level
        outside = g.rows(np.zeros((1, 1), bool), x)
        before = g.join(outside, inside.part(0, n - 1), axis=1)
        after = g.join(inside.part(1, n), outside, axis=1)
        starts, stops = inside & ~before, inside & ~after
        n_pieces = g.ReduceMax(starts.to(np.int64).sum(), keepdims=0).shaped(1)
        lower, upper = (_ends(x, f, level, marks, shift, n, n_pieces) for marks, shift in ((starts, -1), (stops, 1)))
        for slopes, n_rounds in rounds:
            lower, upper, level = _polished(k, slopes, (lower, upper, level), mass, n_rounds)
    if fill >= 1:
        return lower, upper
    joined = _shallow(f, inside, starts, fill, n_pieces)  # [rows, pieces], to the next piece
    none = g.rows(np.zeros((1, 1), bool), x)
    before = g.Slice(g.join(none, joined, axis=1), np.array([0]), n_pieces, np.array([1]))
    ends = (g.where(before, np.inf, lower), g.where(joined, np.inf, upper))
    first, second = (g.node("TopK", each, n_pieces, n_outputs=2, axis=-1, largest=0, sorted=1)[0] for each in ends)
    return first, second


def _steps(n_kernels: int) -> NDArray[np.float64]:
    """Return the positions of each kernel's nodes relative to its center, in units of its width."""
    n, n_few = _N_NODES // n_kernels // 2 * 2 + 1, len(_NODES)
    if n > n_few + 4:
        return np.concatenate([[-8.0, -6.3], np.linspace(-5.0, 5.0, min(n, 121) - 4), [6.3, 8.0]])
    # Leaves of a forest may have the same center and width: their nodes must not coincide.
    shifts = np.arange(n_kernels)[:, None] * 0.618 % 1 - 0.5
    return np.interp(np.arange(n_few) + shifts, np.arange(-1, n_few + 1), (-9.0, *_NODES, 9.0))


def _nodes(k: LineKernels) -> tuple[Value, Value, Value]:
    """Return the sorted positions of all nodes, and the density and its slope there, [rows, nodes] each."""
    g = k.centres.graph
    spread = k.centres.more(2) + k.widths.more(2) * _steps(k.n)
    x, _ = g.sorted(spread.shaped(0, -1), k.n * _steps(k.n).shape[-1])
    # In single precision, in half the time; the ends are solved in double precision.
    z = ((x.more(-1) - k.centres.more(1)) * (1.0 / k.widths).more(1)).to(np.float32)
    bell = g.Exp(z * z * -0.5)
    heights = k.shares / k.widths * (1 / math.sqrt(2 * math.pi))
    f = (bell @ heights.to(np.float32).more(2)).shaped(0, -1).to(np.float64)
    slope = -((bell * z) @ (heights / k.widths).to(np.float32).more(2)).shaped(0, -1).to(np.float64)
    return x, f, slope


def _turned(x: Value, f: Value, slope: Value, n: int) -> tuple[Value, Value]:
    """Return nodes and density with a node added between neighbors: at an extremum of the density, or the midpoint.

    The region denser than a level can then be found from the nodes alone.
    """
    g = x.graph
    (x0, x1), (f0, f1), (g0, g1) = ((each.part(0, n - 1), each.part(1, n)) for each in (x, f, slope))
    width = x1 - x0
    rise, (g0, g1) = f1 - f0, _limited(width, (f0, f1), (g0, g1))
    square, cube = rise * 3.0 - g0 * 2.0 - g1, g0 + g1 - rise * 2.0
    root = g.Sqrt(g.Max(square * square - cube * g0 * 3.0, np.array(0.0)))
    sum_ = -(square + g.where(square > 0.0, root, -root))
    safe = g.where(g.Abs(sum_) > 1e-300, sum_, 1e-300)
    one, other = g0 / safe, safe / g.where(g.Abs(cube) > 1e-300, cube * 3.0, 1e-300)
    u = g.where((one > 0.0) & (one < 1.0), one, other)
    turns = (g0 * g1 < 0.0) & (u > 1e-4) & (u < 0.9999)
    u = g.where(turns, u, 0.5)
    at = g.Max(f0 + u * (g0 + u * (square + u * cube)), np.array(0.0))

    def between(values: Value, inner: Value) -> Value:
        pairs = g.join(values.part(0, n - 1).more(2), inner.more(2), axis=2).shaped(0, -1)
        return g.join(pairs, values.part(n - 1, n), axis=1)

    return between(x, x0 + u * width), between(f, at)


def _limited(width: Value, heights: Sequence[Value], slopes: Sequence[Value]) -> tuple[Value, Value]:
    """Return the slopes at both ends of cells, times the width, within the range of positive cubics.

    Beside a narrow kernel, the next node may be many of its widths away.
    """
    g = width.graph
    return g.Max(slopes[0] * width, heights[0] * -3.0), g.Min(slopes[1] * width, heights[1] * 3.0)


def _level(x: Value, f: Value, slope: Value, n: int, mass: float) -> Value:
    """Return the log of the approximate density level above which the mass lies, [rows, 1], by bisection."""
    g = x.graph
    ends = [(each.part(0, n - 1), each.part(1, n)) for each in (x, f, slope)]
    (x0, x1), (f0, f1), (g0, g1) = ends
    width = x1 - x0
    mean = (f0 + f1) * 0.5
    g0, g1 = _limited(width, (f0, f1), (g0, g1))
    masses = g.Max(width * (mean + (g0 - g1) * (1 / 12)), np.array(0.0))
    share = masses / g.Max(mean, np.array(1e-300))
    low_end, high_end = g.Min(f0, f1), g.Max(f0, f1)
    range_ = g.Max(high_end - low_end, np.array(1e-300))

    wanted = masses.sum(keep=True) * mass

    def halved(low: Value, high: Value) -> list[Value]:
        log_level = (low + high) * 0.5
        level = g.Exp(log_level)
        part = g.clip((high_end - level) / range_, 0.0, 1.0)
        above = part * (high_end + g.Max(level, low_end)) * 0.5 * share
        much = above.sum(keep=True) > wanted
        return [g.where(much, log_level, low), g.where(much, high, log_level)]

    highest = g.Log(f.max(keep=True))
    return g.repeat(_HALVINGS, halved, highest - _DEEP, highest)[0]  # widths may differ by orders of magnitude


def _ends(x: Value, f: Value, level: Value, marks: Value, shift: int, n: int, n_pieces: Value) -> Value:
    """Return the positions of marked nodes [rows, pieces], moved to the level (a logarithm), padded with infinity."""
    g = x.graph
    edge = (0, 1) if shift < 0 else (n - 1, n)
    inner = (0, n - 1) if shift < 0 else (1, n)
    beside = [each.part(*inner) for each in (x, f)]
    x2, f2 = (
        g.join(*((each.part(*edge), near) if shift < 0 else (near, each.part(*edge))), axis=1)
        for each, near in zip((x, f), beside, strict=True)
    )
    u = g.clip((f - g.Exp(level)) / g.Max(f - f2, np.array(1e-300)), 0.0, 1.0)
    places = g.where(marks, x + u * (x2 - x), np.inf)
    found: Value = g.node("TopK", places, n_pieces, n_outputs=2, axis=-1, largest=0, sorted=1)[0]
    return found


class Slopes(NamedTuple):
    """The mass up to positions, and the density and its first two derivatives there, [rows, positions] each."""

    mass: Value
    height: Value
    slope: Value
    curve: Value


def _slopes(k: LineKernels) -> Callable[[Value], Slopes]:
    g = k.centres.graph
    per_width = 1.0 / k.widths

    def at(x: Value) -> Slopes:
        z, bell = standard_at(k, x)
        heights, steps = bell * (k.shares * per_width).more(1), z * per_width.more(1)
        bend = heights * (steps * steps - (per_width * per_width).more(1))
        mass = normal_cdf(g, z) * k.shares.more(1)
        return Slopes(mass.sum(), heights.sum(), -(heights * steps).sum(), bend.sum())

    return at


def _slopes_quickly(k: LineKernels) -> Callable[[Value], Slopes]:
    """Return the same with functions in single precision, in a tenth of the time."""
    g = k.centres.graph
    per_width, half = 1.0 / k.widths, k.shares.sum(keep=True) * 0.5
    height = k.shares * per_width * (1 / math.sqrt(2 * math.pi))
    factors = k.shares * 0.5, height, -height * per_width, height * per_width * per_width
    below, tall, steep, bent = (each.more(2).to(np.float32) for each in factors)

    def at(x: Value) -> Slopes:
        z = ((x.more(-1) - k.centres.more(1)) * per_width.more(1)).to(np.float32)
        bell = g.Exp(z * z * -0.5)
        products = g.Erf(z * math.sqrt(0.5)) @ below, bell @ tall, (bell * z) @ steep, (bell * (z * z - 1.0)) @ bent
        mass, heights, *others = (each.to(np.float64).shaped(0, -1) for each in products)
        return Slopes(mass + half, g.Max(heights, np.array(1e-30)), *others)  # slopes of less may be rounding errors

    return at


def _polished(
    k: LineKernels, slopes: Callable[[Value], Slopes], start: Sequence[Value], mass: float, n_rounds: int
) -> list[Value]:
    """Return ends of equal density that enclose the given mass, and the log of that density, by Newton's method.

    Args:
        k: the kernels.
        slopes: of their density.
        start: lower and upper ends [rows, pieces], padded with infinity, and the log of the density.
        mass: in (0, 1).
        n_rounds: the number of steps.
    """
    g = k.centres.graph
    lower, upper, level = start
    real = lower < 1e300  # both ends of a piece
    first, last = (g.where(real, each, 0.0) for each in (lower, upper))

    def end(x: Value, sign: float) -> tuple[Value, ...]:
        found = slopes(x)
        f = g.Max(found.height, np.array(1e-300))
        slope, curve = found.slope / f, found.curve / f
        falls = slope * sign < 0.0  # not beyond a peak or a valley
        rate = g.where(falls, 1.0 / g.where(falls, slope, 1.0), 0.0)
        room = 1.0 / g.Sqrt(g.Abs(curve) + slope * slope + 1e-300)
        out = g.where(falls, 0.0, room * g.where(curve > 0.0, g.constant(np.array(-_OUT * sign)), _OUT * sign))
        gain = g.where(real, rate * f * sign, 0.0)
        return g.Log(f), rate, room, gain, g.where(real, found.mass * sign, 0.0), out

    def solved(one: Value, other: Value, level: Value) -> list[Value]:
        sides = [end(one, -1.0), end(other, 1.0)]
        held = sides[0][4].sum(keep=True) + sides[1][4].sum(keep=True)
        change = sides[0][3].sum(keep=True) + sides[1][3].sum(keep=True)
        expected = sum((gain * logs).sum(keep=True) for logs, _, _, gain, _, _ in sides)
        better = (mass - held + expected) / g.where(change < 0.0, change, 1.0) - level
        level = level + g.where(change < 0.0, g.clip(better, -2.0, 2.0), 0.0)
        moved = []
        for x, (logs, rate, room, _, _, out) in zip((one, other), sides, strict=True):
            step = out + g.Max(g.Min((level - logs) * rate, room), -room)
            moved.append(x + g.where(real, step, 0.0))  # infinite ends stay
        return [*moved, level]

    first, last, level = g.repeat(n_rounds, solved, first, last, level)
    return [g.where(real, first, np.inf), g.where(real, last, np.inf), level]


def _shallow(f: Value, inside: Value, starts: Value, fill: float, n_pieces: Value) -> Value:
    """Return whether the depth of the gap after each piece is at least `fill`, [rows, pieces]."""
    g = f.graph
    number = g.CumSum(starts.to(np.int64), np.array(1))  # pieces are numbered from 1
    numbers = g.Range(np.array(1), n_pieces.shaped() + 2, np.array(1))
    here = g.Equal(number.more(1), numbers.shaped(1, -1, 1))  # [rows, pieces + 1, nodes]
    peaks = g.where(here & inside.more(1), f.more(1), 0.0).max()
    valleys = -g.where(here & ~inside.more(1), -f.more(1), -1e300).max()
    own, following = (
        g.Slice(peaks, start, n_pieces + start, np.array([1])) for start in (np.array([0]), np.array([1]))
    )
    valleys = g.Slice(valleys, np.array([0]), n_pieces, np.array([1]))
    between = g.Slice(numbers, np.array([0]), n_pieces, np.array([0])).shaped(1, -1) < number.max(keep=True)
    return between & (valleys >= g.Min(own, following) * fill)


def reaching(lower: Value, upper: Value, means: Value, between: Callable[[Value, Value], Value]) -> tuple[Value, Value]:
    """Return the sets, extended to the mean [rows, 1] of their row if little mass lies in between.

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
