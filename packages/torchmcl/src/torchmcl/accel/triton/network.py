"""A network with one hidden layer on a block of rows, inside a kernel: products, forward pass, losses, dropout.

A column of ones stands behind the inputs and a unit that is always 1 behind the hidden units, so that biases are
weights like all others: `first` [inputs, hidden] and `second` [outputs, hidden], both padded to powers of 2. Outputs
lie as groups of hypotheses: a group for each coordinate, then one for the scores.
"""

import triton
import triton.language as tl

__all__ = ["forward", "is_finite", "mixed", "product", "rows_of"]


@triton.jit
def _high(x):
    """Return numbers without the last bits of their mantissa, as matrix units read them."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def product(a, b, c):
    """Return a @ b + c in three products of matrix units, to single precision.

    The same as `input_precision="tf32x3"`, without its care for infinities: they become NaN, and a model whose
    gradient is not finite keeps its weights in any case.
    """
    high_a, high_b = _high(a), _high(b)
    c = tl.dot(a - high_a, high_b, c, input_precision="tf32")
    c = tl.dot(high_a, b - high_b, c, input_precision="tf32")
    return tl.dot(high_a, high_b, c, input_precision="tf32")


@triton.jit
def mixed(number):
    """Return a pseudo-random integer of 64 bits, as `fleet.batches.mixed`."""
    number = (number ^ ((number >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    number = (number ^ ((number >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return number ^ ((number >> 31) & 0x1FFFFFFFF)


@triton.jit
def _uniform(stream, place):
    """Return a number in [0, 1) for each position by a hash, a tenth of the work of a generator."""
    number = (place ^ stream.to(tl.int32)).to(tl.uint32) * 0x9E3779B1
    number = (number ^ (number >> 15)) + (stream >> 32).to(tl.int32).to(tl.uint32)
    number = (number ^ (number >> 16)) * 0x85EBCA77
    number = (number ^ (number >> 13)) * 0xC2B2AE3D
    return ((number ^ (number >> 16)) >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def rows_of(inputs, targets, row, real, F, D, FEATURES: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return inputs [rows, features] with a column of ones, and the target coordinate of each output."""
    f = tl.arange(0, FEATURES)[None, :]
    g = tl.arange(0, GROUPS * COLUMNS)[None, :] // COLUMNS
    x = tl.load(inputs + row[:, None] * F + f, mask=real[:, None] & (f < F), other=0.0)
    y = tl.load(targets + row[:, None] * D + g, mask=real[:, None] & (g < D), other=0.0)
    return tl.where(f == F, 1.0, x), y


@triton.jit
def forward(
    x, y, first, second, temperature, epsilon, score_weight, H, K, D, stream, start, left_share,
    ROWS: tl.constexpr, HIDDEN: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, ABSOLUTE: tl.constexpr
):  # fmt: skip
    """Return hidden units; difference, weight and cost of each output; the winner; and the loss of each output.

    All but the hidden units are [rows, outputs]. Cost and weight of a hypothesis stand at its first coordinate for the
    loss, and at all of them for the gradient.
    """
    o = tl.arange(0, GROUPS * COLUMNS)[None, :]
    group, k = o // COLUMNS, o % COLUMNS
    hidden = product(x, first, tl.zeros((ROWS, HIDDEN), dtype=tl.float32))
    hidden = tl.where(hidden < 0, 0.0, hidden)  # keeps a NaN
    if left_share < 1:
        h = tl.arange(0, HIDDEN)[None, :]
        place = (start + tl.arange(0, ROWS))[:, None] * HIDDEN + h
        stays = _uniform(stream, place) < left_share
        hidden = tl.where(h < H, tl.where(stays, hidden * (1.0 / left_share), 0.0), hidden)
    outputs = product(hidden, tl.trans(second), tl.zeros((ROWS, GROUPS * COLUMNS), dtype=tl.float32))
    difference = outputs - y
    cost = tl.abs(difference) if ABSOLUTE else difference * difference
    if GROUPS > 2:  # add up the coordinates of a hypothesis, and let each of them have the sum
        other = tl.arange(0, GROUPS * COLUMNS)[:, None]
        alike = tl.where((other % COLUMNS == k) & (other // COLUMNS < D), 1.0, 0.0)
        cost = product(cost, alike, tl.zeros((ROWS, GROUPS * COLUMNS), dtype=tl.float32))
    cost = tl.where((group < D) & (k < K), cost, float("inf"))
    lowest = tl.min(cost, axis=1)[:, None]
    winner = tl.argmin(cost, axis=1)[:, None] % COLUMNS
    label = k == winner
    # -log2(e) / temperature, finite for the smallest temperature and not 0 for the largest.
    factor = -1.4426950408889634 / tl.where(temperature > 0, temperature, 1.0)
    factor = tl.minimum(tl.maximum(factor, -3.4028234663852886e38), -1.1754943508222875e-38)
    left = tl.where(K > 1, epsilon, 0.0)  # a single hypothesis has all the weight
    soft = tl.exp2((cost - lowest) * factor)  # 0 for padding, whose cost is infinite
    soft *= 1.0 / tl.sum(soft if GROUPS == 2 else tl.where(group == 0, soft, 0.0), axis=1)[:, None]
    hard = tl.where(label, 1 - left, left / tl.maximum(K - 1, 1))
    weight = tl.where(temperature > 0, soft, hard)
    # log(1 + e) is log1p for our purpose: e <= 1, and for tiny e the absolute error is below 1e-7.
    entropy = tl.where(outputs > 0, outputs, 0.0) - tl.where(label, outputs, 0.0)
    entropy += tl.log(1.0 + tl.exp(-tl.abs(outputs)))
    loss = tl.where(group == 0, weight * cost, tl.where(group == D, entropy * (score_weight / K), 0.0))
    return hidden, outputs, difference, cost, weight, label, tl.where(k < K, loss, 0.0)


@triton.jit
def is_finite(number):
    return number - number == 0
