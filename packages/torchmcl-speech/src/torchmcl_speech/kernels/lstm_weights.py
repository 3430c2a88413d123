"""Conversion of the parameters of a bidirectional LSTM to the order and dtype of its kernels, and of their gradients.

Each conversion is one kernel, because launching a dozen small kernels takes longer than a whole recurrence.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Weights", "parameter_gradients", "weights_in_order"]

_ROWS = 16
# Few rows, because a program reads each row once per share.
_ROWS_SUMMED = 4


class Weights(NamedTuple):
    """Weights of the LSTM kernels; rows are gates of units, first of one direction and then of the other."""

    inputs: Tensor
    """Input weights [2 * 4 * hidden, in]."""
    bias: Tensor
    """Sum of both biases, [2 * 4 * hidden]."""
    recurrent: Tensor
    """Recurrent weights [2, 4 * hidden, hidden], gate after gate; for `lstm_hopper` in the order of its products."""


@triton.jit
def _source(row, hidden, BY_UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Map rows in kernel order, in which the gates of a unit may be adjacent, to rows in the order of nn.LSTM."""
    if BY_UNIT:
        return (row % 4) * hidden + row // 4
    return row


@triton.jit
def _pack(  # type: ignore[no-untyped-def]
    in_0,
    rec_0,
    bias_in_0,
    bias_rec_0,
    in_1,
    rec_1,
    bias_in_1,
    bias_rec_1,
    weight_in,
    bias,
    recurrent,
    n_in,
    hidden,
    BY_UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    H: tl.constexpr,
):
    direction = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = row < 4 * hidden
    source = _source(row, hidden, BY_UNIT)
    unit, i = tl.arange(0, H), tl.arange(0, IN)
    of_inputs = own[:, None] & (i < n_in)[None, :]
    of_units = own[:, None] & (unit < hidden)[None, :]
    if direction == 0:
        x = tl.load(in_0 + source[:, None] * n_in + i[None, :], mask=of_inputs, other=0.0)
        h = tl.load(rec_0 + source[:, None] * hidden + unit[None, :], mask=of_units, other=0.0)
        b = tl.load(bias_in_0 + source, mask=own, other=0.0).to(tl.float32)
        b += tl.load(bias_rec_0 + source, mask=own, other=0.0).to(tl.float32)
    else:
        x = tl.load(in_1 + source[:, None] * n_in + i[None, :], mask=of_inputs, other=0.0)
        h = tl.load(rec_1 + source[:, None] * hidden + unit[None, :], mask=of_units, other=0.0)
        b = tl.load(bias_in_1 + source, mask=own, other=0.0).to(tl.float32)
        b += tl.load(bias_rec_1 + source, mask=own, other=0.0).to(tl.float32)
    kind = recurrent.dtype.element_ty
    x, h, b = x.to(kind), h.to(kind), b.to(kind)
    target = direction * 4 * hidden + row
    tl.store(weight_in + target[:, None] * n_in + i[None, :], x, mask=of_inputs)
    tl.store(bias + target, b, mask=own)
    if BY_UNIT:  # the products take rows and columns in the order m, m + 8 of 16
        to_row = direction * 4 * hidden + (source & -16) + (source % 2) * 8 + (source % 16) // 2
        to_column = (unit & -16) + (unit % 2) * 8 + (unit % 16) // 2
    else:
        to_row, to_column = target, unit
    tl.store(recurrent + to_row[:, None] * hidden + to_column[None, :], h, mask=of_units)


@triton.jit
def _unpack(  # type: ignore[no-untyped-def]
    sums,
    in_0,
    rec_0,
    bias_in_0,
    bias_rec_0,
    in_1,
    rec_1,
    bias_in_1,
    bias_rec_1,
    n_shares,
    n_in,
    hidden,
    BY_UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    H: tl.constexpr,
):
    direction = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = row < 4 * hidden
    target = _source(row, hidden, BY_UNIT)
    unit, i = tl.arange(0, H), tl.arange(0, IN)
    of_inputs = own[:, None] & (i < n_in)[None, :]
    of_units = own[:, None] & (unit < hidden)[None, :]
    x = tl.zeros((ROWS, IN), tl.float32)
    h = tl.zeros((ROWS, H), tl.float32)
    b = tl.zeros((ROWS,), tl.float32)
    for share in range(n_shares):
        place = sums + ((share * 2 + direction) * 4 * hidden + row) * (n_in + hidden + 1)
        x += tl.load(place[:, None] + i[None, :], mask=of_inputs, other=0.0)
        h += tl.load(place[:, None] + n_in + unit[None, :], mask=of_units, other=0.0)
        b += tl.load(place + n_in + hidden, mask=own, other=0.0)
    kind = in_0.dtype.element_ty
    x, h, b = x.to(kind), h.to(kind), b.to(kind)
    to_inputs, to_units = target[:, None] * n_in + i[None, :], target[:, None] * hidden + unit[None, :]
    if direction == 0:
        tl.store(in_0 + to_inputs, x, mask=of_inputs)
        tl.store(rec_0 + to_units, h, mask=of_units)
        tl.store(bias_in_0 + target, b, mask=own)
        tl.store(bias_rec_0 + target, b, mask=own)
    else:
        tl.store(in_1 + to_inputs, x, mask=of_inputs)
        tl.store(rec_1 + to_units, h, mask=of_units)
        tl.store(bias_in_1 + target, b, mask=own)
        tl.store(bias_rec_1 + target, b, mask=own)


def _launch(n_in: int, hidden: int, by_unit: bool, rows: int) -> tuple[tuple[int, int], dict[str, int]]:
    sizes = {"IN": triton.next_power_of_2(n_in), "H": triton.next_power_of_2(hidden), "ROWS": rows}
    return (triton.cdiv(4 * hidden, rows), 2), sizes | {"BY_UNIT": by_unit}


def weights_in_order(parameters: tuple[Tensor, ...], dtype: torch.dtype, by_unit: bool) -> Weights:
    """Convert parameters from the order of nn.LSTM to the layout of the kernels.

    Args:
        parameters: Both weights and both biases of each direction.
        dtype: Type of the result.
        by_unit: Whether the gates of each unit are adjacent; see `lstm.takes_gates_by_unit`.
    """
    (n_gates, n_in), hidden = parameters[0].shape, parameters[1].shape[1]
    inputs = torch.empty(2 * n_gates, n_in, dtype=dtype, device=parameters[0].device)
    bias = inputs.new_empty(2 * n_gates)
    recurrent = inputs.new_empty(2, n_gates, hidden)
    grid, options = _launch(n_in, hidden, by_unit, _ROWS)
    contiguous = (parameter.contiguous() for parameter in parameters)
    _pack[grid](*contiguous, inputs, bias, recurrent, n_in, hidden, **options)
    return Weights(inputs, bias, recurrent)


def parameter_gradients(sums: Tensor, n_in: int, dtype: torch.dtype, by_unit: bool) -> list[Tensor]:
    """Convert the gradients of `lstm_gradients.weight_sums` to gradients of parameters in the order of nn.LSTM."""
    n_shares, _, n_gates, _ = sums.shape
    hidden = n_gates // 4
    shapes = ((n_gates, n_in), (n_gates, hidden), (n_gates,), (n_gates,)) * 2
    gradients = [torch.empty(shape, dtype=dtype, device=sums.device) for shape in shapes]
    grid, options = _launch(n_in, hidden, by_unit, _ROWS_SUMMED)
    _unpack[grid](sums, *gradients, n_shares, n_in, hidden, **options)
    return gradients
