"""The forest of a blend: scikit-learn's trees as arrays, in C and in NumPy, and what a file may not make of it."""

from dataclasses import fields, replace

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from torchmcl_tables.estimators.forest import Forest, _level_by_level


def table(n_rows=200, n_columns=3, n_outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_columns)).astype(np.float32)
    rows[:, 0] = rng.integers(0, 5, size=n_rows)  # values that repeat
    return rows, rng.normal(size=(n_rows, n_outputs)), rng.uniform(0.1, 2, size=n_rows)


@pytest.fixture(scope="module")
def grown():
    rows, targets, weights = table()
    forest, seen = Forest.grown(rows, targets, weights, n_trees=7, seed=3)
    return forest, seen


def as_scikit_learn_grows(rows, targets, weights, seen, seed):
    for tree in range(seen.shape[1]):
        state = np.random.RandomState(seed + tree)
        state.permutation(len(rows))
        own = np.flatnonzero(seen[:, tree])
        yield DecisionTreeRegressor(random_state=state).fit(rows[own], targets[own], sample_weight=weights[own])


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_answers_are_those_of_scikit_learns_trees(n_outputs):
    rows, targets, weights = table(n_outputs=n_outputs)
    forest, seen = Forest.grown(rows, targets, weights, n_trees=4, seed=1)
    asked, _, _ = table(seed=1)
    asked[:50] = rows[:50]
    values, spreads = forest.answers(asked)
    assert values.shape == (200, 4, n_outputs)
    for tree, model in enumerate(as_scikit_learn_grows(rows, targets, weights, seen, 1)):
        np.testing.assert_array_equal(values[:, tree], model.predict(asked).reshape(200, n_outputs))
        nodes, leaves = model.tree_, model.apply(asked)
        parents = {
            int(child): i
            for i in range(nodes.node_count)
            for child in (nodes.children_left[i], nodes.children_right[i])
        }
        expected = [np.sqrt(max(0.0, nodes.impurity[parents[int(leaf)]])) for leaf in leaves]
        np.testing.assert_array_equal(spreads[:, tree], expected)


def test_thresholds_between_two_neighboring_numbers_part_them():
    low = np.float32(1e5)
    high = np.nextafter(low, np.float32(np.inf))
    rows = np.array([[low], [high]] * 4)
    targets = np.array([[0.0], [1.0]] * 4)
    forest, _ = Forest.grown(rows, targets, np.ones(8), n_trees=5, seed=0)
    np.testing.assert_array_equal(forest.answers(rows)[0][..., 0], targets.repeat(5, axis=1))


def test_each_tree_sees_the_share_of_a_bootstrap_sample(grown):
    _, seen = grown
    assert seen.shape == (200, 7)
    assert (seen.sum(axis=0) == 126).all()
    assert len({tuple(column) for column in seen.T}) == 7


def test_a_tree_sees_all_rows_of_a_group_or_none():
    rows, targets, weights = table()
    groups = np.arange(200) // 4 + 7
    forest, seen = Forest.grown(rows, targets, weights, n_trees=5, seed=0, units=groups)
    assert (seen.reshape(50, 4, 5) == seen.reshape(50, 4, 5)[:, :1]).all()
    assert (seen.sum(axis=0) == 4 * 32).all()
    assert forest.n_trees == 5


def test_same_seed_same_forest_and_other_seed_other_forest(grown):
    again, _ = Forest.grown(*table(), n_trees=7, seed=3)
    other, _ = Forest.grown(*table(), n_trees=7, seed=4)
    for field in fields(Forest):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(grown[0], field.name))
    assert not np.array_equal(other.thresholds, again.thresholds)


@pytest.mark.parametrize("n_rows", [0, 1, 7, 1025, 3000])
def test_c_and_numpy_find_the_same_leaves(grown, n_rows):
    forest, _ = grown
    rows, _, _ = table(n_rows, seed=5)
    if n_rows:
        rows[0] = np.inf, -np.inf, np.float32(3e38)
    leaves = _level_by_level(rows, forest._nodes, forest.roots, int(forest.depths.max()))
    np.testing.assert_array_equal(forest.answers(rows)[0], forest.values[leaves])


def test_a_single_row_makes_a_tree_of_one_leaf():
    forest, _ = Forest.grown(np.zeros((1, 2), np.float32), np.ones((1, 1)), np.ones(1), n_trees=2, seed=0)
    values, spreads = forest.answers(np.ones((3, 2), np.float32))
    assert (values == 1).all()
    assert (spreads == 0).all()


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


FORGED = {
    "a child behind the last node": lambda f: {"children": changed(f.children, 0, len(f.columns) - 1)},
    "a child before the first node": lambda f: {"children": changed(f.children, 0, -1)},
    "a root behind the last node": lambda f: {"roots": changed(f.roots, 0, len(f.columns))},
    "a root before the first node": lambda f: {"roots": changed(f.roots, 0, -1)},
    "a column before the first": lambda f: {"columns": changed(f.columns, 0, -1)},
    "a leaf that can be left": lambda f: {"thresholds": np.zeros_like(f.thresholds)},
    "a leaf with a threshold of NaN": lambda f: {"thresholds": np.full_like(f.thresholds, np.nan)},
    "a way without an end": lambda f: {"depths": changed(f.depths, 0, 2**31 - 1)},
    "a negative depth": lambda f: {"depths": changed(f.depths, 0, -1)},
    "fewer spreads than nodes": lambda f: {"spreads": f.spreads[:-1]},
    "fewer depths than roots": lambda f: {"depths": f.depths[:-1]},
    "no trees": lambda f: {"roots": f.roots[:0], "depths": f.depths[:0]},
    "roots of one byte": lambda f: {"roots": f.roots.astype(np.int8)},
    "depths that are fractions": lambda f: {"depths": f.depths.astype(np.float32)},
    "children of eight bytes": lambda f: {"children": f.children.astype(np.int64)},
    "values in one column too few": lambda f: {"values": f.values[:, 0]},
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_forest_is_refused(grown, forge):
    with pytest.raises(ValueError, match="of a forest"):
        replace(grown[0], **forge(grown[0]))


def test_a_forest_that_asks_for_further_columns_is_refused(grown):
    with pytest.raises(ValueError, match="require more columns than the rows have"):
        grown[0].answers(np.zeros((2, 1), np.float32))
