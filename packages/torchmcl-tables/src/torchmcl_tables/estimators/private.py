"""Forests with means of several rows in their leaves, for people who may not see single rows."""

from dataclasses import replace

import numpy as np

from torchmcl_tables.estimators.forest import Forest

__all__ = ["blurred"]

# A leaf answers with the mean of at least so many rows.
_FEWEST_ROWS = 5


def blurred(forest: Forest) -> Forest:
    """Return a forest with the mean and spread of the nearest ancestor with enough rows in each leaf.

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
    for node in places[::-1]:  # children stand behind their parents
        if parents[node] >= 0:
            n_leaves[parents[node]] += n_leaves[node]
    source = places.copy()
    for node in places:
        if n_leaves[node] < _FEWEST_ROWS and parents[node] >= 0:
            source[node] = source[parents[node]]
    # The spread of a node is that of its parent's rows: of the node above with enough rows, that of its children.
    spreads = np.where(source == places, forest.spreads, forest.spreads[forest.children[source]])
    values = np.where(inner[:, None], 0.0, forest.values[source])  # only leaves answer
    return replace(forest, values=values, spreads=np.where(inner, 0.0, spreads))
