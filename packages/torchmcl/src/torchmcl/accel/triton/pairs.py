"""Kernels for the pairwise squared Euclidean cost: coordinate by coordinate for few dimensions, by tiles for many."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmcl._eager import may_work_in_place
from torchmcl.accel.eager.distances import MAX_TURNS, centred_pull, pulled_centre

# The gradients for many dimensions hold all targets of a sample in one tile.
_MAX_TILE = 64


@triton.jit(do_not_specialize=("n_rows", "T", "K"))
def _few(h, t, cost, n_rows, T, K, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # a (sample, target) pair
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    real = (row < n_rows) & (column < K)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for d in tl.static_range(D):
        x = tl.load(h + ((row // T) * K + column) * D + d, mask=real, other=0.0)
        y = tl.load(t + row * D + d, mask=row < n_rows, other=0.0)
        total += (x - y) * (x - y)
    tl.store(cost + row * K + column, total, mask=real)


@triton.jit(do_not_specialize=("n_rows", "T", "K"))
def _few_to_h(h, t, grad, out, n_rows, K, T, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # a sample
    entry = (
        tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    )  # hypotheses and coordinates, contiguous in memory
    real = (row < n_rows) & (entry < K * D)
    x = tl.load(h + row * K * D + entry, mask=real, other=0.0)
    pull = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for target in range(T):
        y = tl.load(t + (row * T + target) * D + entry % D, mask=real, other=0.0)
        g = tl.load(grad + (row * T + target) * K + entry // D, mask=real, other=0.0)
        pull += g * (x - y)
    tl.store(out + row * K * D + entry, 2 * pull, mask=real)


@triton.jit(do_not_specialize=("n_rows", "T", "K"))
def _few_to_t(h, t, grad, out, n_rows, T, K, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # a (sample, target) pair
    for d in tl.static_range(D):
        y = tl.load(t + row * D + d, mask=row < n_rows, other=0.0)
        pull = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for start in range(0, K, COLUMNS):
            column = start + tl.arange(0, COLUMNS)[None, :]
            real = (row < n_rows) & (column < K)
            x = tl.load(h + ((row // T) * K + column) * D + d, mask=real, other=0.0)
            pull += tl.load(grad + row * K + column, mask=real, other=0.0) * (y - x)
        first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        tl.store(out + first * D + d, 2 * tl.sum(pull, axis=1), mask=first < n_rows)


def _few_blocks(K: int) -> dict[str, int]:
    columns = min(triton.next_power_of_2(K), 256)
    return {"ROWS": max(1, 512 // columns), "COLUMNS": columns, "num_warps": 2}


def _few_cost(h: Tensor, t: Tensor) -> Tensor:
    (n, K, D), T = h.shape, t.shape[1]
    cost = h.new_empty(n, T, K)
    blocks = _few_blocks(K)
    grid = (triton.cdiv(n * T, blocks["ROWS"]), triton.cdiv(K, blocks["COLUMNS"]))
    _few[grid](h, t, cost, n * T, T, K, D=D, **blocks)
    return cost


def _few_pull_h(h: Tensor, t: Tensor, grad: Tensor) -> Tensor:
    (n, K, D), T = h.shape, t.shape[1]
    out = torch.empty_like(h)
    blocks = _few_blocks(K * D)
    grid = (triton.cdiv(n, blocks["ROWS"]), triton.cdiv(K * D, blocks["COLUMNS"]))
    _few_to_h[grid](h, t, grad, out, n, K, T, D=D, **blocks)
    return out


def _few_pull_t(h: Tensor, t: Tensor, grad: Tensor) -> Tensor:
    (n, K, D), T = h.shape, t.shape[1]
    out = torch.empty_like(t)
    blocks = _few_blocks(K)
    _few_to_t[(triton.cdiv(n * T, blocks["ROWS"]),)](h, t, grad, out, n * T, T, K, D=D, **blocks)
    return out


@triton.jit
def _many(h, t, cost, T, K, D, BT: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    i = tl.program_id(2) * BT + tl.arange(0, BT)
    total = tl.zeros((BT, BK, BD), dtype=tl.float32)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        inside = d < D
        x = tl.load(h + (sample * K + k[:, None]) * D + d[None, :], mask=(k < K)[:, None] & inside[None, :], other=0.0)
        y = tl.load(t + (sample * T + i[:, None]) * D + d[None, :], mask=(i < T)[:, None] & inside[None, :], other=0.0)
        difference = x[None, :, :] - y[:, None, :]
        total += difference * difference
    real = (i < T)[:, None] & (k < K)[None, :]
    tl.store(cost + (sample * T + i[:, None]) * K + k[None, :], tl.sum(total, axis=2), mask=real)


@triton.jit
def _many_to_h(h, t, centre, grad, out, T, K, D, BT: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    i = tl.arange(0, BT)
    g = tl.load(grad + (sample * T + i[:, None]) * K + k[None, :], mask=(i < T)[:, None] & (k < K)[None, :], other=0.0)
    total = tl.sum(g, axis=0)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        inside = d < D
        real = (k < K)[:, None] & inside[None, :]
        c = tl.load(centre + sample * D + d, mask=inside, other=0.0)
        x = tl.load(h + (sample * K + k[:, None]) * D + d[None, :], mask=real, other=0.0)
        y = tl.load(t + (sample * T + i[:, None]) * D + d[None, :], mask=(i < T)[:, None] & inside[None, :], other=0.0)
        y = tl.where((i < T)[:, None], y - c[None, :], 0.0)
        pull = total[:, None] * (x - c[None, :]) - tl.dot(tl.trans(g), y, input_precision="ieee")
        tl.store(out + (sample * K + k[:, None]) * D + d[None, :], 2 * pull, mask=real)


@triton.jit
def _many_to_t(h, t, centre, grad, out, T, K, D, BT: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = d < D
    i = tl.arange(0, BT)
    c = tl.load(centre + sample * D + d, mask=inside, other=0.0)
    pull = tl.zeros((BT, BD), dtype=tl.float32)
    total = tl.zeros((BT,), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(h + (sample * K + k[:, None]) * D + d[None, :], mask=(k < K)[:, None] & inside[None, :], other=0.0)
        x = tl.where((k < K)[:, None], x - c[None, :], 0.0)
        g = tl.load(
            grad + (sample * T + i[:, None]) * K + k[None, :], mask=(i < T)[:, None] & (k < K)[None, :], other=0.0
        )
        pull += tl.dot(g, x, input_precision="ieee")
        total += tl.sum(g, axis=1)
    real = (i < T)[:, None] & inside[None, :]
    y = tl.load(t + (sample * T + i[:, None]) * D + d[None, :], mask=real, other=0.0) - c[None, :]
    tl.store(out + (sample * T + i[:, None]) * D + d[None, :], 2 * (total[:, None] * y - pull), mask=real)


def _many_blocks(T: int) -> dict[str, int]:
    return {"BT": max(16, triton.next_power_of_2(T)), "BK": 64, "BD": 64}


def _many_cost(h: Tensor, t: Tensor) -> Tensor:
    (n, K, D), T = h.shape, t.shape[1]
    cost = h.new_empty(n, T, K)
    # Differences of all pairs of a tile and 32 coordinates are held at once, 64 of them in each thread.
    n_targets = min(triton.next_power_of_2(T), 16)
    blocks = {"BT": n_targets, "BK": 256 // n_targets, "BD": 32}
    _many[(n, triton.cdiv(K, blocks["BK"]), triton.cdiv(T, n_targets))](h, t, cost, T, K, D, **blocks)
    return cost


def _many_pull_h(h: Tensor, t: Tensor, grad: Tensor) -> Tensor:
    (n, K, D), T = h.shape, t.shape[1]
    out = torch.empty_like(h)
    blocks = _many_blocks(T)
    _many_to_h[(n, triton.cdiv(K, blocks["BK"]))](h, t, pulled_centre(t, grad), grad, out, T, K, D, **blocks)
    return out


def _many_pull_t(h: Tensor, t: Tensor, grad: Tensor) -> Tensor:
    (n, K, D), T = h.shape, t.shape[1]
    out = torch.empty_like(t)
    blocks = _many_blocks(T)
    _many_to_t[(n, triton.cdiv(D, blocks["BD"]))](h, t, pulled_centre(t, grad), grad, out, T, K, D, **blocks)
    return out


def squared_distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return |h - t|^2 of every pair, [..., targets, hypotheses], for tensors with equal leading axes."""
    if hypotheses.shape[-1] > MAX_TURNS and targets.shape[-2] > _MAX_TILE:
        return NotImplemented
    return _SquaredDistances.apply(hypotheses, targets)


class _SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hypotheses: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(hypotheses, targets)
        kernel = _few_cost if hypotheses.shape[-1] <= MAX_TURNS else _many_cost
        cost = kernel(_flat(hypotheses), _flat(targets))
        return cost.view(*hypotheses.shape[:-2], targets.shape[-2], hypotheses.shape[-2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hypotheses, targets = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if not may_work_in_place(grad):  # differentiated again
            return centred_pull(hypotheses, targets, grad, needs)
        few = hypotheses.shape[-1] <= MAX_TURNS
        pull_h, pull_t = (_few_pull_h, _few_pull_t) if few else (_many_pull_h, _many_pull_t)
        flat = [_flat(x) for x in (hypotheses, targets, grad)]
        return (
            pull_h(*flat).view(hypotheses.shape) if needs[0] else None,
            pull_t(*flat).view(targets.shape) if needs[1] else None,
        )


def _flat(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor [n, rows, columns]."""
    return tensor.contiguous().view(-1, *tensor.shape[-2:])
