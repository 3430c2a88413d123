"""Equal rows are copies, or rows of a coarse table that coincide by chance."""

import numpy as np
import pytest

from torchmcl_tables.estimators.copies import coincide_by_chance

N = 600


def judged(table):
    """Return the share of the further rows that are taken for chance."""
    rows, counts = np.unique(table, axis=0, return_counts=True)
    by_chance = coincide_by_chance(rows.T, counts)
    return (counts - 1)[by_chance].sum() / max(1, (counts - 1).sum())


def one_hot(codes):
    return (codes[:, None] == np.arange(codes.max() + 1)).astype(float)


def coin(rng):
    return rng.integers(0, 2, size=(N, 2))


def levels(rng):
    return np.c_[one_hot(rng.integers(0, 12, size=N)), rng.poisson(2, size=N)]


def survey(rng):
    attitude = rng.normal(size=(N, 1))
    return np.clip(np.round(3 + attitude + 0.5 * rng.normal(size=(N, 6))), 1, 5)


def derived(rng):
    two = rng.integers(0, 8, size=(N, 2))
    return np.c_[two, two.sum(axis=1), two**2]  # what follows from other columns makes no row rarer


def certain(rng):
    level = rng.integers(0, 12, size=N)
    return np.c_[one_hot(level), 1.5 * level]


def missing(rng):
    table = coin(rng).astype(float)
    return np.where(rng.uniform(size=table.shape) < 0.2, np.nan, table)


def fine(rng):
    return rng.normal(size=(N, 4))


def classes(rng):
    return np.c_[rng.normal(size=(N, 2)), rng.integers(0, 2, size=N)]


def one_fine_column(rng):
    return np.c_[rng.integers(0, 2, size=(N, 6)), rng.normal(size=N)]


def design(rng):
    return np.c_[rng.integers(0, 4, size=(N, 3)), rng.normal(size=N)]  # the same settings, measured again and again


def rounded(rng):
    return rng.normal(size=(N, 8)).round(1)


@pytest.mark.parametrize("make", [coin, levels, survey, derived, certain, missing])
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_coarse_tables_coincide_by_chance(make, seed):
    assert judged(make(np.random.default_rng(seed))) == 1


@pytest.mark.parametrize("make", [fine, classes, one_fine_column, design, rounded])
@pytest.mark.parametrize("drawn", ["tripled", "with replacement", "a few twice"])
def test_copies_of_rows_of_other_tables_are_copies(make, drawn):
    rng = np.random.default_rng(0)
    table = np.unique(make(rng), axis=0)
    n = len(table)
    places = {
        "tripled": np.arange(n).repeat(3),
        "with replacement": rng.integers(n, size=n),
        "a few twice": [*range(n), 0, 1],
    }
    assert judged(table[places[drawn]]) == 0


def test_rows_without_a_value_coincide_by_chance_beside_copies():
    rng = np.random.default_rng(0)
    empty, full = np.zeros((N, 3)), rng.normal(size=(N, 3)).repeat(3, axis=0)
    some = rng.uniform(size=(N, 3)) * (rng.uniform(size=(N, 3)) < 0.5)  # zeros are usual
    rows, counts = np.unique(np.r_[empty, full, some], axis=0, return_counts=True)
    by_chance = coincide_by_chance(rows.T, counts)
    assert by_chance[(rows == 0).all(axis=1)].all()
    assert not by_chance[(rows != 0).all(axis=1)].any()


def test_without_equal_rows_there_is_nothing_to_judge():
    assert not coincide_by_chance(np.arange(6.0).reshape(2, 3), np.ones(3, dtype=int)).any()
