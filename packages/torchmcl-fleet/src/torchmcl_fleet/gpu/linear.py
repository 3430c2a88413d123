"""Linear layers of many small models, with their ReLU, and Adam for their parameters, in one pass over memory each."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["adam_rows", "linear_rows", "linear_rows_backward"]

# Tiles of rows and warps, as measured on Hopper: the sums over rows of the backward pass are fastest in a single warp.
_FORWARD = {"ROWS": 64, "num_warps": 4}
_BACKWARD = {"ROWS": 16, "num_warps": 1}
# Programs that keep a large GPU busy; with fewer models several share the rows of one.
_PROGRAMS = 8192


@triton.jit(do_not_specialize=("n_rows",))
def _forward(
    inputs,
    weight,
    bias,
    outputs,
    n_rows,
    n_in,
    n_out,
    inputs_model,
    weight_model,
    bias_model,
    RECTIFIED: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
):
    model = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    i, o = tl.arange(0, IN), tl.arange(0, OUT)
    real_in, real_out, real_row = i < n_in, o < n_out, row < n_rows
    x = tl.load(
        inputs + model * inputs_model + row[:, None] * n_in + i[None, :],
        mask=real_row[:, None] & real_in[None, :],
        other=0.0,
    )
    w = tl.load(
        weight + model * weight_model + o[None, :] * n_in + i[:, None],
        mask=real_in[:, None] & real_out[None, :],
        other=0.0,
    )
    y = tl.dot(x, w, input_precision=PRECISION)
    y += tl.load(bias + model * bias_model + o, mask=real_out, other=0.0)[None, :]
    if RECTIFIED:
        y = tl.where(y < 0, 0.0, y)  # NaN stays NaN
    place = (model * n_rows + row)[:, None] * n_out + o[None, :]
    tl.store(outputs + place, y, mask=real_row[:, None] & real_out[None, :])


@triton.jit(do_not_specialize=("n_rows", "n_models", "rows_each"))
def _backward(
    inputs,
    weight,
    outputs,
    grad,
    to_inputs,
    to_layer,
    n_rows,
    n_in,
    n_out,
    n_models,
    inputs_model,
    weight_model,
    rows_each,
    RECTIFIED: tl.constexpr,
    NEEDS_INPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
):
    model = tl.program_id(0).to(tl.int64)
    share = tl.program_id(1)
    i, o = tl.arange(0, IN), tl.arange(0, OUT)
    real_in, real_out = i < n_in, o < n_out
    both = real_out[:, None] & real_in[None, :]
    w = tl.load(weight + model * weight_model + o[:, None] * n_in + i[None, :], mask=both, other=0.0)
    sum_weight = tl.zeros((OUT, IN), tl.float32)
    sum_bias = tl.zeros((OUT,), tl.float32)
    for start in range(share * rows_each, tl.minimum((share + 1) * rows_each, n_rows), ROWS):
        row = start + tl.arange(0, ROWS)
        real_row = row < n_rows
        place = (model * n_rows + row)[:, None] * n_out + o[None, :]
        real = real_row[:, None] & real_out[None, :]
        g = tl.load(grad + place, mask=real, other=0.0)
        if RECTIFIED:
            y = tl.load(outputs + place, mask=real, other=0.0)
            g = tl.where(y <= 0, 0.0, g)
        real = real_row[:, None] & real_in[None, :]
        x = tl.load(inputs + model * inputs_model + row[:, None] * n_in + i[None, :], mask=real, other=0.0)
        sum_weight += tl.dot(tl.trans(g), x, input_precision=PRECISION)
        sum_bias += tl.sum(g, axis=0)
        if NEEDS_INPUTS:
            pulled = tl.dot(g, w, input_precision=PRECISION)
            tl.store(to_inputs + (model * n_rows + row)[:, None] * n_in + i[None, :], pulled, mask=real)
    total = share * n_models + model
    # The gradient of the bias is one more column of that of the weight.
    tl.store(to_layer + (total * n_out + o)[:, None] * (n_in + 1) + i[None, :], sum_weight, mask=both)
    tl.store(to_layer + (total * n_out + o) * (n_in + 1) + n_in, sum_bias, mask=real_out)


def linear_rows(inputs: Tensor, weight: Tensor, bias: Tensor, rectified: bool) -> Tensor:
    """Return inputs @ weight^T + bias, optionally followed by a ReLU, for each model.

    Args:
        inputs: [models, rows, in], with contiguous rows.
        weight: [models, out, in], contiguous for each model.
        bias: [models, out], likewise.
        rectified: Whether a ReLU follows.
    """
    (n_models, n_rows, n_in), n_out = inputs.shape, weight.shape[1]
    outputs = inputs.new_empty(n_models, n_rows, n_out)
    _forward[(n_models, triton.cdiv(n_rows, _FORWARD["ROWS"]))](
        inputs,
        weight,
        bias,
        outputs,
        n_rows,
        n_in,
        n_out,
        inputs.stride(0),
        weight.stride(0),
        bias.stride(0),
        RECTIFIED=rectified,
        PRECISION="tf32x3" if _is_exact() else "tf32",  # three TF32 products are as exact as float32
        **_FORWARD,
        **_sizes(n_in, n_out),
    )
    return outputs


def linear_rows_backward(
    inputs: Tensor, weight: Tensor, outputs: Tensor, grad: Tensor, rectified: bool, needs_inputs: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients of inputs (where needed), weight and bias, summed in a fixed order."""
    (n_models, n_rows, n_in), n_out = inputs.shape, weight.shape[1]
    n_tile = _BACKWARD["ROWS"]
    n_shares = max(1, min(_PROGRAMS // n_models, n_rows // (4 * n_tile)))
    to_inputs = torch.empty_like(inputs, memory_format=torch.contiguous_format) if needs_inputs else None
    to_layer = inputs.new_empty(n_shares, n_models, n_out, n_in + 1)
    _backward[(n_models, n_shares)](
        inputs,
        weight,
        outputs,
        grad,
        grad if to_inputs is None else to_inputs,
        to_layer,
        n_rows,
        n_in,
        n_out,
        n_models,
        inputs.stride(0),
        weight.stride(0),
        triton.cdiv(triton.cdiv(n_rows, n_tile), n_shares) * n_tile,
        RECTIFIED=rectified,
        NEEDS_INPUTS=needs_inputs,
        PRECISION="ieee" if _is_exact() else "tf32",
        **_BACKWARD,
        **_sizes(n_in, n_out),
    )
    summed = to_layer[0] if n_shares == 1 else to_layer.sum(dim=0)
    return to_inputs, summed[..., :-1], summed[..., -1]


def _is_exact() -> bool:
    return torch.get_float32_matmul_precision() == "highest"


def _sizes(n_in: int, n_out: int) -> dict[str, Any]:
    return {name: max(16, triton.next_power_of_2(n)) for name, n in (("IN", n_in), ("OUT", n_out))}


@triton.jit
def one_minus_exp(x):
    """Return 1 - e^x for x <= 0; near 0 by its series, because the subtraction would lose digits."""
    near = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))
    return tl.where(x > -0.1, near, 1 - tl.exp(x))


@triton.jit
def _adam(
    flat,
    grad,
    mean,
    square,
    n_steps,
    lr,
    decay,
    width,
    beta1,
    beta2,
    log1,
    log2,
    epsilon,
    HAS_DECAY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    model = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = model.to(tl.int64) * width + column
    g = tl.load(grad + place, mask=inside, other=0.0)
    m = tl.load(mean + place, mask=inside, other=0.0)
    v = tl.load(square + place, mask=inside, other=0.0)
    p = tl.load(flat + place, mask=inside, other=0.0)
    rate = tl.load(lr + model)
    m = m + (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    if HAS_DECAY:
        p = p * (1 - rate * tl.load(decay + model))
    steps = tl.load(n_steps + model)
    correct1, correct2 = one_minus_exp(steps * log1), one_minus_exp(steps * log2)
    p = p - (rate / correct1) * m / (tl.sqrt(v) / tl.sqrt(correct2) + epsilon)
    tl.store(mean + place, m, mask=inside)
    tl.store(square + place, v, mask=inside)
    tl.store(flat + place, p, mask=inside)


def adam_rows(
    flat: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    n_steps: Tensor,
    lr: Tensor,
    decay: Tensor | None,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Change parameters and moments in place; `n_steps` already counts this step."""
    n_models, width = flat.shape
    grid = (n_models, triton.cdiv(width, 512))
    _adam[grid](
        flat,
        grad,
        mean,
        square,
        n_steps,
        lr,
        lr if decay is None else decay,
        width,
        *betas,
        *map(math.log, betas),
        epsilon,
        HAS_DECAY=decay is not None,
        BLOCK=512,
    )
