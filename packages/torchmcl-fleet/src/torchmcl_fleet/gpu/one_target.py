"""Step for one target per sample, with one forward and one backward kernel for cost, weights and both losses.

As separate operations, a step consists of thirty kernels, and Python takes longer to launch them than the GPU to run
them. Here one program computes the whole step for a few samples and keeps intermediate results in registers.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchmcl import dispatch
from torchmcl.costs import distances
from torchmcl_fleet.native.one_target import plain_pull

__all__ = ["one_target_losses"]

# A program holds at least one sample: all of its hypotheses, and in the backward pass all of their coordinates.
_MAX_ENTRIES = 8192


@triton.jit(do_not_specialize=("n_rows", "K"))
def _forward(
    h, t, logits, cost, weights, winners, losses, score_losses, n_rows, K, factor, top, rest,
    D: tl.constexpr, SOFT: tl.constexpr, SCORED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    real = (row < n_rows) & (column < K)
    value = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for d in tl.static_range(D):
        x = tl.load(h + (row * K + column) * D + d, mask=real, other=0.0)
        y = tl.load(t + row * D + d, mask=row < n_rows, other=0.0)
        value += (x - y) * (x - y)
    tl.store(cost + row * K + column, value, mask=real)
    inside = tl.where(real, value, float("inf"))
    winner = tl.argmin(inside, axis=1)
    if SOFT:
        # A NaN must reach every weight of its row; min() alone would ignore it.
        power = tl.where(real, tl.exp2((inside - tl.min(inside, axis=1)[:, None]) * factor), 0.0)
        weight = power / tl.sum(power, axis=1)[:, None]
    else:
        weight = tl.where(column == winner[:, None], top, rest)
    tl.store(weights + row * K + column, weight, mask=real)
    loss = tl.sum(tl.sum(tl.where(real, weight * value, 0.0), axis=1), axis=0) / n_rows
    tl.store(losses + tl.program_id(0), loss - 0.0 * loss)  # NaN for infinity, as in `mcl_loss`
    if SCORED:
        first = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        tl.store(winners + first, winner, mask=first < n_rows)
        x = tl.load(logits + row * K + column, mask=real, other=0.0)
        label = tl.where(column == winner[:, None], 1.0, 0.0)
        # log(1 + e) is accurate enough here: e <= 1, and for tiny e the absolute error is below 1e-7.
        entropy = tl.where(x > 0, x, 0.0) - x * label + tl.log(1.0 + tl.exp(-tl.abs(x)))
        of_rows = tl.sum(tl.where(real, entropy, 0.0), axis=1) / K / n_rows
        tl.store(score_losses + tl.program_id(0), tl.sum(of_rows, axis=0))


@triton.jit(do_not_specialize=("n_rows", "K"))
def _backward(
    h, t, logits, weights, winners, upstream, score_upstream, to_h, to_logits, n_rows, K,
    D: tl.constexpr, PULL: tl.constexpr, SCORED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ENTRIES: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    if PULL:
        entry = tl.arange(0, ENTRIES)[None, :]  # hypotheses and coordinates, contiguous in memory
        real = (row < n_rows) & (entry < K * D)
        x = tl.load(h + row * K * D + entry, mask=real, other=0.0)
        y = tl.load(t + row * D + entry % D, mask=real, other=0.0)
        w = tl.load(weights + row * K + entry // D, mask=real, other=0.0)
        tl.store(to_h + row * K * D + entry, 2.0 / n_rows * tl.load(upstream) * w * (x - y), mask=real)
    if SCORED:
        column = tl.arange(0, COLUMNS)[None, :]
        real = (row < n_rows) & (column < K)
        x = tl.load(logits + row * K + column, mask=real, other=0.0)
        winner = tl.load(winners + row, mask=row < n_rows, other=0)
        pull = tl.sigmoid(x) - tl.where(column == winner, 1.0, 0.0)
        tl.store(to_logits + row * K + column, pull * (tl.load(score_upstream) / K / n_rows), mask=real)


def one_target_losses(
    hypotheses: Tensor, targets: Tensor, logits: Tensor | None, temperature: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return cost, weights, the mean weighted cost, and the mean cross-entropy of the scores with winners as labels.

    Args:
        hypotheses: Hypotheses, [n, hypotheses, dim].
        targets: Targets, [n, 1, dim].
        logits: Score logits, [n, hypotheses]; without them the last result is None.
        temperature: Temperature of soft weights, finite; 0 for hard weights.
        epsilon: Weight that all other hypotheses share under hard weights.
    """
    if hypotheses.shape[-1] > distances.MAX_TURNS or hypotheses.shape[-2:].numel() > _MAX_ENTRIES:
        return NotImplemented
    return _OneTarget.apply(hypotheses, targets, logits, temperature, epsilon)


def _power_of_2(n: int) -> int:
    """Return the next power of 2; faster than the function of Triton."""
    return 1 << (n - 1).bit_length()


def _blocks(K: int, D: int) -> dict[str, int]:
    return {"ROWS": max(1, 2048 // _power_of_2(K * D)), "COLUMNS": _power_of_2(K)}


class _OneTarget(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hypotheses: Tensor, targets: Tensor, logits: Tensor | None, temperature: float, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        n, K, D = hypotheses.shape
        h, t = hypotheses.contiguous(), targets.contiguous()
        x = h if logits is None else logits.contiguous()
        cost, weights = h.new_empty(n, 1, K), h.new_empty(n, 1, K)
        winners = torch.empty(n, dtype=torch.int32, device=h.device)
        blocks = _blocks(K, D)
        grid = (-(-n // blocks["ROWS"]),)
        losses, score_losses = h.new_empty(grid), h.new_empty(grid)
        factor = max(-math.log2(math.e) / temperature, -torch.finfo(torch.float32).max) if temperature else 0.0
        top, rest = (1 - epsilon, epsilon / (K - 1)) if K > 1 else (1.0, 0.0)
        flags = {"D": D, "SOFT": temperature > 0, "SCORED": logits is not None}
        results = cost, weights, winners, losses, score_losses
        _forward[grid](h, t, x, *results, n, K, factor, top, rest, **flags, **blocks)
        ctx.save_for_backward(h, t, x, weights, winners)
        ctx.scored = logits is not None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(weights)
        return cost, weights, losses.sum(), score_losses.sum() if ctx.scored else None

    @staticmethod
    def backward(
        ctx: Any, cost_grad: Tensor | None, _: None, grad: Tensor | None, score_grad: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        h, t, x, weights, winners = ctx.saved_tensors
        pulls, pulls_targets, scores = ctx.needs_input_grad[:3]
        pulls, scores = pulls and grad is not None, ctx.scored and scores and score_grad is not None
        if cost_grad is not None or pulls_targets or not dispatch.may_work_in_place(grad, score_grad):
            saved = h, t, x if ctx.scored else None, weights, winners
            return (*plain_pull(*saved, (cost_grad, grad, score_grad), ctx.needs_input_grad), None, None)
        n, K, D = h.shape
        to_h, to_logits = torch.empty_like(h) if pulls else h, torch.empty_like(x) if scores else x
        blocks = _blocks(K, D)
        grid = (-(-n // blocks["ROWS"]),)
        flags = {"D": D, "PULL": pulls, "SCORED": scores, "ENTRIES": _power_of_2(K * D)}
        upstream, score_upstream = grad if pulls else h, score_grad if scores else h
        if pulls or scores:
            _backward[grid](
                h, t, x, weights, winners, upstream, score_upstream, to_h, to_logits, n, K, **flags, **blocks
            )
        return to_h if pulls else None, None, to_logits if scores else None, None, None
