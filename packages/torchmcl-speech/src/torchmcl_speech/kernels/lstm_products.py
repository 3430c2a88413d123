"""The operands of each LSTM step side by side: the inputs and the outputs of the previous step.

One matrix for both directions, so that a backward pass that recomputes the gates needs one product for each
direction, and another one for the gradients of both weights and the bias.
"""

import triton
import triton.language as tl
from torch import Tensor

# Columns for the bias: 1 and then 0, so that rows stay aligned.
ONES = 8
_ROWS = 32


@triton.jit
def _met(  # type: ignore[no-untyped-def]
    inputs,
    outputs,
    met,
    n_rows,
    n_in,
    hidden,
    n_steps,
    stride_t,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    H: tl.constexpr,
    ONES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n_rows
    place = met + row[:, None] * (2 * hidden + n_in + ONES)
    step = (row // stride_t) % n_steps
    unit, i, one = tl.arange(0, H), tl.arange(0, IN), tl.arange(0, ONES)
    own = real[:, None] & (unit < hidden)[None, :]
    earlier = outputs + (row - stride_t)[:, None] * (2 * hidden) + unit[None, :]
    h = tl.load(earlier, mask=own & (step > 0)[:, None], other=0.0)
    tl.store(place + unit[None, :], h, mask=own)
    x = tl.load(inputs + row[:, None] * n_in + i[None, :], mask=real[:, None] & (i < n_in)[None, :], other=0.0)
    tl.store(place + hidden + i[None, :], x, mask=real[:, None] & (i < n_in)[None, :])
    first = (row * 0)[:, None] + tl.where(one == 0, 1, 0)[None, :]
    tl.store(
        place + hidden + n_in + one[None, :], first.to(met.dtype.element_ty), mask=real[:, None] & (one >= 0)[None, :]
    )
    # The second direction runs from the last step to the first.
    later = outputs + (row + stride_t)[:, None] * (2 * hidden) + hidden + unit[None, :]
    h = tl.load(later, mask=own & (step + 1 < n_steps)[:, None], other=0.0)
    tl.store(place + hidden + n_in + ONES + unit[None, :], h, mask=own)


def met_by_steps(inputs: Tensor, outputs: Tensor, n_steps: int, stride_t: int) -> tuple[Tensor, Tensor]:
    """Return the operands of the steps of each direction, as views of one matrix.

    Args:
        inputs: [rows, in].
        outputs: of both directions, [rows, 2 * hidden].
        n_steps: of a sequence.
        stride_t: rows from one step to the next.

    Returns:
        [rows, hidden + in + ONES], outputs before, inputs and ones; and [rows, in + ONES + hidden].
    """
    (n_rows, n_in), hidden = inputs.shape, outputs.shape[1] // 2
    met = inputs.new_empty(n_rows, 2 * hidden + n_in + ONES)
    sizes = {"IN": triton.next_power_of_2(n_in), "H": triton.next_power_of_2(hidden)}
    grid = (triton.cdiv(n_rows, _ROWS),)
    _met[grid](inputs, outputs, met, n_rows, n_in, hidden, n_steps, stride_t, ROWS=_ROWS, ONES=ONES, **sizes)
    return met[:, : hidden + n_in + ONES], met[:, hidden:]
