"""A forest as nodes of an ONNX graph."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.onnx.graph import Graph, Value


def at_leaves(g: Graph, inputs: Value, forest: Forest, held: NDArray[np.float64]) -> Value:
    """Return the numbers held by the leaf of each row in each tree, [rows, trees * held], in single precision.

    Args:
        g: the graph.
        inputs: [rows, columns], in single precision, without NaN.
        forest: the trees.
        held: [nodes, held]
    """
    ends = [*forest.roots[1:], len(forest.columns)]
    n_columns = int(forest.columns.max()) + 1
    used = inputs.part(0, n_columns)
    both = g.join(used, -used, axis=1)
    # One node per tree, which stays in the cache, takes half the time of one node for all trees.
    trees = [_tree(g, both, _Tree(forest, held, slice(*pair))) for pair in zip(forest.roots, ends, strict=True)]
    return g.join(*trees, axis=1)


class _Tree:
    """Arrays of a tree.

    A runtime steps to the next node in memory where a condition does not hold. Most rows should do so; where they would
    not, the node is turned: x > a means -x <= -b for the next number b after a. Leaves hold equally many rows.
    """

    def __init__(self, forest: Forest, held: NDArray[np.float64], nodes: slice) -> None:
        first = forest.children[nodes] - nodes.start
        self.places = np.arange(len(first))
        self.leaf = first == self.places
        self.held = held[nodes][self.leaf].astype(np.float32)
        second = np.where(self.leaf, first, first + 1)
        n_leaves = np.ones(len(first))
        for place in self.places[~self.leaf][::-1]:
            n_leaves[place] = n_leaves[first[place]] + n_leaves[second[place]]
        turned = n_leaves[first] > n_leaves[second]
        thresholds = np.where(self.leaf, 0.0, forest.thresholds[nodes]).astype(np.float32)
        self.thresholds = np.where(turned, -np.nextafter(thresholds, np.float32(np.inf)), thresholds)
        self.columns = forest.columns[nodes] + turned * (int(forest.columns.max()) + 1)
        self.true, self.false = np.where(turned, second, first), np.where(turned, first, second)


def _tree(g: Graph, inputs: Value, tree: _Tree) -> Value:
    """Return the numbers held by the leaves of a tree, [rows, held]; inputs are columns and their negatives."""
    n_leaves, n_held = tree.held.shape
    attributes: dict[str, Any] = {
        "n_targets": n_held,
        "nodes_treeids": [0] * len(tree.places),
        "nodes_nodeids": tree.places.tolist(),
        "nodes_featureids": tree.columns.tolist(),
        "nodes_values": tree.thresholds.tolist(),
        "nodes_modes": np.where(tree.leaf, "LEAF", "BRANCH_LEQ").tolist(),
        "nodes_truenodeids": np.where(tree.leaf, 0, tree.true).tolist(),
        "nodes_falsenodeids": np.where(tree.leaf, 0, tree.false).tolist(),
        "target_treeids": [0] * (n_leaves * n_held),
        "target_nodeids": tree.places[tree.leaf].repeat(n_held).tolist(),
        "target_ids": np.tile(np.arange(n_held), n_leaves).tolist(),
        "target_weights": tree.held.ravel().tolist(),
    }
    found: Value = g.TreeEnsembleRegressor(inputs, domain="ai.onnx.ml", **attributes)
    return found
