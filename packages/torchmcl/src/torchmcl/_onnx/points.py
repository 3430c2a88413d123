"""The best points of one-dimensional mixtures of normal kernels as ONNX graphs.

`torchmcl.density.best_points` has the definition. Candidate borders are not those of its compiled loops, but integrals
and steps are. The number of steps is fixed, so that rows do not depend on each other.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl._onnx.graph import Graph, Value
from torchmcl._onnx.line import LineKernels, normal_cdf, standard_at

# Steps of Newton's method; the last one is exact.
_ROUNDS = 12
# The minimum numbers of atoms of a kernel, and of groups between candidate borders.
_ATOMS, _GROUPS = 3, 48


class Below(NamedTuple):
    """Integrals of 1, y and y^2 from the left up to borders, and the density there, [rows, borders] each."""

    mass: Value
    first: Value
    second: Value
    height: Value


def best_points(k: LineKernels, n_points: int) -> tuple[Value, Value, Value]:
    """Return points, masses and deviations [rows, points]: each point is the mean of its cell.

    Newton's method starts from the best groups of kernels. Its last step has exact integrals, as in the compiled loops.
    """
    g = k.centres.graph
    whole = k.shares.sum(keep=True)
    mean = (k.shares * k.centres).sum(keep=True) / whole
    k = LineKernels(k.centres - mean, k.shares / whole, k.widths, k.n)  # far from 0, digits would be lost
    one, centre, energy = ((k.shares * each).sum(keep=True) for each in _moments(k))
    least = -(-k.widths).max(keep=True) * 1e-3
    if n_points == 1:
        return mean + centre, one, g.Max(g.Sqrt(energy - centre * centre), least)
    quickly = _quickly(k)
    points = _grouped(k, quickly, (one, centre, energy), n_points)
    points = _moved(points, quickly(_middles(points, n_points)), one, centre, n_points, newton=False)

    def again(now: Value) -> list[Value]:
        return [_moved(now, quickly(_middles(now, n_points)), one, centre, n_points, newton=True)]

    (points,) = g.repeat(_ROUNDS, again, points)
    borders = _middles(points, n_points)
    below = _exactly(k, borders)
    moved = _moved(points, below, one, centre, n_points, newton=True)
    # The borders move so little that the density is constant on the way.
    passed = below.height * (_middles(moved, n_points) - borders)
    way = (_middles(moved, n_points) + borders) * 0.5
    sums = (below.mass + passed, below.first + passed * way, below.second + passed * way * way)
    masses, firsts, squares = (_between(part, end) for part, end in zip(sums, (one, centre, energy), strict=True))
    masses = g.Max(masses, np.array(0.0))
    filled = g.Max(masses, np.array(1e-12))
    means = g.where(masses > 1e-12, firsts / filled, moved)
    variance = g.where(masses > 1e-12, squares / filled - means * means, 0.0)
    return means + mean, masses / masses.sum(keep=True), g.Max(g.Sqrt(g.Max(variance, np.array(0.0))), least)


def _middles(points: Value, n_points: int) -> Value:
    return (points.part(1, n_points) + points.part(0, n_points - 1)) * 0.5


def _between(upto: Value, whole: Value) -> Value:
    """Return integrals over the cells [rows, cells] from those up to the borders between them."""
    g = upto.graph
    return g.join(upto, whole, axis=1) - g.join(whole * 0.0, upto, axis=1)


def _grouped(k: LineKernels, quickly: Callable[[Value], Below], whole: Sequence[Value], n_points: int) -> Value:
    """Return the means of the groups that minimize the total squared distance of the mass to its group's mean.

    Candidate borders lie between atoms of the kernels, with the asymptotic density of the best points.
    """
    g = k.centres.graph
    n_groups = max(_GROUPS, 4 * n_points)
    steps, heights = _normal_atoms(max(_ATOMS, 3 * n_groups // k.n | 1))
    n = k.n * len(steps)
    x, order = g.sorted((k.centres.more(2) + k.widths.more(2) * steps).shaped(0, n), n)
    masses = g.GatherElements((k.shares.more(2) * heights).shaped(0, n), order, axis=1)
    gaps = x.part(1, n) - x.part(0, n - 1)
    spread = g.CumSum(g.Pow(masses.part(0, n - 1) * gaps * gaps, np.array(1 / 3)), np.array(1))
    wanted = spread.part(n - 2, n - 1) * (np.arange(1, n_groups) / n_groups)
    place = (spread.more(1) < wanted.more(2)).to(np.int64).sum()  # [rows, borders], the last atom before each
    borders = g.GatherElements(x.part(0, n - 1) + gaps * 0.5, place, axis=1)
    below = quickly(borders)
    sums = []
    for upto, end in zip((below.mass, below.first, below.second), whole, strict=True):
        to, none = g.join(upto, end, axis=1), end * 0.0
        sums.append(to.more(1) - g.join(none, upto, axis=1).more(2))
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


def _normal_atoms(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return positions and masses of the atoms of a standard normal kernel, as dense as its best points."""
    normal = NormalDist()
    places = [normal.inv_cdf((i + 0.5) / n) * math.sqrt(3) for i in range(n)]
    upto = [normal.cdf((one + other) / 2) for one, other in itertools.pairwise(places)]
    return np.array(places), np.diff([0.0, *upto, 1.0])


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


def _moments(k: LineKernels) -> tuple[Value, Value, Value]:
    return k.shares * 0.0 + 1.0, k.centres, k.centres * k.centres + k.widths * k.widths


def _quickly(k: LineKernels) -> Callable[[Value], Below]:
    """Return integrals with single-precision functions, whose errors amount to slightly changed weights of kernels."""
    g = k.centres.graph
    per_width, reach = 1.0 / k.widths, k.shares * k.widths * (1 / math.sqrt(2 * math.pi))
    halves = [k.shares * each * 0.5 for each in _moments(k)]  # factors of the error function, and beside it
    bells = [-reach, -reach * k.centres, reach * per_width * per_width]
    below, near = (g.join(*(part.more(2) for part in parts), axis=2).to(np.float32) for parts in (halves, bells))
    middle = [half.sum(keep=True) for half in halves]

    def integrals(borders: Value) -> Below:
        z = ((borders.more(2) - k.centres.more(1)) * per_width.more(1)).to(np.float32)
        products = g.Erf(z * math.sqrt(0.5)) @ below, g.Exp(z * z * -0.5) @ near
        parts = [each.to(np.float64).part(at, at + 1, 2).shaped(0, -1) for each in products for at in range(3)]
        mass, first, second = (part + half for part, half in zip(parts[:3], middle, strict=True))
        return Below(mass, first + parts[3], second + parts[4] + borders * parts[3], parts[5])

    return integrals


def _exactly(k: LineKernels, borders: Value) -> Below:
    """Return integrals in double precision."""
    g = borders.graph
    z, bell = standard_at(k, borders)
    below, reach = normal_cdf(g, z), bell * k.widths.more(1)
    one, centre, energy = (each.more(1) for each in _moments(k))
    parts = below * one, below * centre - reach, below * energy - (centre + borders.more(2)) * reach
    mass, first, second, height = ((part * k.shares.more(1)).sum() for part in (*parts, bell / k.widths.more(1)))
    return Below(mass, first, second, height)


def _moved(points: Value, below: Below, one: Value, centre: Value, n: int, *, newton: bool) -> Value:
    """Return the points after a step, as in the compiled loops."""
    g = points.graph
    masses, sums = _between(below.mass, one), _between(below.first, centre)
    filled = g.Max(masses, np.array(1e-12))
    means = g.where(masses > 1e-12, sums / filled, points)
    if not newton:
        return means
    borders, none = _middles(points, n), one * 0.0
    # The derivative of a cell's mean by both neighbors: a border moves by half of a neighbor's step.
    rights = below.height * (borders - means.part(0, n - 1)) / filled.part(0, n - 1) * 0.5
    lefts = below.height * (means.part(1, n) - borders) / filled.part(1, n) * 0.5
    steps, sound = _tridiagonal(g.join(none, lefts, axis=1), g.join(rights, none, axis=1), means - points, n)
    gaps = points.part(1, n) - points.part(0, n - 1)
    far = none + 1e300
    room = g.Min(g.join(far, gaps, axis=1), g.join(gaps, far, axis=1))
    inside = (g.Abs(steps) / g.Max(room, np.array(1e-300))).max(keep=True) <= 0.4  # points keep their order
    return g.where(sound & inside, points + steps, means)


def _tridiagonal(left: Value, right: Value, target: Value, n: int) -> tuple[Value, Value]:
    """Return the solution of (1 - left - right) x - left x_before - right x_after = target, and whether it is sound."""
    g = left.graph
    columns = [tuple(part.part(at, at + 1) for part in (left, right, target)) for at in range(n)]
    solved: list[Value] = []
    factors: list[Value] = []
    sound: Value | None = None
    for at, (low, high, wanted) in enumerate(columns):
        pivot = 1.0 - low - high - (low * factors[-1] if at else 0.0)
        sound = pivot > 0.02 if sound is None else sound & (pivot > 0.02)
        factors.append(high / pivot)
        solved.append((wanted + low * solved[-1] if at else wanted) / pivot)
    for at in reversed(range(n - 1)):
        solved[at] = solved[at] + factors[at] * solved[at + 1]
    assert sound is not None
    return g.join(*solved, axis=1), sound
