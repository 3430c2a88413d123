"""C extension: its availability and its functions.

The sources are in the folder `c`; the structures below mirror `c/native.h`. Without the extension, the definitions in
plain torch are used; `torchmcl --version --verbose` shows which of them is active.
"""

import ctypes
import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from ctypes import Structure, c_char_p, c_float, c_int64, c_void_p
from itertools import pairwise

import torch
from torch import Tensor

from torchmcl import dispatch

__all__ = [
    "AdamFields",
    "BatchFields",
    "EpochsFields",
    "NetworkFields",
    "RowsFields",
    "aligned",
    "available",
    "floats",
    "in_blocks",
    "instruction_set",
    "integers",
    "library",
    "on_threads",
    "pointers",
    "supports",
]

_ALIGNMENT = 64
# Number of blocks of rows per thread; more if blocks are still large, because all threads wait for the last block.
_BLOCKS, _MOST_BLOCKS, _MANY_ROWS = 4, 16, 64
# Entries from which a second thread pays off.
_MANY_ENTRIES = 100_000
_POOLS = threading.local()
_RESULTS = {
    "torchmcl_instruction_set": c_char_p,
    "torchmcl_scratch_size": c_int64,
    "torchmcl_step": None,
    "torchmcl_adam": None,
    "torchmcl_epochs": None,
    "torchmcl_forward_scratch": c_int64,
    "torchmcl_forward": None,
    "torchmcl_one_target_rows": c_int64,
    "torchmcl_one_target_scratch": c_int64,
    "torchmcl_one_target": None,
    "torchmcl_line_scratch": c_int64,
    "torchmcl_line_points": None,
    "torchmcl_line_sets": None,
    "torchmcl_line_above": None,
    "torchmcl_leaves": None,
    "torchmcl_trim": None,
}


def _loaded() -> ctypes.CDLL | None:
    try:
        module = importlib.import_module("torchmcl_fleet.native._native")  # which chooses the instruction set
    except ImportError:
        return None
    functions = ctypes.CDLL(str(module.__file__))
    for name, result in _RESULTS.items():
        if not hasattr(functions, name):  # built from older sources
            return None
        getattr(functions, name).restype = result
    return functions if functions.torchmcl_instruction_set() else None


_LIBRARY = _loaded()


def available() -> bool:
    """Return whether the extension was built at installation."""
    return _LIBRARY is not None


def instruction_set() -> str | None:
    """Return the name of the vector instructions selected for this processor; None without the extension."""
    return None if _LIBRARY is None else _LIBRARY.torchmcl_instruction_set().decode()


def supports(*tensors: Tensor) -> bool:
    """Return whether the extension is available and all tensors are plain float32 CPU tensors, which it supports."""
    return (
        available()
        and len(tensors) > 0
        and all(
            type(tensor) in (Tensor, torch.nn.Parameter)
            and tensor.dtype == torch.float32
            and tensor.device.type == "cpu"
            and tensor.numel() > 0
            for tensor in tensors
        )
        and dispatch.is_plain_eager()
        and torch._C._len_torch_dispatch_stack() == 0
    )


def library() -> ctypes.CDLL:
    """Return the functions of the extension, which must be available."""
    assert _LIBRARY is not None
    return _LIBRARY


def integers(names: str) -> list[tuple[str, type[c_int64]]]:
    """Return structure fields for 64-bit integers."""
    return [(name, c_int64) for name in names.split()]


def pointers(names: str) -> list[tuple[str, type[c_void_p]]]:
    """Return structure fields for the addresses of tensors."""
    return [(name, c_void_p) for name in names.split()]


def floats(names: str) -> list[tuple[str, type[c_float]]]:
    """Return structure fields for single-precision numbers."""
    return [(name, c_float) for name in names.split()]


def aligned(n_floats: int, *, zeroed: bool = True) -> Tensor:
    """Return memory for at least `n_floats` floats, aligned for vector instructions.

    C code reads and writes a fixed type in main memory, for any default dtype and device of torch.
    """
    n_taken = n_floats + _ALIGNMENT // 4
    memory = (torch.zeros if zeroed else torch.empty)(n_taken, dtype=torch.float32, device="cpu")
    return memory[-memory.data_ptr() // 4 % (_ALIGNMENT // 4) :]


def on_threads(part: Callable[[int, int], None], n_rows: int) -> None:
    """Call `part` with the bounds (first row, end) of each block of rows, several blocks per thread.

    A thread that has finished a block takes the next one, so that a delayed thread does not delay the others.
    """
    n_threads = min(torch.get_num_threads(), n_rows)
    if n_threads < 2:
        part(0, n_rows)
        return
    n_blocks = max(_BLOCKS * n_threads, min(_MOST_BLOCKS * n_threads, n_rows // _MANY_ROWS))
    n_blocks = min(n_blocks, n_rows)
    bounds = [n_rows * i // n_blocks for i in range(n_blocks + 1)]
    futures: list[Future[None]] = []
    try:
        for first, last in pairwise(bounds):
            try:
                futures.append(_pool().submit(part, first, last))
            except RuntimeError:  # at the end of the interpreter
                part(first, last)
        for future in futures:
            future.result()
    finally:  # after an exception, no block may write to memory that the caller frees
        for future in futures:
            future.cancel()
        wait(futures)


def in_blocks(part: Callable[[int, int], None], n_rows: int, entries_of_row: int, block: int) -> None:
    """Call `part` with the bounds of whole blocks of rows, on all threads if there is enough work."""
    if n_rows * entries_of_row < _MANY_ENTRIES:
        part(0, n_rows)
        return
    on_threads(lambda first, last: part(first * block, min(last * block, n_rows)), -(-n_rows // block))


def _pool() -> ThreadPoolExecutor:
    """Return the thread pool of the calling thread, started once, so that no caller waits for the work of another."""
    key = os.getpid(), torch.get_num_threads()  # a forked process has no threads of its parent
    if getattr(_POOLS, "key", None) != key:
        _POOLS.key, _POOLS.pool = key, ThreadPoolExecutor(key[1], thread_name_prefix="torchmcl")
    return _POOLS.pool


class NetworkFields(Structure):
    """Shape of the networks."""

    _fields_ = (
        *integers("n_layers"),
        *pointers("sizes"),
        *integers("n_hypotheses n_dims n_targets absolute has_scores detach_scores n_given n_runs"),
        *pointers("run_lengths"),
        *integers("is_mixture"),
        *floats("crps min_scale"),
    )


class RowsFields(Structure):
    """Rows of all sets."""

    _fields_ = (*integers("n_set_rows"), *pointers("inputs lower between targets counts"))


class BatchFields(Structure):
    """Arguments of one step of the selected models."""

    _fields_ = (
        *integers("n_models n_parameters"),
        *pointers("flat gradient set_of_model temperature epsilon loss"),
        *integers("first n_rows"),
        *pointers("order order_of_model"),
        *integers("order_stride"),
        *floats("score_weight"),
        *pointers("scratch"),
    )


class AdamFields(Structure):
    """Arguments of Adam with decoupled weight decay."""

    _fields_ = (
        *integers("n_models n_parameters"),
        *pointers("flat gradient mean square n_steps rate decay"),
        *floats("beta1 beta2 epsilon"),
    )


class EpochsFields(Structure):
    """Arguments of consecutive epochs of the selected models."""

    _fields_ = (*integers("first last n_epochs n_batches n_ordered"), *pointers("bounds active n_steps losses"))
