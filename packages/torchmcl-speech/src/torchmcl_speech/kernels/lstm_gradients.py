"""Gradients of the weights of an LSTM: gradients of the gates times their operands, summed over all steps.

The operands of a step are its inputs, a 1 (for the bias) and the outputs of the previous step, which are read
`stride_t` rows away instead of being copied beside the inputs. Each program sums a part of the rows (a share) for a
tile of gates; `lstm_weights` adds up the shares.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["weight_sums"]

# Numbers of rows and gates that a program processes at once, and of columns of inputs and outputs.
_ROWS, _GATES, _COLUMNS = 32, 128, 128
# Minimum number of columns of a product, used for the bias.
_ONES = 16


@triton.jit
def _weight_sums(  # type: ignore[no-untyped-def]
    gates,
    inputs,
    outputs,
    sums,
    n_rows,
    n_steps,
    stride_t,
    rows_each,
    n_in: tl.constexpr,
    hidden: tl.constexpr,
    ROWS: tl.constexpr,
    GATES: tl.constexpr,
    IN: tl.constexpr,
    H: tl.constexpr,
    ONES: tl.constexpr,
):
    share, part = tl.program_id(1), tl.program_id(2)
    n_tiles: tl.constexpr = tl.cdiv(4 * hidden, GATES)
    direction = tl.program_id(0) // n_tiles
    gate = (tl.program_id(0) % n_tiles) * GATES + tl.arange(0, GATES)
    i, unit = part * IN + tl.arange(0, IN), part * H + tl.arange(0, H)
    gates += direction * 4 * hidden
    outputs += direction * hidden
    before = (2 * direction - 1) * stride_t  # the second direction runs from the last step to the first
    to_inputs = tl.zeros((GATES, IN), tl.float32)
    to_units = tl.zeros((GATES, H), tl.float32)
    to_bias = tl.zeros((GATES, ONES), tl.float32)
    ones = tl.full((ROWS, ONES), 1.0, gates.dtype.element_ty)
    end = tl.minimum((share + 1) * rows_each, n_rows)
    # The first step of a direction has no previous step. The steps of a sequence are `stride_t` rows apart, and
    # sequences are `period` rows apart.
    period = n_steps * stride_t
    begins, ends = (1 - direction) * stride_t, period - direction * stride_t
    for start in range(share * rows_each, end, ROWS):
        row = start + tl.arange(0, ROWS)
        real, in_period = row < end, row % period
        follows = real & (in_period >= begins) & (in_period < ends)
        row = row.to(tl.int64)
        pull = tl.load(
            gates + row[:, None] * (8 * hidden) + gate[None, :],
            mask=real[:, None] & (gate < 4 * hidden)[None, :],
            other=0.0,
        )
        x = tl.load(inputs + row[:, None] * n_in + i[None, :], mask=real[:, None] & (i < n_in)[None, :], other=0.0)
        earlier = outputs + (row + before)[:, None] * (2 * hidden) + unit[None, :]
        h = tl.load(earlier, mask=follows[:, None] & (unit < hidden)[None, :], other=0.0)
        turned = tl.trans(pull)
        to_inputs = tl.dot(turned, x, to_inputs)
        to_units = tl.dot(turned, h, to_units)
        to_bias = tl.dot(turned, ones, to_bias)
    own = (gate < 4 * hidden)[:, None]
    place = sums + ((share * 2 + direction) * 4 * hidden + gate)[:, None] * (n_in + hidden + 1)
    tl.store(place + i[None, :], to_inputs, mask=own & (i < n_in)[None, :])
    tl.store(place + n_in + unit[None, :], to_units, mask=own & (unit < hidden)[None, :])
    one = tl.arange(0, ONES)[None, :]
    tl.store(place + n_in + hidden + one, to_bias, mask=own & (one + part == 0))


def weight_sums(gates: Tensor, inputs: Tensor, outputs: Tensor, n_steps: int, stride_t: int) -> Tensor:
    """Compute the gradients of the input weights, the recurrent weights and the bias, concatenated.

    Args:
        gates: Gradients of the gates of both directions, [rows, 2 * 4 * hidden].
        inputs: Inputs [rows, in].
        outputs: Outputs of both directions, [rows, 2 * hidden].
        n_steps: Number of steps per sequence.
        stride_t: Number of rows from one step to the next.

    Returns:
        Gradients [shares, 2, 4 * hidden, in + hidden + 1] in float32, which must be summed over the shares.
    """
    if gates.dtype == torch.float32:  # the precision of torch's products follows its settings
        return _sums_in_single(gates, inputs, outputs, n_steps, stride_t).unsqueeze(0)
    (n_rows, n_in), hidden = inputs.shape, outputs.shape[1] // 2
    sizes = {"IN": _block(n_in), "H": _block(hidden)}
    n_tiles = 2 * triton.cdiv(4 * hidden, _GATES)
    n_parts = max(triton.cdiv(n_in, sizes["IN"]), triton.cdiv(hidden, sizes["H"]))
    n_at_once = torch.cuda.get_device_properties(gates.device).multi_processor_count if gates.is_cuda else 1
    n_shares = max(1, min(n_at_once // (n_tiles * n_parts), n_rows // _ROWS))
    rows_each = triton.cdiv(triton.cdiv(n_rows, n_shares), _ROWS) * _ROWS
    sums = torch.empty(n_shares, 2, 4 * hidden, n_in + hidden + 1, dtype=torch.float32, device=gates.device)
    _weight_sums[(n_tiles, n_shares, n_parts)](
        gates, inputs, outputs, sums, n_rows, n_steps, stride_t, rows_each,
        n_in=n_in, hidden=hidden, ROWS=_ROWS, GATES=_GATES, ONES=_ONES, **sizes, num_warps=8, num_stages=4
    )  # fmt: skip
    return sums


def _block(n: int) -> int:
    return min(_COLUMNS, max(16, triton.next_power_of_2(n)))


def _sums_in_single(gates: Tensor, inputs: Tensor, outputs: Tensor, n_steps: int, stride_t: int) -> Tensor:
    hidden = outputs.shape[1] // 2
    step = (torch.arange(len(gates), device=gates.device) // stride_t % n_steps).unsqueeze(1)
    earlier = outputs[:, :hidden].roll(stride_t, dims=0) * (step > 0)
    later = outputs[:, hidden:].roll(-stride_t, dims=0) * (step + 1 < n_steps)
    halves = zip(gates.split(4 * hidden, dim=1), (earlier, later), strict=True)
    return torch.stack([torch.cat([half.T @ inputs, half.T @ h, half.sum(0).unsqueeze(1)], 1) for half, h in halves])
