"""Kernels that treat one row of hypotheses at a time: softmin, the winner, the score loss."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["bce_rows", "bce_rows_backward", "dot_rows", "mixed_rows", "softmin_rows", "winner_rows"]

# Compiled once for all sizes: a fleet of another size must not wait for the compiler.
_SIZES = ("n_rows", "n_columns")


def _launch(n_rows: int, n_columns: int) -> tuple[tuple[int], dict[str, int]]:
    """Return a grid and block sizes: about two thousand entries for each program."""
    columns = triton.next_power_of_2(n_columns)
    rows = max(1, 2048 // columns)
    return (triton.cdiv(n_rows, rows),), {"ROWS": rows, "COLUMNS": columns}


@triton.jit
def _block(n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    return row, column, (row < n_rows) & (column < n_columns)


@triton.jit(do_not_specialize=_SIZES)
def _softmin(cost, factor, weights, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    value = tl.load(cost + row * n_columns + column, mask=real, other=float("inf"))
    # A NaN must reach every weight of its row; min() alone would pass it over.
    excess = value - tl.min(value, axis=1)[:, None]
    power = tl.where(real, tl.exp2(excess * factor), 0.0)
    tl.store(weights + row * n_columns + column, power / tl.sum(power, axis=1)[:, None], mask=real)


@triton.jit(do_not_specialize=_SIZES)
def _winner(cost, weights, top, rest, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    value = tl.load(cost + row * n_columns + column, mask=real, other=float("inf"))
    winner = tl.argmin(value, axis=1)[:, None]
    tl.store(weights + row * n_columns + column, tl.where(column == winner, top, rest), mask=real)


@triton.jit(do_not_specialize=[*_SIZES, "rows_per_model"])
def _mixed(  # type: ignore[no-untyped-def]
    cost, factors, epsilons, weights, n_rows, n_columns, rows_per_model, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    value = tl.load(cost + row * n_columns + column, mask=real, other=float("inf"))
    model = row // rows_per_model
    factor = tl.load(factors + model, mask=row < n_rows, other=0.0)
    epsilon = tl.load(epsilons + model, mask=row < n_rows, other=0.0)
    epsilon = tl.where(n_columns > 1, epsilon, 0.0)  # a single hypothesis has all the weight
    excess = value - tl.min(value, axis=1)[:, None]
    power = tl.where(real, tl.exp2(excess * factor), 0.0)
    soft = power / tl.sum(power, axis=1)[:, None]
    hard = tl.where(column == tl.argmin(value, axis=1)[:, None], 1 - epsilon, epsilon / tl.maximum(n_columns - 1, 1))
    tl.store(weights + row * n_columns + column, tl.where(factor < 0, soft, hard), mask=real)


@triton.jit(do_not_specialize=_SIZES)
def _dot(left, right, sums, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    x = tl.load(left + row * n_columns + column, mask=real, other=0.0)
    y = tl.load(right + row * n_columns + column, mask=real, other=0.0)
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(sums + first, tl.sum(x * y, axis=1), mask=first < n_rows)


@triton.jit(do_not_specialize=_SIZES)
def _bce(logits, labels, sums, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    x = tl.load(logits + row * n_columns + column, mask=real, other=0.0)
    y = tl.load(labels + row * n_columns + column, mask=real, other=0.0)
    # log(1 + e) is log1p for our purpose: e <= 1, and for tiny e the absolute error is below 1e-7.
    loss = tl.where(x > 0, x, 0.0) - x * y + tl.log(1.0 + tl.exp(-tl.abs(x)))
    first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(sums + first, tl.sum(tl.where(real, loss, 0.0), axis=1), mask=first < n_rows)


@triton.jit(do_not_specialize=_SIZES)
def _bce_backward(logits, labels, upstream, gradient, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column, real = _block(n_rows, n_columns, ROWS, COLUMNS)
    x = tl.load(logits + row * n_columns + column, mask=real, other=0.0)
    y = tl.load(labels + row * n_columns + column, mask=real, other=0.0)
    scale = tl.load(upstream + row, mask=row < n_rows, other=0.0)
    tl.store(gradient + row * n_columns + column, (tl.sigmoid(x) - y) * scale, mask=real)


def softmin_rows(cost: Tensor, factor: float) -> Tensor:
    """Return 2^(factor * excess over the row's minimum), normalised, for a contiguous cost [..., hypotheses]."""
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    n_columns = cost.shape[-1]
    grid, blocks = _launch(cost.numel() // n_columns, n_columns)
    _softmin[grid](cost, factor, weights, cost.numel() // n_columns, n_columns, **blocks)
    return weights


def winner_rows(cost: Tensor, top: float, rest: float) -> Tensor:
    """Return `top` at the cheapest hypothesis of each row and `rest` elsewhere."""
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    n_columns = cost.shape[-1]
    grid, blocks = _launch(cost.numel() // n_columns, n_columns)
    _winner[grid](cost, weights, top, rest, cost.numel() // n_columns, n_columns, **blocks)
    return weights


def mixed_rows(cost: Tensor, factors: Tensor, epsilons: Tensor) -> Tensor:
    """Return softmin weights where a model's factor is negative, winner weights where it is 0.

    Args:
        cost: [models, ..., hypotheses], contiguous.
        factors: [models], -log2(e) / temperature, or 0 for hard weights.
        epsilons: [models], what the winner leaves to the others under hard weights.
    """
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    n_columns = cost.shape[-1]
    n_rows = cost.numel() // n_columns
    grid, blocks = _launch(n_rows, n_columns)
    _mixed[grid](
        cost, factors.contiguous(), epsilons.contiguous(), weights, n_rows, n_columns, n_rows // len(cost), **blocks
    )
    return weights


def dot_rows(left: Tensor, right: Tensor) -> Tensor:
    """Return the sum of products over the last axis."""
    left, right = left.contiguous(), right.contiguous()
    sums = left.new_empty(left.shape[:-1])
    n_columns = left.shape[-1]
    grid, blocks = _launch(sums.numel(), n_columns)
    _dot[grid](left, right, sums, sums.numel(), n_columns, **blocks)
    return sums


def bce_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy with logits, summed over the last axis."""
    logits, labels = logits.contiguous(), labels.contiguous()
    sums = logits.new_empty(logits.shape[:-1])
    n_columns = logits.shape[-1]
    grid, blocks = _launch(sums.numel(), n_columns)
    _bce[grid](logits, labels, sums, sums.numel(), n_columns, **blocks)
    return sums


def bce_rows_backward(logits: Tensor, labels: Tensor, upstream: Tensor) -> Tensor:
    """Return its gradient in the logits, for the gradient [...] of the sums."""
    logits, labels, upstream = logits.contiguous(), labels.contiguous(), upstream.contiguous()
    gradient = torch.empty_like(logits)
    n_columns = logits.shape[-1]
    grid, blocks = _launch(upstream.numel(), n_columns)
    _bce_backward[grid](logits, labels, upstream, gradient, upstream.numel(), n_columns, **blocks)
    return gradient
