"""Detection of equal rows: copies, or rows of a coarse table that coincide by chance.

Copies add no information and belong in the same share of a split. Rows that coincide by chance are separate
observations: 700 sailors who drowned are not one sailor. The frequency of coincidences does not distinguish the two, as
rows drawn with replacement coincide as often as those of a coarse table. The values do: a row can recur by chance only
if each of its values also occurs in *different* rows. From these the probability of a row is estimated, each column
given the one that it depends on most, and from that the expected number of further equal rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

# If fewer further rows than this are expected, any that occur are not due to chance. The estimate errs by factors of
# ten if columns depend on several others, and is smaller by far larger factors if a table is fine.
_FEWEST = 0.05
# Among copies, a row coincides by chance if at least this share of its count was expected.
_EXPECTED_SHARE = 0.1
# A row has at most this many copies, or as many as there are distinct rows if that is more.
_MOST_COPIES = 10
# Sampled pairs of rows for the dependence of columns, and the number of agreements needed for significance.
_N_PAIRS, _ENOUGH_PAIRS = 20_000, 5
# The columns whose values repeat least are considered; others would lower the probability of a row further.
_MAX_COLUMNS = 200


def coincide_by_chance(columns: Sequence[NDArray[Any]], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the distinct rows that occur several times by chance rather than as copies.

    If chance explains most of the further rows, all are attributed to it: a rare category that always occurs with the
    same answer is in a single distinct row, and cannot be judged alone. Otherwise only rows whose count is close to
    the expected one are attributed to chance.

    Args:
        columns: inputs and targets of the distinct rows, [rows] each; NaN for missing values.
        counts: [rows], how often each row occurs.

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
        n_rows: of the table, including repeated rows.
    """
    expected = np.full(int(chosen.sum()), float(n_rows))
    codes, met, possible = [], [], np.ones(len(expected), dtype=bool)
    for column in columns:
        code = np.unique(column, return_inverse=True)[1].ravel()
        if not code.any():
            continue  # a constant carries no information
        codes.append(code)
        met.append(np.bincount(code)[code] - 1)  # among the other rows
        possible &= met[-1][chosen] > 0
        if not possible.any():  # in most tables after the first column
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
