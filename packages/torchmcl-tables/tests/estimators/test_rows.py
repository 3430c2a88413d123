"""Order, copies, weights and groups of rows, and the split into shares."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmcl_tables.estimators.rows import fixed_borders, n_calibrating, split_rows, units_of


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=(n, 1))


def split(X, y, weights=None, *, share=0.1, seed=0, **options):
    return split_rows(X, y, weights, selecting=share, calibrating=share, seed=seed, **options)


def assert_same(left, right):
    for a, b in zip(left[:3], right[:3], strict=True):
        np.testing.assert_array_equal(a.inputs, b.inputs)
        np.testing.assert_array_equal(a.targets, b.targets)
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.units, b.units)


@given(n=st.integers(2, 60), share=st.floats(0, 0.45), seed=st.integers(0, 5))
def test_shares_are_disjoint_and_hold_every_row(n, share, seed):
    X, y = table(n)
    parts = split(X, y, share=share, seed=seed)
    together = np.concatenate([part.inputs for part in parts[:3]])
    assert sorted(map(tuple, together)) == sorted(map(tuple, X))
    assert len(parts.train) >= 1
    assert len(parts.calibration) == pytest.approx(n_calibrating(n, share), abs=1.01)
    assert len(parts.selection) == pytest.approx(share * n, abs=1.01)


@given(seed=st.integers(0, 20))
def test_order_of_the_rows_does_not_matter(seed):
    X, y = table(40)
    order = np.random.default_rng(seed).permutation(40)
    assert_same(split(X, y), split(X[order], y[order]))


@given(weights=st.lists(st.integers(0, 4), min_size=12, max_size=12).filter(any))
def test_integer_weights_are_copies(weights):
    X, y = table(12)
    counts = np.array(weights)
    assert_same(split(X, y, counts.astype(float)), split(X.repeat(counts, axis=0), y.repeat(counts, axis=0)))


@given(factor=st.floats(1e-6, 1e6), seed=st.integers(0, 5))
def test_weights_times_a_constant_are_the_same_weights(factor, seed):
    X, y = table(100)
    weights = np.random.default_rng(seed).uniform(0, 2, size=100)
    assert_same(split(X, y, weights), split(X, y, factor * weights))


@given(weights=st.lists(st.integers(1, 9), min_size=30, max_size=30), seed=st.integers(0, 5))
def test_copies_of_a_row_are_in_one_share(weights, seed):
    X, y = table(30)
    parts = split(X, y, np.array(weights, dtype=float), share=0.2, seed=seed)
    assert [len(part) for part in parts[:3]] == [18, 6, 6]  # by the number of rows, whatever they weigh


def test_a_table_of_two_different_rows_is_all_for_training():
    X = np.repeat([[0.0], [1.0]], 500, axis=0)
    assert [len(part) for part in split(X, X)[:3]] == [2, 0, 0]


@pytest.mark.parametrize("label", ["{}", "group {}"])
def test_rows_of_a_group_are_in_one_share(label):
    X, y = table(120)
    number = np.repeat(np.arange(30), 4)
    parts = split(X, y, groups=np.array([label.format(each) for each in number]), share=0.2)
    of_row = dict(zip(map(tuple, X), number, strict=True))
    members = [{of_row[tuple(row)] for row in part.inputs} for part in parts[:3]]
    assert [len(each) for each in members] == [18, 6, 6]
    assert len(set.union(*members)) == 30
    assert all(len(np.unique(part.units)) == len(each) for part, each in zip(parts[:3], members, strict=True))


def test_groups_that_share_a_row_are_one():
    X, y = table(40)
    X[1], y[1] = X[0], y[0]  # the groups 0 and 1 have it both
    groups = np.arange(40) // 2
    groups[:2] = [0, 1]
    parts = split(X, y, groups=np.r_[0, 1, 0, 1, groups[4:]], share=0.25)
    together = next(part for part in parts[:3] if (part.inputs == X[0]).all(axis=1).any())
    assert all((together.inputs == X[row]).all(axis=1).any() for row in (0, 2, 3))
    assert sum(len(np.unique(part.units)) for part in parts[:3]) == 19


def test_labels_of_groups_do_not_matter_and_rows_alone_are_no_groups():
    X, y = table(60)
    groups = np.arange(60) // 3
    assert_same(split(X, y, groups=groups), split(X, y, groups=1000.5 - groups))
    assert_same(split(X, y), split(X, y, groups=np.arange(60)))


def test_zero_and_minus_zero_are_the_same_row():
    X, y = np.array([[0.0], [-0.0], [1.0]]), np.array([[1.0], [1.0], [2.0]])
    assert len(split(X, y, share=0.0).train) == 2


def test_90_percent_is_a_step_of_the_quantile_of_the_rows_that_calibrate():
    assert [n_calibrating(n, 0.05) for n in (0, 10, 53, 54, 120, 300, 600, 2000)] == [0, 1, 8, 9, 19, 19, 29, 99]
    assert n_calibrating(1000, 0.0) == 0
    assert n_calibrating(10**6, 0.05) == 4999


def test_large_tables_hold_out_no_more_than_needed():
    X, y = table(200_000)
    assert [len(part) for part in split(X, y)[:3]] == [185_001, 10_000, 4_999]


@pytest.mark.parametrize("fixed", [False, True])
def test_the_borders_of_a_split_put_any_part_of_the_rows_into_the_same_shares(fixed):
    X, y = table(200)
    borders = fixed_borders(selecting=0.1, calibrating=0.1) if fixed else split(X, y).borders
    whole = split_rows(X, y, None, seed=0, borders=borders)
    part = split_rows(X[50:90], y[50:90], None, seed=0, borders=borders)
    assert sum(map(len, part[:3])) == 40
    for some, all_rows in zip(part[:3], whole[:3], strict=True):
        assert set(map(tuple, some.inputs)) <= set(map(tuple, all_rows.inputs))
    assert 10 < len(whole.calibration) < 35


# ---------------------------------------------------------------------- coarse tables


def coarse(n=600, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 3, size=(n, 2)).astype(float)
    return X, (rng.uniform(size=(n, 1)) < 0.2 + 0.3 * X[:, :1]).astype(float)


def test_rows_of_a_coarse_table_are_split_one_by_one():
    X, y = coarse()
    parts = split(X, y, share=0.2)
    assert [len(part) for part in parts[:3]] == [361, 120, 119]
    for part in parts[:3]:
        assert len(np.unique(np.c_[part.inputs, part.targets], axis=0)) >= 17  # each holds about every kind of row
        assert not part.in_groups
        np.testing.assert_array_equal(part.weights, 1)


def test_order_weights_and_copies_of_a_coarse_table_do_not_matter():
    X, y = coarse()
    rows, counts = np.unique(np.c_[X, y], axis=0, return_counts=True)
    whole = split(X, y)
    assert_same(whole, split(X[::-1], y[::-1]))
    assert_same(whole, split(rows[:, :2], rows[:, 2:], 0.7 * counts))  # the table as one of frequencies
    assert_same(whole, split(X.repeat(2, axis=0), y.repeat(2, axis=0)))
    assert_same(whole, split(X, y, np.full(len(X), 5.0)))


def test_other_weights_of_a_coarse_table_keep_the_weight_of_each_kind_of_row():
    X, y = coarse()
    weights = np.random.default_rng(0).uniform(0.1, 3, size=len(X))
    parts = split(X, y, weights)
    assert sum(map(len, parts[:3])) == len(X)
    found = sum((part.weights * (part.inputs[:, 0] == 1)).sum() for part in parts[:3]) * parts.largest
    assert found == pytest.approx(weights[X[:, 0] == 1].sum(), rel=1e-5)


def test_frequencies_of_millions_are_so_many_rows_as_settle_anything():
    X, y = coarse()
    rows, counts = np.unique(np.c_[X, y], axis=0, return_counts=True)
    parts = split(rows[:, :2], rows[:, 2:], 10_000.0 * counts + np.arange(18))
    assert 90_000 < sum(map(len, parts[:3])) <= 100_000


def test_factors_of_weights_are_no_numbers_of_rows():
    X, y = coarse()
    parts = split(X, y, factors=np.where(y[:, 0] == 1, 3.0, 1.0))
    assert sum(map(len, parts[:3])) == len(X)
    np.testing.assert_allclose(parts.train.weights, np.where(parts.train.targets[:, 0] == 1, 1, 1 / 3), rtol=1e-6)


def test_groups_of_a_coarse_table_stay_apart():
    X, y = coarse()
    parts = split(X, y, groups=np.arange(600) // 10, share=0.2)
    assert [len(np.unique(part.units)) for part in parts[:3]] == [39, 12, 9]
    assert sum(part.weights.sum() for part in parts[:3]) * parts.largest == pytest.approx(600)


def test_large_groups_are_held_out_as_often_as_small_ones():
    X, y = table(440)
    groups = np.r_[np.arange(40), 40 + np.arange(400) // 10]  # 40 of one row, 40 of ten
    n_large = 0
    for seed in range(40):
        held = split(X, y, groups=groups, share=0.2, seed=seed).calibration
        n_large += (np.unique(held.units, return_counts=True)[1] == 10).sum()
    assert 0.4 < n_large / (40 * n_calibrating(80, 0.2)) < 0.6


def test_units_of_rows_join_copies_and_nothing_else():
    X, y = table(30)
    units = units_of(X.repeat(2, axis=0), y.repeat(2, axis=0))
    assert (units[::2] == units[1::2]).all()
    assert len(np.unique(units)) == 30
    assert len(np.unique(units_of(*coarse()))) == 600


def test_equal_rows_of_fine_and_of_rounded_tables_are_copies():
    rng = np.random.default_rng(0)
    tables_of_copies = {
        "fine": rng.normal(size=(200, 3)),
        "one fine column": np.c_[rng.integers(0, 2, size=(200, 3)), rng.normal(size=200)],
        "rounded": rng.normal(size=(200, 8)).round(1),
    }
    for name, rows in tables_of_copies.items():
        drawn = rows[rng.integers(200, size=200)]
        units = units_of(drawn[:, :-1], drawn[:, -1:])
        assert len(np.unique(units)) == len(np.unique(drawn, axis=0)), name
