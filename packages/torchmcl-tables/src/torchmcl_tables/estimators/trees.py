"""Evaluation of trees: in C (torchmcl's `trees.h`), or level by level in NumPy without the extension."""

import ctypes
from ctypes import Structure, c_int64, c_void_p

import numpy as np
from numpy.typing import NDArray

from torchmcl.accel.native.extension import available, library, on_threads

__all__ = ["NODE", "leaves"]

#: A node: a row goes to `child`, or to the node behind it where its column is above the threshold. A leaf has itself
#: for a child and an infinite threshold.
NODE = np.dtype([("threshold", np.float32), ("column", np.int32), ("child", np.int32)])


class _Trees(Structure):
    _fields_ = (
        ("n_rows", c_int64),
        ("n_columns", c_int64),
        ("n_trees", c_int64),
        ("rows", c_void_p),
        ("nodes", c_void_p),
        ("roots", c_void_p),
        ("depths", c_void_p),
        ("leaves", c_void_p),
    )


def leaves(
    rows: NDArray[np.float32], nodes: NDArray[np.void], roots: NDArray[np.int32], depths: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the node index of the leaf of each row, [rows, trees].

    Args:
        rows: [rows, columns], without NaN.
        nodes: of all trees, of type `NODE`; every child must be one of them, and every column one of the rows.
        roots: [trees]
        depths: [trees], of the deepest leaf of each.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    found = np.empty((len(rows), len(roots)), dtype=np.int32)
    if not available():
        return _level_by_level(rows, nodes, roots, int(depths.max(initial=0)))

    def part(start: int, stop: int) -> None:
        given = (rows[start:stop], nodes, roots, depths, found[start:stop])
        trees = _Trees(stop - start, rows.shape[1], len(roots), *(array.ctypes.data for array in given))
        library().torchmcl_leaves(ctypes.byref(trees))

    on_threads(part, len(rows))
    return found


def _level_by_level(
    rows: NDArray[np.float32], nodes: NDArray[np.void], roots: NDArray[np.int32], depth: int
) -> NDArray[np.int32]:
    at = np.repeat(roots[None], len(rows), axis=0)
    for _ in range(depth):
        values = np.take_along_axis(rows, nodes["column"][at].astype(np.int64), axis=1)
        at = nodes["child"][at] + (values > nodes["threshold"][at])
    return at.astype(np.int32)
