"""Detection of equal rows: copies, or rows of a coarse table that coincide by chance.

Copies say nothing new: they belong into one share of a split. Rows that coincide by chance are observations of their
own: 700 sailors who drowned are not one sailor. How often rows coincide does not tell the two apart, as rows that are
drawn with replacement coincide as often as those of a coarse table. The values do: a row can only be met again by
chance if each of its values is met again in *different* rows. With these the probability of a row is estimated, each
column given the one that it depends on most, and with it how many further rows like it are expected.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

# Fewer further rows than this are not expected: that there are any is no chance. The estimate errs by factors of ten
# where columns depend on several others, and is smaller by many more where a table is fine.
_FEWEST = 0.05
# Among copies a row is there by chance if this share of its number was expected.
_EXPECTED_SHARE = 0.1
# Copies of a row are at most this many, and at most as many as there are different rows.
_MOST_COPIES = 10
# Pairs of rows that measure the dependence of columns, and the number needed for significance.
_N_PAIRS, _ENOUGH_PAIRS = 20_000, 5
# The columns whose values repeat least are considered; others would lower the probability of a row further.
_MAX_COLUMNS = 200


def coincide_by_chance(columns: Sequence[NDArray[Any]], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which distinct rows occur repeatedly by chance, and not as copies.

    If chance explains most of the further rows, it is taken to explain all: a category that is rare and always goes
    with the same answer stands in one row only, and cannot be judged alone. Else it explains those rows of which
    about as many are expected as there are.

    Args:
        columns: of different rows: [rows] each, inputs and targets; NaN where a value is missing.
        counts: [rows], how often each row is met.

    Example:
        >>> coarse, fine = [[0, 0, 1, 1], [0, 1, 0, 1]], [[0.2, 0.5, 0.9, 0.4], [0.8, 0.1, 0.3, 0.7]]
        >>> coincide_by_chance(coarse, np.full(4, 3)), coincide_by_chance(fine, np.full(4, 3))
        (array([ True,  True,  True,  True]), array([False, False, False, False]))
    """
    more = counts > 1
    if not more.any():
        return more
    further = counts[more] - 1
    expected = _expected(columns, more, int(counts.sum()))
    sure = counts[more] >= max(len(counts), _MOST_COPIES)
    if 2 * further[sure | (expected >= _FEWEST)].sum() >= further.sum():
        return np.ones_like(more)
    by_chance = more.copy()
    by_chance[more] = sure | (expected >= _EXPECTED_SHARE * counts[more])
    return by_chance


def _expected(columns: Sequence[NDArray[Any]], chosen: NDArray[np.bool_], n_rows: int) -> NDArray[np.float64]:
    """Return the expected number of rows equal to each chosen one, estimated from all other rows, [chosen].

    Args:
        columns: [rows] each.
        chosen: [rows]
        n_rows: of the table, however often it has each of them.
    """
    expected = np.full(int(chosen.sum()), float(n_rows))
    codes, met, possible = [], [], np.ones(len(expected), dtype=bool)
    for column in columns:
        code = np.unique(column, return_inverse=True)[1].ravel()
        if not code.any():
            continue  # a constant says nothing
        codes.append(code)
        met.append(np.bincount(code)[code] - 1)  # among the other rows
        possible &= met[-1][chosen] > 0
        if not possible.any():  # as of most tables after the first column
            return np.zeros_like(expected)
    if not codes:
        return expected
    order = np.argsort([each.sum() for each in met], kind="stable")[:_MAX_COLUMNS]
    codes, met = [codes[place] for place in order], [met[place] for place in order]
    for code, own, parent in zip(codes, met, _parents(codes, met), strict=True):
        share = own / (len(chosen) - 1)
        if parent is not None:
            pair = codes[parent] * (int(code.max()) + 1) + code
            _, place, together = np.unique(pair, return_inverse=True, return_counts=True)
            share = np.maximum(share, (together[place.ravel()] - 1) / np.maximum(met[parent], 1))
        expected *= share[chosen]
    return expected


def _parents(codes: Sequence[NDArray[np.int64]], met: Sequence[NDArray[np.int64]]) -> list[int | None]:
    """Return the parent of each column in the tree of the strongest dependences; None for roots.

    Two columns depend on each other if pairs of rows agree in both more often than they would by chance.
    """
    n_columns, n_rows = len(codes), len(codes[0])
    rng = np.random.RandomState(0)
    one, other = rng.randint(n_rows, size=_N_PAIRS), rng.randint(n_rows - 1, size=_N_PAIRS)
    other += other >= one
    agree = np.stack([column[one] == column[other] for column in codes], axis=1).astype(np.float32)
    both = agree.T @ agree
    each = np.array([column.mean() / (n_rows - 1) for column in met])
    expected = _N_PAIRS * np.outer(each, each)
    strong = np.triu((both >= _ENOUGH_PAIRS) & (both > expected), 1)
    gain = np.log(np.maximum(both, 1) / np.maximum(expected, 1e-300))
    tree = minimum_spanning_tree(csr_array(np.where(strong, -gain, 0.0)))
    parents: list[int | None] = [None] * n_columns
    seen = np.zeros(n_columns, dtype=bool)
    for root in range(n_columns):
        if not seen[root]:
            members, before = breadth_first_order(tree, root, directed=False)
            seen[members] = True
            for member in members[1:]:
                parents[member] = int(before[member])
    return parents
