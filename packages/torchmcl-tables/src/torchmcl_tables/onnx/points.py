"""The best points of one-dimensional mixtures of normal kernels as ONNX graphs.

`torchmcl.density.best_points` has the definition. Candidate borders differ from those of the compiled loops;
integrals and steps are the same. The number of steps is fixed, so that rows do not depend on each other.
"""

import itertools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.onnx.graph import Graph, Value
from torchmcl_tables.onnx.line import LineKernels, normal_cdf, standard_at

# Groupings from which points are moved, and the relative difference of distances that counts as none, as in compiled
# loops.
STARTS, _EQUAL = 4, 1e-4
# Steps of Newton's method from all starts, and damped ones from the best; one more is exact.
_ROUNDS, _DAMPED = 6, 10
# Lower pivots are those of points far from a minimum.
_LEAST_PIVOT = 0.02
# The minimum numbers of atoms of a kernel, and of groups between candidate borders, and cuts of gaps that are too wide.
_ATOMS, _GROUPS, _CUTS = 3, 48, 3


class Below(NamedTuple):
    """Integrals of 1, y and y^2 from the left up to borders, and the density there, [rows, borders] each."""

    mass: Value
    first: Value
    second: Value
    height: Value


class Whole(NamedTuple):
    """Integrals of 1, y and y^2 over the whole line, [rows, 1] each."""

    mass: Value
    first: Value
    second: Value


def best_points(k: LineKernels, n_points: int) -> tuple[Value, Value, Value]:
    """Return points, masses and deviations [rows, points]: each point is the mean of its cell.

    Newton's method starts from several groupings of the kernels, and the best result is chosen. Its last step has exact
    integrals, as in the compiled loops.
    """
    g = k.centres.graph
    whole = k.shares.sum(keep=True)
    mean = (k.shares * k.centres).sum(keep=True) / whole
    k = LineKernels(k.centres - mean, k.shares / whole, k.widths, k.n)  # far from 0, digits would be lost
    total = Whole(*((k.shares * each).sum(keep=True) for each in _moments(k)))
    least = -(-k.widths).max(keep=True) * 1e-3
    if n_points == 1:
        return mean + total.first, total.mass, g.Max(g.Sqrt(total.second - total.first * total.first), least)
    quickly = _quickly(k)
    points = _settled(quickly, _starts(k, quickly, total, n_points), total, n_points)
    exact = _exactly(k, _middles(points, n_points))
    means, masses, deviations = _cells(points, exact, total, n_points)
    return means + mean, masses / masses.sum(keep=True), g.Max(deviations, least)


def _settled(quickly: Callable[[Value], Below], starts: Value, whole: Whole, n_points: int) -> Value:
    """Return the points [rows, points] to which the best of the starts [rows, starts * points] leads."""
    g = starts.graph

    def rounds(n_rounds: int, points: Value, n_sets: int, *, damped: bool) -> list[Value]:
        total = _repeated(whole, n_sets)

        def again(now: Value, _: Value) -> list[Value]:
            below = _below(now, quickly, n_sets, n_points)
            return [_newton(now, below, total, n_points, damped=damped), _distance(now, below, total)]

        return g.repeat(n_rounds, again, points, total.mass)

    points = starts.shaped(-1, n_points)
    points = _lloyd(points, _below(points, quickly, STARTS, n_points), _repeated(whole, STARTS))
    points, distances = rounds(_ROUNDS, points, STARTS, damped=False)
    sets = points.shaped(-1, STARTS, n_points)
    best = _best(distances.shaped(-1, STARTS), sets.sum())
    points = g.where(g.Equal(best.more(2), np.arange(STARTS)[:, None]), sets, 0.0).sum(1)
    return rounds(_DAMPED, points, 1, damped=True)[0]


def _below(points: Value, integrals: Callable[[Value], Below], n_sets: int, n_points: int) -> Below:
    """Return integrals up to the borders between points [rows * sets, points]."""
    borders = _middles(points, n_points).shaped(-1, n_sets * (n_points - 1))
    return Below(*(part.shaped(-1, n_points - 1) for part in integrals(borders)))


def _repeated(whole: Whole, n_sets: int) -> Whole:
    """Return the same integrals for each set of points, [rows * sets, 1]."""
    return Whole(*((part.more(1) + np.zeros((1, n_sets, 1))).shaped(-1, 1) for part in whole))


def _distance(points: Value, below: Below, whole: Whole) -> Value:
    """Return the mean squared distance to the nearest point, [rows, 1]."""
    masses, sums, squares = (_between(part, end) for part, end in zip(below[:3], whole, strict=True))
    return (squares - points * (sums * 2.0 - points * masses)).sum(keep=True)


def _best(distances: Value, sums: Value) -> Value:
    """Return the place [rows, 1] of the lowest distance; of equally good ones, that of the lowest sum."""
    g = distances.graph
    good = distances <= -(-distances).max(keep=True) * (1 + _EQUAL)
    made: Value = g.ArgMin(g.where(good, sums, np.inf), axis=1, keepdims=1)
    return made


def _cells(points: Value, below: Below, whole: Whole, n_points: int) -> tuple[Value, Value, Value]:
    """Return the means, masses and deviations of the cells after a last step, [rows, points]."""
    g, borders = points.graph, _middles(points, n_points)
    moved = _newton(points, below, whole, n_points, damped=True)
    # The borders move so little that the density is constant on the way.
    passed = below.height * (_middles(moved, n_points) - borders)
    way = (_middles(moved, n_points) + borders) * 0.5
    sums = (below.mass + passed, below.first + passed * way, below.second + passed * way * way)
    masses, firsts, squares = (_between(part, end) for part, end in zip(sums, whole, strict=True))
    masses = g.Max(masses, np.array(0.0))
    filled = g.Max(masses, np.array(1e-12))
    means = g.where(masses > 1e-12, firsts / filled, moved)
    variance = g.where(masses > 1e-12, squares / filled - means * means, 0.0)
    return means, masses, g.Sqrt(g.Max(variance, np.array(0.0)))


def _middles(points: Value, n_points: int) -> Value:
    return (points.part(1, n_points) + points.part(0, n_points - 1)) * 0.5


def _between(upto: Value, whole: Value) -> Value:
    """Return integrals over the cells [rows, cells] from those up to the borders between them."""
    g = upto.graph
    return g.join(upto, whole, axis=1) - g.join(whole * 0.0, upto, axis=1)


def _starts(k: LineKernels, quickly: Callable[[Value], Below], whole: Whole, n_points: int) -> Value:
    """Return the means of the groups that minimize the squared distance of the mass to its group's mean, and others.

    These are [rows, starts * points]. Candidate borders lie between atoms of the kernels, with the asymptotic density
    of the best points.
    """
    g = k.centres.graph
    n_groups = max(_GROUPS, 4 * n_points)
    below = quickly(_borders(k, n_groups))
    sums = []
    for upto, end in zip((below.mass, below.first, below.second), whole, strict=True):
        to, none = g.join(upto, end, axis=1), end * 0.0
        sums.append(to.more(1) - g.join(none, upto, axis=1).more(2))
    mass, first, second = sums
    later = np.arange(n_groups)[None] < np.arange(n_groups)[:, None]
    mean = first / g.Max(mass, np.array(1e-30))
    cost = g.where(g.constant(later[None]), np.inf, g.Max(second - first * mean, np.array(0.0)))
    ends = groupings(g, cost.to(np.float32), n_points, n_groups, STARTS)
    begins = g.join(ends.part(0, 1) * 0, ends.part(0, n_points - 1), axis=2)
    places = (begins * n_groups + ends - 1).shaped(0, STARTS * n_points)
    made: Value = g.GatherElements(mean.shaped(0, -1), places, axis=1)
    return made


def _borders(k: LineKernels, n_groups: int) -> Value:
    """Return candidate borders [rows, groups - 1]."""
    g = k.centres.graph
    steps, heights = _normal_atoms(max(_ATOMS, 3 * n_groups // k.n | 1))
    n = k.n * len(steps)
    x, order = g.sorted((k.centres.more(2) + k.widths.more(2) * steps).shaped(0, n), n)
    masses = g.GatherElements((k.shares.more(2) * heights).shaped(0, n), order, axis=1)
    gaps = x.part(1, n) - x.part(0, n - 1)
    parts = g.Pow(masses.part(0, n - 1) * gaps * gaps, np.array(1 / 3))
    for _ in range(_CUTS):  # a gap needs one border only
        parts = g.Min(parts, parts.sum(keep=True) * (1 / n_groups))
    spread = g.CumSum(parts, np.array(1))
    wanted = spread.part(n - 2, n - 1) * (np.arange(1, n_groups) / n_groups)
    place = (spread.more(1) < wanted.more(2)).to(np.float32).sum()  # [rows, borders], the last atom before each
    made: Value = g.GatherElements(x.part(0, n - 1) + gaps * 0.5, place.to(np.int64), axis=1)
    return made


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
    return _before(g, cost, n_runs, n_items)[1]


def _before(g: Graph, cost: Value, n_runs: int, n_items: int) -> tuple[list[Value], list[Value]]:
    """Return the lowest costs of 1, 2, ... runs that end with each item, and where the last of them starts."""
    costs = [cost.part(0, 1, 1).shaped(0, -1)]
    starts = [g.rows(np.zeros((1, n_items), dtype=np.int64), costs[0])]
    none = g.rows(np.full((1, 1), np.inf, cost.dtype), cost)
    for _ in range(n_runs - 1):
        together = g.join(none, costs[-1].part(0, n_items - 1), axis=1).more(2) + cost
        starts.append(g.ArgMin(together, axis=1, keepdims=0))
        costs.append(g.ReduceMin(together, np.array([1]), keepdims=0))
    return costs, starts


def _after(g: Graph, cost: Value, n_runs: int, n_items: int) -> tuple[list[Value], list[Value]]:
    """Return the lowest costs of 1, 2, ... runs that begin with each item, and where the first of them stops."""
    costs = [cost.part(n_items - 1, n_items, 2).shaped(0, -1)]
    stops = [g.rows(np.full((1, n_items), n_items - 1, dtype=np.int64), costs[0])]
    none = g.rows(np.full((1, 1), np.inf, cost.dtype), cost)
    for _ in range(n_runs - 1):
        together = g.join(costs[-1].part(1, n_items), none, axis=1).more(1) + cost
        stops.append(g.ArgMin(together, axis=2, keepdims=0))
        costs.append(g.ReduceMin(together, np.array([2]), keepdims=0))
    return costs, stops


def groupings(g: Graph, cost: Value, n_runs: int, n_items: int, n_found: int) -> Value:
    """Return the best split of items into runs, then others, as the ends of runs (exclusive), [rows, found, runs].

    Each has one end of a run that is lower in cost than its neighbors, with all other ends chosen for it.

    Args:
        g: the graph.
        cost: [rows, starts, ends], as for `runs`.
        n_runs: the number of runs, at least 2.
        n_items: the number of items.
        n_found: the number of splits; where there are fewer, some are repeated.
    """
    costs, starts = _before(g, cost, n_runs - 1, n_items)
    rest, stops = _after(g, cost, n_runs - 1, n_items)
    walls = g.rows(np.full((1, n_runs - 1, 1), np.inf, cost.dtype), cost)
    pairs = zip(costs, reversed(rest), strict=True)
    sums = [(low.part(0, n_items - 1) + high.part(1, n_items)).more(1) for low, high in pairs]
    split = g.join(*sums, axis=1)  # [rows, runs - 1, ends - 1]
    left = g.join(walls, split.part(0, n_items - 2), axis=2)
    right = g.join(split.part(1, n_items - 1), walls, axis=2)
    lowest = g.where((split <= left) & (split < right), split, np.inf).shaped(0, (n_runs - 1) * (n_items - 1))
    run, end = _distinct(g, lowest, n_items - 1, n_found * (n_runs - 1), n_found)
    return _traced(g, [g.join(*each, axis=1) for each in (starts, stops)], run + 1, end + 1, n_runs, n_items)


def _distinct(g: Graph, costs: Value, n_ends: int, n_lowest: int, n_found: int) -> tuple[Value, Value]:
    """Return runs and ends, [rows, found] each, of the lowest of costs [rows, runs * ends].

    A split has the same cost for each of its runs, and counts once. Different ends of a run are different splits.
    """
    low, place = g.sorted(costs, n_lowest)
    run = g.Div(place, np.array(n_ends))
    known = g.Not(low.more(1) * (1 + 1e-6) < low.more(2)) & ~g.Equal(run.more(1), run.more(2))
    earlier = np.arange(n_lowest) < np.arange(n_lowest)[:, None]  # [later, earlier]
    again = (known & g.constant(earlier)).to(np.float32).sum() > 0.5
    _, chosen = g.sorted(g.where(again, n_lowest * 1.0, g.constant(np.arange(n_lowest, dtype=np.float32))), n_found)
    run, place = (g.GatherElements(each, chosen, axis=1) for each in (run, place))
    return run, place - run * n_ends


def _traced(g: Graph, tables: list[Value], run: Value, end: Value, n_runs: int, n_items: int) -> Value:
    """Return the ends [rows, n, runs] of the best runs of which `run` end before item `end`, [rows, n] each."""
    starts, stops = tables  # [rows, runs * items]
    ends, here, n_left = [end], end, run
    for _ in range(n_runs - 2):  # to the left; 0 where there are no more runs
        place = g.Max((n_left - 1) * n_items + here - 1, np.array(0))
        here = g.where(n_left > 1, g.GatherElements(starts, place, axis=1), 0)
        n_left = n_left - 1
        ends.append(here)
    here, n_left = end, n_runs - run
    for _ in range(n_runs - 1):  # to the right; the number of items where there are no more
        place = g.Max((n_left - 1) * n_items + g.Min(here, np.array(n_items - 1)), np.array(0))
        here = g.where(n_left > 0, g.GatherElements(stops, place, axis=1) + 1, n_items)
        n_left = n_left - 1
        ends.append(here)
    increasing, _ = g.sorted(g.join(*(each.more(2) for each in ends), axis=2), 2 * n_runs - 2)
    made: Value = g.GatherElements(increasing, (n_runs - 1 - run).more(2) + np.arange(n_runs), axis=2)
    return made


def _moments(k: LineKernels) -> tuple[Value, Value, Value]:
    return k.shares * 0.0 + 1.0, k.centres, k.centres * k.centres + k.widths * k.widths


def _quickly(k: LineKernels) -> Callable[[Value], Below]:
    """Return integrals with single-precision functions, whose errors amount to slightly changed weights of kernels."""
    g = k.centres.graph
    per_width, reach = 1.0 / k.widths, k.shares * k.widths * (1 / math.sqrt(2 * math.pi))
    halves = [k.shares * each * 0.5 for each in _moments(k)]  # factors of the error function, and beside it
    bells = [-reach, -reach * k.centres, reach * per_width * per_width]
    below, near = (g.join(*(part.more(2) for part in parts), axis=2) for parts in (halves, bells))
    middle = [half.sum(keep=True) for half in halves]

    def integrals(borders: Value) -> Below:
        z = ((borders.more(2) - k.centres.more(1)) * per_width.more(1)).to(np.float32)
        # Sums are in double precision: those of a narrow cell are differences of large ones.
        products = g.Erf(z * math.sqrt(0.5)).to(np.float64) @ below, g.Exp(z * z * -0.5).to(np.float64) @ near
        parts = [g.Gather(each, np.array(at), axis=2) for each in products for at in range(3)]
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


def _lloyd(points: Value, below: Below, whole: Whole) -> Value:
    """Return the means of the cells; a cell without mass keeps its point."""
    g = points.graph
    masses, sums = _between(below.mass, whole.mass), _between(below.first, whole.first)
    return g.where(masses > 1e-12, sums / g.Max(masses, np.array(1e-12)), points)


def _newton(points: Value, below: Below, whole: Whole, n: int, *, damped: bool) -> Value:
    """Return the points after a step of Newton's method, as in the compiled loops.

    Far from a minimum, that is a part of a step downhill if `damped`, and otherwise the means of the cells.
    """
    g = points.graph
    means, filled = _lloyd(points, below, whole), g.Max(_between(below.mass, whole.mass), np.array(1e-12))
    borders, none = _middles(points, n), whole.mass * 0.0
    # The derivative of a cell's mean by both neighbors: a border moves by half of a neighbor's step.
    rights = below.height * (borders - means.part(0, n - 1)) / filled.part(0, n - 1) * 0.5
    lefts = below.height * (means.part(1, n) - borders) / filled.part(1, n) * 0.5
    steps, sound = _tridiagonal(g.join(none, lefts, axis=1), g.join(rights, none, axis=1), means - points, n)
    gaps = points.part(1, n) - points.part(0, n - 1)
    far = none + 1e300
    room = g.Min(g.join(far, gaps, axis=1), g.join(gaps, far, axis=1)) * 0.4
    most = -((g.Abs(steps) / g.Max(room, np.array(1e-300))).max(keep=True))
    share = g.Min(g.where(sound, 1.0 + none, 0.9), -1.0 / g.Min(most, np.array(-1e-300)))  # keeps the order of points
    if damped:
        return g.where(share > 0.0, points + steps * share, means)
    return g.where(share >= 1.0, points + steps, means)


def _tridiagonal(left: Value, right: Value, target: Value, n: int) -> tuple[Value, Value]:
    """Return the solution of (1 - left - right) x - left x_before - right x_after = target, and whether it is sound.

    If it is not sound, pivots are replaced so that the solution leads downhill.
    """
    g = left.graph
    parts = (left, right, 1.0 - left - right, target)
    columns = zip(*(g.Split(part, axis=1, num_outputs=n, n_outputs=n) for part in parts), strict=True)
    solved: list[Value] = []
    factors: list[Value] = []
    pivots: list[Value] = []
    for at, (low, high, own, wanted) in enumerate(columns):
        pivots.append(own - low * factors[-1] if at else own)
        pivot = g.where(pivots[-1] > _LEAST_PIVOT, pivots[-1], g.Max(-pivots[-1], np.array(0.1)))
        factors.append(high / pivot)
        solved.append((wanted + low * solved[-1] if at else wanted) / pivot)
    for at in reversed(range(n - 1)):
        solved[at] = solved[at] + factors[at] * solved[at + 1]
    return g.join(*solved, axis=1), g.Min(*pivots) > _LEAST_PIVOT
