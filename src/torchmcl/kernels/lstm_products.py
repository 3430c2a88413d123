"""The products around the recurrences of an LSTM whose backward pass computes the gates anew, in 16-bit types.

A step meets its inputs and the outputs of the step before it. Each kernel reads both where they are, and the gates
once: the gates from both, the gradients of both weights and of the bias.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["MAX_FEATURES", "gates_again", "gradients_of_weights"]

# A program holds the gradients of all inputs for its gates.
MAX_FEATURES = 128

_GATES = {"ROWS": 128, "OUT": 256, "num_warps": 8, "num_stages": 3}
_WEIGHTS = {"ROWS": 64, "OUT": 128, "num_warps": 8, "num_stages": 4}
# Programs that fill a large GPU once: each direction has four blocks of gates.
_SHARES = 16


@triton.jit
def _rows_before(row, direction, n_rows, n_steps, stride_t):  # type: ignore[no-untyped-def]
    """Return the rows of the steps before, and which there are; the second direction walks backward."""
    step = (row // stride_t) % n_steps
    exists = tl.where(direction == 0, step > 0, step + 1 < n_steps) & (row < n_rows)
    return tl.where(exists, row - (1 - 2 * direction) * stride_t, 0), exists


@triton.jit
def _gates(  # type: ignore[no-untyped-def]
    inputs,
    outputs,
    weight_in,
    weight_rec,
    bias,
    gates,
    n_rows,
    n_in,
    hidden,
    n_steps,
    stride_t,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    H: tl.constexpr,
    DEPTH: tl.constexpr,
):
    n_blocks = tl.cdiv(4 * hidden, OUT)
    block = tl.program_id(0) % (2 * n_blocks)
    direction = block // n_blocks
    row = (tl.program_id(0) // (2 * n_blocks)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    out = (block % n_blocks) * OUT + tl.arange(0, OUT)
    before, exists = _rows_before(row, direction, n_rows, n_steps, stride_t)
    gate = direction * 4 * hidden + out
    total = tl.zeros((ROWS, OUT), tl.float32)
    for start in tl.static_range(0, IN, DEPTH):
        i = start + tl.arange(0, DEPTH)
        x = tl.load(
            inputs + row[:, None] * n_in + i[None, :], mask=(row < n_rows)[:, None] & (i < n_in)[None, :], other=0.0
        )
        w = tl.load(
            weight_in + gate[None, :] * n_in + i[:, None],
            mask=(out < 4 * hidden)[None, :] & (i < n_in)[:, None],
            other=0.0,
        )
        total = tl.dot(x, w, acc=total)
    for start in tl.static_range(0, H, DEPTH):
        i = start + tl.arange(0, DEPTH)
        h = tl.load(
            outputs + before[:, None] * (2 * hidden) + direction * hidden + i[None, :],
            mask=exists[:, None] & (i < hidden)[None, :],
            other=0.0,
        )
        w = tl.load(
            weight_rec + gate[None, :] * hidden + i[:, None],
            mask=(out < 4 * hidden)[None, :] & (i < hidden)[:, None],
            other=0.0,
        )
        total = tl.dot(h, w, acc=total)
    total += tl.load(bias + gate, mask=out < 4 * hidden, other=0.0).to(tl.float32)[None, :]
    place = gates + row[:, None] * (8 * hidden) + gate[None, :]
    tl.store(place, total.to(gates.dtype.element_ty), mask=(row < n_rows)[:, None] & (out < 4 * hidden)[None, :])


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    gates,
    inputs,
    outputs,
    to_in,
    to_rec,
    to_bias,
    n_rows,
    n_in,
    hidden,
    n_steps,
    stride_t,
    rows_each,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    H: tl.constexpr,
):
    n_blocks = tl.cdiv(4 * hidden, OUT)
    block = tl.program_id(0) % (2 * n_blocks)
    share = tl.program_id(0) // (2 * n_blocks)
    direction = block // n_blocks
    out = (block % n_blocks) * OUT + tl.arange(0, OUT)
    gate = direction * 4 * hidden + out
    i, k = tl.arange(0, IN), tl.arange(0, H)
    of_in = tl.zeros((OUT, IN), tl.float32)
    of_rec = tl.zeros((OUT, H), tl.float32)
    of_bias = tl.zeros((OUT, 16), tl.float32)
    ones = tl.full((ROWS, 16), 1.0, gates.dtype.element_ty)
    for start in range(share * rows_each, tl.minimum((share + 1) * rows_each, n_rows), ROWS):
        row = start + tl.arange(0, ROWS).to(tl.int64)
        before, exists = _rows_before(row, direction, n_rows, n_steps, stride_t)
        real = (row < n_rows)[:, None]
        g = tl.load(gates + row[:, None] * (8 * hidden) + gate[None, :], mask=real & (out < 4 * hidden)[None, :], other=0.0)
        x = tl.load(inputs + row[:, None] * n_in + i[None, :], mask=real & (i < n_in)[None, :], other=0.0)
        h = tl.load(
            outputs + before[:, None] * (2 * hidden) + direction * hidden + k[None, :],
            mask=exists[:, None] & (k < hidden)[None, :],
            other=0.0,
        )
        turned = tl.trans(g)
        of_in = tl.dot(turned, x, acc=of_in)
        of_rec = tl.dot(turned, h, acc=of_rec)
        of_bias = tl.dot(turned, ones, acc=of_bias)
    to = share * 8 * hidden + gate
    own = out < 4 * hidden
    tl.store(to_in + to[:, None] * n_in + i[None, :], of_in, mask=own[:, None] & (i < n_in)[None, :])
    tl.store(to_rec + to[:, None] * hidden + k[None, :], of_rec, mask=own[:, None] & (k < hidden)[None, :])
    tl.store(to_bias + to, tl.max(of_bias, axis=1), mask=own)


def gates_again(
    inputs: Tensor, outputs: Tensor, weight_in: Tensor, weight_rec: Tensor, bias: Tensor, n_steps: int, stride_t: int
) -> Tensor:
    """Return the gates before their sigmoids and tanh, [rows, gates].

    Args:
        inputs: [rows, in].
        outputs: from the forward pass, [rows, 2 * hidden].
        weight_in: [gates, in], with the gates of both directions in the order they are wanted.
        weight_rec: [gates, hidden].
        bias: [gates].
        n_steps: of a sequence.
        stride_t: rows from one step to the next.
    """
    (n_rows, n_in), (n_gates, hidden) = inputs.shape, weight_rec.shape
    gates = inputs.new_empty(n_rows, n_gates)
    n_programs = triton.cdiv(n_rows, _GATES["ROWS"]) * 2 * triton.cdiv(4 * hidden, _GATES["OUT"])
    sizes = _sizes(n_in, hidden)
    sizes["DEPTH"] = min(64, *sizes.values())
    _gates[(n_programs,)](
        inputs, outputs, weight_in, weight_rec, bias, gates, n_rows, n_in, hidden, n_steps, stride_t, **_GATES, **sizes
    )
    return gates


def gradients_of_weights(
    gates: Tensor, inputs: Tensor, outputs: Tensor, n_steps: int, stride_t: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of weight_in, weight_rec and bias in float32; the sums are in a fixed order.

    Args:
        gates: their gradients, [rows, gates].
        inputs: [rows, in].
        outputs: from the forward pass, [rows, 2 * hidden].
        n_steps: of a sequence.
        stride_t: rows from one step to the next.
    """
    (n_rows, n_in), hidden = inputs.shape, outputs.shape[1] // 2
    n_tile = _WEIGHTS["ROWS"]
    n_shares = max(1, min(_SHARES, n_rows // n_tile))
    rows_each = triton.cdiv(triton.cdiv(n_rows, n_tile), n_shares) * n_tile
    sums = [torch.empty(n_shares, 8 * hidden, *more, device=gates.device) for more in ((n_in,), (hidden,), ())]
    n_programs = n_shares * 2 * triton.cdiv(4 * hidden, _WEIGHTS["OUT"])
    _weights[(n_programs,)](
        gates, inputs, outputs, *sums, n_rows, n_in, hidden, n_steps, stride_t, rows_each, **_WEIGHTS, **_sizes(n_in, hidden)
    )
    to_in, to_rec, to_bias = (part.sum(dim=0) for part in sums)
    return to_in, to_rec, to_bias


def _sizes(n_in: int, hidden: int) -> dict[str, Any]:
    return {name: max(16, triton.next_power_of_2(n)) for name, n in (("IN", n_in), ("H", hidden))}
