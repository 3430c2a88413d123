"""Kernels that treat one row of hypotheses at a time: softmin, the winner, the score loss."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmcl._eager import may_work_in_place
from torchmcl.accel.eager.one_target import cross_entropy_gradient

# A program holds at least one complete row.
_MAX_ROW = 8192

# Compiled once for all sizes: a fleet of a different size must not wait for the compiler.
_SIZES = ("n_rows", "n_columns")


@triton.jit
def _block(n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    return row, column, (row < n_rows) & (column < n_columns)


@triton.jit(do_not_specialize=_SIZES)
def _softmin(cost, factor, weights, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    value = tl.load(cost + row * n_columns + column, mask=real, other=float("inf"))
    # A NaN must reach every weight of its row; min() alone would ignore it.
    excess = value - tl.min(value, axis=1)[:, None]
    power = tl.where(real, tl.exp2(excess * factor), 0.0)
    tl.store(weights + row * n_columns + column, power / tl.sum(power, axis=1)[:, None], mask=real)


@triton.jit(do_not_specialize=_SIZES)
def _winner(cost, weights, top, rest, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    value = tl.load(cost + row * n_columns + column, mask=real, other=float("inf"))
    winner = tl.argmin(value, axis=1)[:, None]
    tl.store(weights + row * n_columns + column, tl.where(column == winner, top, rest), mask=real)


@triton.jit(do_not_specialize=[*_SIZES, "rows_per_model"])
def _mixed(
    cost, temperatures, epsilons, weights, rows_per_model, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    value = tl.load(cost + row * n_columns + column, mask=real, other=float("inf"))
    model = row // rows_per_model
    temperature = tl.load(temperatures + model, mask=row < n_rows, other=0.0)
    epsilon = tl.load(epsilons + model, mask=row < n_rows, other=0.0)
    epsilon = tl.where(n_columns > 1, epsilon, 0.0)  # a single hypothesis has all the weight
    warm = temperature > 0
    # -log2(e) / temperature, finite for the smallest temperature and not 0 for the largest.
    factor = -1.4426950408889634 / tl.where(warm, temperature, 1.0)
    factor = tl.minimum(tl.maximum(factor, -3.4028234663852886e38), -1.1754943508222875e-38)
    excess = value - tl.min(value, axis=1)[:, None]
    power = tl.where(real, tl.exp2(excess * factor), 0.0)
    soft = power / tl.sum(power, axis=1)[:, None]
    hard = tl.where(column == tl.argmin(value, axis=1)[:, None], 1 - epsilon, epsilon / tl.maximum(n_columns - 1, 1))
    tl.store(weights + row * n_columns + column, tl.where(warm, soft, hard), mask=real)


@triton.jit(do_not_specialize=_SIZES)
def _dot(left, right, sums, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    x = tl.load(left + row * n_columns + column, mask=real, other=0.0)
    y = tl.load(right + row * n_columns + column, mask=real, other=0.0)
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(sums + first, tl.sum(x * y, axis=1), mask=first < n_rows)


@triton.jit(do_not_specialize=_SIZES)
def _bce(logits, labels, sums, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    x = tl.load(logits + row * n_columns + column, mask=real, other=0.0)
    y = tl.load(labels + row * n_columns + column, mask=real, other=0.0)
    # log(1 + e) is accurate enough here: e <= 1, and for tiny e the absolute error is below 1e-7.
    loss = tl.where(x > 0, x, 0.0) - x * y + tl.log(1.0 + tl.exp(-tl.abs(x)))
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(sums + first, tl.sum(tl.where(real, loss, 0.0), axis=1), mask=first < n_rows)


@triton.jit(do_not_specialize=[*_SIZES, "step"])
def _bce_backward(
    logits, labels, upstream, step, gradient, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    x = tl.load(logits + row * n_columns + column, mask=real, other=0.0)
    y = tl.load(labels + row * n_columns + column, mask=real, other=0.0)
    scale = tl.load(upstream + row * step, mask=row < n_rows, other=0.0)
    tl.store(gradient + row * n_columns + column, (tl.sigmoid(x) - y) * scale, mask=real)


@triton.jit(do_not_specialize=[*_SIZES, "step"])
def _scaled(values, upstream, step, out, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    scale = tl.load(upstream + row * step, mask=row < n_rows, other=0.0)
    x = tl.load(values + row * n_columns + column, mask=real, other=0.0)
    tl.store(out + row * n_columns + column, x * scale, mask=real)


@triton.jit(do_not_specialize=("n", "n_programs"))
def _partial_sums(values, mask, sums, factor, n, n_programs, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    total, count = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(program * BLOCK, n, n_programs * BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += factor * tl.load(values + place, mask=place < n, other=0.0)  # first, as sums can overflow
        if HAS_MASK:
            count += tl.load(mask + place, mask=place < n, other=0).to(tl.float32)
    tl.store(sums + program, tl.sum(total, axis=0))
    tl.store(sums + n_programs + program, tl.sum(count, axis=0))


@triton.jit
def _whole_sums(sums, out, share, factor, n_programs, HAS_MASK: tl.constexpr, MOST: tl.constexpr):
    place = tl.arange(0, MOST)
    count = 1.0
    if HAS_MASK:
        count = tl.maximum(tl.sum(tl.load(sums + n_programs + place, mask=place < n_programs, other=0.0), axis=0), 1.0)
    tl.store(out, tl.sum(tl.load(sums + place, mask=place < n_programs, other=0.0), axis=0) / count)
    tl.store(share, factor / count)


def _launch(kernel: Any, rows: Tensor, *arguments: Any) -> None:
    """Run a kernel on all rows, with about a thousand entries per program."""
    n_columns = rows.shape[-1]
    n_rows = rows.numel() // n_columns
    columns = triton.next_power_of_2(n_columns)
    block = max(1, 1024 // columns)
    kernel[(triton.cdiv(n_rows, block),)](rows, *arguments, n_rows, n_columns, ROWS=block, COLUMNS=columns)


def _upstream(grad: Tensor) -> tuple[Tensor, int]:
    """Return the gradients of rows and the entries between them: 0 for one of all rows, as from the mean of a batch."""
    return (grad, 0) if not any(grad.stride()) else (grad.contiguous(), 1)


def softmin(cost: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the softmin of each row for a single finite temperature."""
    if isinstance(temperature, Tensor) or math.isinf(temperature) or cost.shape[-1] > _MAX_ROW:
        return NotImplemented
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    factor = max(-math.log2(math.e) / temperature, -torch.finfo(cost.dtype).max)
    _launch(_softmin, cost, factor, weights)
    return weights


def winner_weights(cost: Tensor, winner: float | Tensor = 1.0, other: float | Tensor = 0.0) -> Tensor:
    """Return `winner` at the cheapest hypothesis of each row and `other` elsewhere; both are numbers."""
    if isinstance(winner, Tensor) or isinstance(other, Tensor) or cost.shape[-1] > _MAX_ROW:
        return NotImplemented
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    _launch(_winner, cost, weights, winner, other)
    return weights


def mixed_rows(cost: Tensor, temperatures: Tensor, epsilons: Tensor) -> Tensor:
    """Return the weights of each row under the rule of its model, see `torchmcl.accel.native.rows.mixed_rows`."""
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    rows_per_model = cost[0].numel() // cost.shape[-1]
    _launch(_mixed, cost, temperatures.contiguous(), epsilons.contiguous(), weights, rows_per_model)
    return weights


def weighted_sum(weights: Tensor, cost: Tensor) -> Tensor:
    """Return the sum of weights * cost over the last axis."""
    if weights.shape != cost.shape or cost.shape[-1] > _MAX_ROW:
        return NotImplemented
    return _WeightedSum.apply(cost, weights)


class _WeightedSum(torch.autograd.Function):
    """Only the cost gets a gradient, as weights are detached."""

    @staticmethod
    def forward(ctx: Any, cost: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        sums = cost.new_empty(cost.shape[:-1])
        _launch(_dot, cost.contiguous(), weights.contiguous(), sums)
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        if not may_work_in_place(grad):  # differentiated again
            return weights * grad.unsqueeze(-1), None
        to_cost = torch.empty_like(weights, memory_format=torch.contiguous_format)
        _launch(_scaled, weights.contiguous(), *_upstream(grad), to_cost)
        return to_cost, None


# Programs of a sum of all entries, and entries that each of them takes at once.
_SUMMING, _SUMMED = 256, 1024


def mean_of_real(values: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of all values divided by the number of entries in the mask, at least 1."""
    return _Sum.apply(values, mask, 1.0) if values.shape == mask.shape else NotImplemented


def total(values: Tensor, factor: float) -> Tensor:
    """Return the sum of all values, each multiplied by the factor."""
    return _Sum.apply(values, None, factor)


class _Sum(torch.autograd.Function):
    """In two launches and a fixed order; the backward pass needs one more."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor | None, factor: float) -> Tensor:
        n = values.numel()
        n_programs = min(_SUMMING, triton.cdiv(n, _SUMMED))
        sums, out, share = values.new_empty(2, n_programs), values.new_empty(()), values.new_empty(())
        given, has_mask = values.contiguous(), mask is not None
        counted = given if mask is None else mask.contiguous().view(torch.uint8)
        _partial_sums[(n_programs,)](given, counted, sums, factor, n, n_programs, HAS_MASK=has_mask, BLOCK=_SUMMED)
        _whole_sums[(1,)](sums, out, share, factor, n_programs, HAS_MASK=has_mask, MOST=_SUMMING)
        ctx.save_for_backward(share)
        ctx.shape = values.shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (share,) = ctx.saved_tensors
        return (grad * share).expand(ctx.shape), None, None


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of logits, summed over the last axis."""
    if logits.shape[-1] > _MAX_ROW:
        return NotImplemented
    return _SummedCrossEntropy.apply(logits, labels)


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        sums = logits.new_empty(logits.shape[:-1])
        _launch(_bce, logits.contiguous(), labels.contiguous(), sums)
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        logits, labels = ctx.saved_tensors
        to_logits = None
        if ctx.needs_input_grad[0]:
            if may_work_in_place(grad):
                to_logits = torch.empty_like(logits, memory_format=torch.contiguous_format)
                _launch(_bce_backward, logits.contiguous(), labels.contiguous(), *_upstream(grad), to_logits)
            else:
                to_logits = cross_entropy_gradient(logits, labels, grad.unsqueeze(-1))
        return to_logits, -logits * grad.unsqueeze(-1) if ctx.needs_input_grad[1] else None
