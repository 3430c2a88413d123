"""Forest of fully grown regression trees, stored as arrays."""

import ctypes
import math
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, c_int64, c_void_p
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor

from torchmcl_fleet import native
from torchmcl_tables.estimators.rows import check_numbers

#: Node of a tree: a row continues at `child`, or at the node after it if the column exceeds the threshold. A leaf is
#: its own child, with an infinite threshold.
NODE = np.dtype([("threshold", np.float32), ("column", np.int32), ("child", np.int32)])


class _Trees(Structure):
    _fields_ = (
        ("n_rows", c_int64),
        ("n_columns", c_int64),
        ("n_trees", c_int64),
        ("n_held", c_int64),
        ("rows", c_void_p),
        ("nodes", c_void_p),
        ("roots", c_void_p),
        ("depths", c_void_p),
        ("held", c_void_p),
        ("found", c_void_p),
    )


def at_leaves(
    rows: NDArray[np.float32],
    nodes: NDArray[np.void],
    roots: NDArray[np.int32],
    depths: NDArray[np.int32],
    held: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Look up the values stored at the leaf of each row in each tree, [rows, trees, held].

    Args:
        rows: Encoded rows without NaN, [rows, columns].
        nodes: Nodes of all trees, of type `NODE`; children must be indices of nodes, and columns indices of `rows`.
        roots: Root node of each tree, [trees].
        depths: Depth of the deepest leaf of each tree, [trees].
        held: Values stored at the nodes, [nodes, held].
    """
    rows, held = np.ascontiguousarray(rows, dtype=np.float32), np.ascontiguousarray(held, dtype=np.float64)
    if not native.available():
        return held.take(_level_by_level(rows, nodes, roots, int(depths.max(initial=0))), axis=0)
    leaves = np.empty((len(rows), len(roots), held.shape[1]))

    def part(start: int, stop: int) -> None:
        arrays = (rows[start:stop], nodes, roots, depths, held, leaves[start:stop])
        sizes = (stop - start, rows.shape[1], len(roots), held.shape[1])
        native.library().torchmcl_leaves(ctypes.byref(_Trees(*sizes, *(array.ctypes.data for array in arrays))))

    native.on_threads(part, len(rows))
    return leaves


def _level_by_level(
    rows: NDArray[np.float32], nodes: NDArray[np.void], roots: NDArray[np.int32], depth: int
) -> NDArray[np.int32]:
    at = np.repeat(roots[None], len(rows), axis=0)
    for _ in range(depth):
        values = np.take_along_axis(rows, nodes["column"][at].astype(np.int64), axis=1)
        at = nodes["child"][at] + (values > nodes["threshold"][at])
    return at.astype(np.int32)


# Each tree is trained on this fraction of the rows (the fraction of distinct rows in a bootstrap sample), but at most
# this many rows.
_FRACTION, _MAX_ROWS = 0.632, 20_000
# Dtype and number of dimensions of each array.
_KINDS: dict[str, tuple[type[Any], int]] = {
    **{"thresholds": (np.float32, 1), "columns": (np.int32, 1), "children": (np.int32, 1)},
    **{"roots": (np.int32, 1), "depths": (np.int32, 1), "values": (np.float64, 2), "spreads": (np.float64, 1)},
}
# Spread of a tree with a single node, which has no parent.
_NO_SPREAD = 0.0
_MOST_TREES = 1000


@dataclass(frozen=True)
class Forest:
    """Forest of fully grown trees, each fitted to a different subset of the rows.

    Attributes:
        thresholds: Threshold of each node, [nodes]; see `NODE`.
        columns: Column of each node, [nodes].
        children: First child of each node, [nodes].
        roots: Root node of each tree, [trees].
        depths: Depth of each tree, [trees].
        values: Mean of the rows of each node, [nodes, outputs].
        spreads: Spread of the rows of the parent node, root mean square over outputs, [nodes].
    """

    thresholds: NDArray[np.float32]
    columns: NDArray[np.int32]
    children: NDArray[np.int32]
    roots: NDArray[np.int32]
    depths: NDArray[np.int32]
    values: NDArray[np.float64]
    spreads: NDArray[np.float64]

    @classmethod
    def grown(
        cls,
        inputs: NDArray[np.float32],
        targets: NDArray[np.float64],
        weights: NDArray[np.float64],
        n_trees: int,
        seed: int,
        units: NDArray[np.int64] | None = None,
    ) -> "tuple[Forest, NDArray[np.bool_]]":
        """Fit a forest; also return a mask of the training rows of each tree, [rows, trees].

        Args:
            inputs: Encoded rows without NaN, [rows, columns].
            targets: Standardized targets, [rows, outputs].
            weights: Weight of each row, [rows].
            n_trees: Number of trees.
            seed: Seed for the rows of each tree.
            units: Labels of the rows, [rows]; a tree is trained on all rows with the same label or on none of them. By
                default each row is separate.
        """
        unit_of = np.arange(len(inputs)) if units is None else np.unique(units, return_inverse=True)[1].ravel()
        n_units = int(unit_of.max()) + 1
        n_seen = max(1, min(round(_FRACTION * n_units), _MAX_ROWS))
        seen = np.zeros((len(inputs), n_trees), dtype=bool)
        states = [np.random.RandomState((seed + tree) % 2**32) for tree in range(n_trees)]
        for tree, state in enumerate(states):
            seen[:, tree] = np.isin(unit_of, state.permutation(n_units)[:n_seen])

        def grow(tree: int) -> DecisionTreeRegressor:
            rows = np.flatnonzero(seen[:, tree])[:_MAX_ROWS]
            regressor = DecisionTreeRegressor(random_state=states[tree])
            return regressor.fit(inputs[rows], targets[rows], sample_weight=weights[rows])

        with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:  # scikit-learn releases the GIL
            trees = list(pool.map(grow, range(n_trees)))
        return cls._joined([_renumbered(tree.tree_) for tree in trees]), seen

    @classmethod
    def _joined(cls, trees: "list[Forest]") -> "Forest":
        """Concatenate the trees of several forests."""
        starts = np.cumsum([0, *(len(tree.columns) for tree in trees[:-1])])
        names = ("thresholds", "columns", "depths", "values", "spreads")
        parts = {name: np.concatenate([getattr(tree, name) for tree in trees]) for name in names}
        for name in ("children", "roots"):
            moved = [getattr(tree, name) + start for tree, start in zip(trees, starts, strict=True)]
            parts[name] = np.concatenate(moved).astype(np.int32)
        return cls(**parts)

    def __post_init__(self) -> None:
        """Check that all node indices are valid, because a file may come from an untrusted source."""
        for name, (kind, n_axes) in _KINDS.items():  # the C code reads memory without checks
            array = getattr(self, name)
            if array.dtype != kind or array.ndim != n_axes:
                raise ValueError(f"the {name} of a forest must have {n_axes} axes and the type {kind.__name__}")
        n_nodes = len(self.columns)
        lengths = {len(getattr(self, name)) for name in ("thresholds", "columns", "children", "values", "spreads")}
        if lengths != {n_nodes} or not len(self.roots) == len(self.depths) > 0:
            raise ValueError("the arrays of a forest have different lengths")
        leaf = self.children == np.arange(n_nodes)
        inner = self.children[~leaf]
        inside = ((inner >= 0) & (inner < n_nodes - 1)).all() and ((self.roots >= 0) & (self.roots < n_nodes)).all()
        shallow = ((self.depths >= 0) & (self.depths < n_nodes)).all()
        if not (inside and shallow and (self.columns >= 0).all() and np.isposinf(self.thresholds[leaf]).all()):
            raise ValueError("the nodes of a forest have invalid children, depths, columns or thresholds")
        if self.n_trees > _MOST_TREES:  # the memory per row is proportional to the number of trees
            raise ValueError(f"a forest must have at most {_MOST_TREES:,} trees, got {self.n_trees:,}")
        check_numbers("the values and spreads of a forest", np.append(self.values, self.spreads))

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.roots)

    @cached_property
    def _nodes(self) -> NDArray[np.void]:
        nodes = np.empty(len(self.columns), dtype=NODE)
        nodes["threshold"], nodes["column"], nodes["child"] = self.thresholds, self.columns, self.children
        return nodes

    def answers(self, inputs: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute the value, [rows, trees, outputs], and the spread, [rows, trees], of each tree for encoded rows."""
        leaves = self.at_leaves(inputs, np.concatenate([self.values, self.spreads[:, None]], axis=1))
        return leaves[..., :-1], leaves[..., -1]

    def at_leaves(self, inputs: NDArray[np.float32], held: NDArray[np.float64]) -> NDArray[np.float64]:
        """Look up the values, [nodes, held], at the leaf of each row in each tree, [rows, trees, held]."""
        if self.columns.max(initial=0) >= inputs.shape[1]:
            raise ValueError("the nodes of a forest require more columns than the rows have")
        return at_leaves(inputs, self._nodes, self.roots, self.depths, held)


def _renumbered(tree: Any) -> Forest:
    """Convert a scikit-learn tree to a forest in which the two children of each node are adjacent."""
    left, right = tree.children_left, tree.children_right
    order, level, depth = [np.zeros(1, dtype=np.int64)], np.zeros(1, dtype=np.int64), -1
    while len(level):
        inner = level[left[level] >= 0]
        level = np.stack([left[inner], right[inner]], axis=1).ravel()
        order.append(level)
        depth += 1
    places = np.concatenate(order)
    place_of = np.empty(len(places), dtype=np.int64)
    place_of[places] = np.arange(len(places))
    leaf = left[places] < 0
    children = np.where(leaf, np.arange(len(places)), place_of[left[places]])
    parent = np.zeros(len(places), dtype=np.int64)
    parent[children[~leaf]] = parent[children[~leaf] + 1] = np.flatnonzero(~leaf)
    return Forest(
        np.where(leaf, np.inf, _not_above(tree.threshold[places])).astype(np.float32),
        np.where(leaf, 0, tree.feature[places]).astype(np.int32),
        children.astype(np.int32),
        np.zeros(1, dtype=np.int32),
        np.array([depth], dtype=np.int32),
        tree.value[places, :, 0].astype(np.float64),
        np.sqrt(np.maximum(tree.impurity[places], 0))[parent] if len(places) > 1 else np.full(1, _NO_SPREAD),
    )


def _not_above(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round thresholds down to single precision, so that they split single-precision values in the same way."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-math.inf)), rounded)


# Minimum number of rows that are averaged in a leaf.
_FEWEST_ROWS = 5


def blurred(forest: Forest) -> Forest:
    """Replace the mean and spread of each leaf by those of its nearest ancestor with enough rows.

    Example:
        >>> rows = np.arange(9, dtype=np.float32)[:, None]
        >>> tree, _ = Forest.grown(rows, rows.astype(np.float64), np.ones(9), 1, 0)
        >>> tree.answers(rows[:3])[0].ravel(), blurred(tree).answers(rows[:3])[0].ravel().round(2)
        (array([1., 1., 2.]), array([4.67, 4.67, 4.67]))
    """
    n_nodes = len(forest.children)
    places = np.arange(n_nodes)
    inner = forest.children != places
    parents = np.full(n_nodes, -1)
    parents[forest.children[inner]] = parents[forest.children[inner] + 1] = places[inner]
    n_leaves = np.where(inner, 0, 1)
    for node in places[::-1]:  # children come after their parents
        if parents[node] >= 0:
            n_leaves[parents[node]] += n_leaves[node]
    source = places.copy()
    for node in places:
        if n_leaves[node] < _FEWEST_ROWS and parents[node] >= 0:
            source[node] = source[parents[node]]
    # A node stores the spread of the rows of its parent; the spread of `source` is therefore stored at its children.
    spreads = np.where(source == places, forest.spreads, forest.spreads[forest.children[source]])
    values = np.where(inner[:, None], 0.0, forest.values[source])  # only leaves have values
    return replace(forest, values=values, spreads=np.where(inner, 0.0, spreads))
