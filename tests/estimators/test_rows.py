"""Order, copies and weights of rows, and the split into shares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmcl.estimators._rows import split_rows


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=(n, 1))


def split(X, y, weights=None, *, share=0.1, seed=0, strata=None):
    return split_rows(X, y, weights, selecting=share, calibrating=share, seed=seed, strata=strata)


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a.inputs, b.inputs)
        np.testing.assert_array_equal(a.targets, b.targets)
        np.testing.assert_array_equal(a.weights, b.weights)


@given(n=st.integers(2, 60), share=st.floats(0, 0.45), seed=st.integers(0, 5))
def test_shares_are_disjoint_and_hold_every_row(n, share, seed):
    X, y = table(n)
    parts = split(X, y, share=share, seed=seed)
    together = np.concatenate([part.inputs for part in parts])
    assert sorted(map(tuple, together)) == sorted(map(tuple, X))
    assert len(parts.train) >= 1
    assert [len(parts.selection), len(parts.calibration)] == pytest.approx([share * n, share * n], abs=1.01)


@given(seed=st.integers(0, 20))
def test_order_of_the_rows_does_not_matter(seed):
    X, y = table(40)
    order = np.random.default_rng(seed).permutation(40)
    assert_same(split(X, y), split(X[order], y[order]))


@given(weights=st.lists(st.integers(0, 4), min_size=12, max_size=12).filter(any))
def test_whole_weights_are_copies(weights):
    X, y = table(12)
    counts = np.array(weights)
    assert_same(split(X, y, counts.astype(float)), split(X.repeat(counts, axis=0), y.repeat(counts, axis=0)))


def test_copies_of_a_row_are_dealt_one_by_one():
    # A table of two different rows only must still have all three shares, in the right proportion.
    X, y = np.repeat([[0.0], [1.0]], 500, axis=0), np.repeat([[0.0], [1.0]], 500, axis=0)
    parts = split(X, y)
    assert [part.weights.sum() for part in parts] == [800, 100, 100]
    assert all(len(part) == 2 for part in parts)


def test_large_weights_are_importance_not_copies():
    X, y = table(20)
    parts = split(X, y, np.full(20, 1e9))
    assert [len(part) for part in parts] == [16, 2, 2]


def test_another_seed_gives_another_split():
    X, y = table(40)
    assert not np.array_equal(split(X, y).train.inputs, split(X, y, seed=1).train.inputs)


def test_zero_and_minus_zero_are_the_same_row():
    X, y = np.array([[0.0], [-0.0], [1.0]]), np.array([[1.0], [1.0], [2.0]])
    assert len(split(X, y, share=0.0).train) == 2


def test_strata_are_split_alike():
    X, _ = table(100)
    strata = np.repeat([0, 1], [80, 20])
    parts = split(X, strata, strata=strata)
    assert [np.bincount(part.targets).tolist() for part in parts] == [[64, 16], [8, 2], [8, 2]]


def test_large_tables_hold_out_no_more_than_needed():
    X, y = table(200_000)
    assert [len(part) for part in split(X, y)] == [185_000, 10_000, 5_000]
