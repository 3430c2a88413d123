"""Adam for a matrix of parameters, one row per model, in one pass over memory."""

import math

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["adam_rows", "one_minus_exp"]


@triton.jit
def one_minus_exp(x):
    """Return 1 - e^x for x <= 0, near 0 by its series, because the difference would lose digits."""
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
