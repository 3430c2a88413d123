"""Loops over the rows of `torchmcl.postprocess.reduce` in C: greedy choices with exchanges, and Lloyd's algorithm.

They are in the same extension as the training step, `c/reduce.h`. Rows are split across as many threads as torch uses;
the calls release the interpreter's lock.
"""

import ctypes
from ctypes import Structure

import torch
from torch import Tensor

from torchmcl.accel.native.extension import aligned, available, integers, library, on_threads, pointers


class _Choice(Structure):
    _fields_ = (
        *integers("n_rows n_hypotheses n_kept n_exchanges"),
        *pointers("loss weights chosen scratch"),
    )


class _Means(Structure):
    _fields_ = (
        *integers("n_rows n_hypotheses n_kept n_dims n_rounds"),
        *pointers("points weights centres masses scratch"),
    )


def serves(*tensors: Tensor) -> bool:
    """Return whether the extension is available and all tensors are float32 CPU tensors, which it supports."""
    return available() and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)


def chosen(loss: Tensor, weights: Tensor, k: int, *, exchanged: bool) -> Tensor:
    """Return k candidates [rows, k] for a loss [rows, n, n], as defined by `postprocess._search.chosen`."""
    loss, weights = loss.contiguous(), weights.contiguous()
    places = torch.zeros(len(loss), k, dtype=torch.long, device=loss.device)

    def part(start: int, stop: int) -> None:
        n = loss.shape[1]
        choice = _Choice(stop - start, n, k, 2 * k if exchanged else 0)
        scratch = aligned(library().torchmcl_choice_scratch(ctypes.byref(choice)))
        choice.loss, choice.weights = loss[start:].data_ptr(), weights[start:].data_ptr()
        choice.chosen, choice.scratch = places[start:].data_ptr(), scratch.data_ptr()
        library().torchmcl_choose(ctypes.byref(choice))

    on_threads(part, len(loss))
    return places


def means(points: Tensor, weights: Tensor, k: int, n_rounds: int) -> tuple[Tensor, Tensor]:
    """Return k centers [rows, k, dim] with a low expected squared distance, and the weights of their groups [rows, k].

    Args:
        points: [rows, n, dim]
        weights: [rows, n], summing to 1
        k: how many.
        n_rounds: of Lloyd's algorithm, at most; a row ends when nothing changes.
    """
    points, weights = points.contiguous(), weights.contiguous()
    n_rows, n, dim = points.shape
    centres, masses = points.new_zeros(n_rows, k, dim), points.new_zeros(n_rows, k)

    def part(start: int, stop: int) -> None:
        problem = _Means(stop - start, n, k, dim, n_rounds)
        scratch = aligned(library().torchmcl_means_scratch(ctypes.byref(problem)))
        problem.points, problem.weights = points[start:].data_ptr(), weights[start:].data_ptr()
        problem.centres, problem.masses = centres[start:].data_ptr(), masses[start:].data_ptr()
        problem.scratch = scratch.data_ptr()
        library().torchmcl_move(ctypes.byref(problem))

    on_threads(part, n_rows)
    return centres, masses
