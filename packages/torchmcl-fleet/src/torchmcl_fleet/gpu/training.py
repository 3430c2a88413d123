"""Whole epochs of small networks in one kernel: each program trains one model and keeps its best weights.

An epoch of a small network launched part by part takes a few hundred kernels of a few microseconds, each of which loads
the weights from memory and stores them again. Here a model's weights stay in registers from batch to batch and from
epoch to epoch; only rows and moments are loaded and stored, through the caches.

The networks have one hidden layer. A column of ones is appended to the inputs and a unit that is always 1 to the hidden
units, so that biases are weights like all others: `first` [hidden, inputs] and `second` [hidden, outputs], both padded
to powers of 2. Outputs are stored in groups of hypotheses: a group for each coordinate, then one for the scores.

Matrix units take the columns of their left side in another order than that in which they return columns: column c of a
result is in the position `_position(c)` of the left side. Where the result of a product is the left side of the next,
its columns stay in the threads that have them, and the rows of the right side change places instead: the units of
`second`, and the rows of a block. The hidden units are computed twice for this reason, by rows and by units.
"""

import triton
import triton.language as tl

from torchmcl_fleet.gpu.stacked import one_minus_exp


@triton.jit
def _high(x):
    """Return numbers with their mantissa truncated to the precision of matrix units."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def product(a, b, c):
    """Return a @ b + c in single precision, by three products on matrix units.

    The same as `input_precision="tf32x3"`, without its handling of infinities: they become NaN, and a model whose
    gradient is not finite keeps its weights in any case.
    """
    high_a, high_b = _high(a), _high(b)
    c = tl.dot(a - high_a, high_b, c, input_precision="tf32")
    c = tl.dot(high_a, b - high_b, c, input_precision="tf32")
    return tl.dot(high_a, high_b, c, input_precision="tf32")


@triton.jit
def _both(b, K: tl.constexpr, N: tl.constexpr):
    """Return [K, 2 * N]: the high parts of all columns, then the low parts."""
    high = _high(b)
    return tl.reshape(tl.permute(tl.join(high, b - high), (0, 2, 1)), (K, 2 * N))


@triton.jit
def product_of_both(a, both, c):
    """Return a @ both + c: with the sum of both halves, the product in single precision."""
    high = _high(a)
    c = tl.dot(a - high, both, c, input_precision="tf32")
    return tl.dot(high, both, c, input_precision="tf32")


@triton.jit
def _summed(c, M: tl.constexpr, N: tl.constexpr):
    """Return the sums of both halves of [M, 2 * N]."""
    low, high = tl.split(tl.permute(tl.reshape(c, (M, 2, N)), (0, 2, 1)))
    return low + high


@triton.jit
def _as_left(x, M: tl.constexpr, K: tl.constexpr):
    """Return the result of a product as the left side of another, each column in its position."""
    return tl.reshape(tl.permute(tl.reshape(x, (M, K // 8, 4, 2)), (0, 1, 3, 2)), (M, K))


@triton.jit
def _by_position(x, K: tl.constexpr, N: tl.constexpr):
    """Return rows in the order of `_as_left`."""
    return tl.reshape(tl.permute(tl.reshape(x, (K // 8, 4, 2, N)), (0, 2, 1, 3)), (K, N))


@triton.jit
def _by_column(x, K: tl.constexpr, N: tl.constexpr):
    """Return rows in the order before `_by_position`."""
    return tl.reshape(tl.permute(tl.reshape(x, (K // 8, 2, 4, N)), (0, 2, 1, 3)), (K, N))


@triton.jit
def _position(column):
    return (column & -8) + (column % 2) * 4 + (column // 2) % 4


@triton.jit
def _column(position):
    return (position & -8) + (position % 4) * 2 + (position // 4) % 2


@triton.jit
def mixed(number):
    """Return a pseudo-random 64-bit integer, the same as `fleet.data.mixed`."""
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
    if GROUPS == 2:
        y = tl.where(g < D, tl.load(targets + row, mask=real, other=0.0)[:, None], 0.0)
    else:
        y = tl.load(targets + row[:, None] * D + g, mask=real[:, None] & (g < D), other=0.0)
    return tl.where(f == F, 1.0, x), y


@triton.jit
def _activated(hidden, h, row, H, stream, left_share, HIDDEN: tl.constexpr, DROPOUT: tl.constexpr):
    """Return hidden units after ReLU and dropout, at the places of units `h` and rows `row`."""
    hidden = tl.maximum(hidden, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if DROPOUT:
        stays = _uniform(stream, row * HIDDEN + h) < left_share
        hidden = tl.where(h < H, tl.where(stays, hidden * (1.0 / left_share), 0.0), hidden)
    return hidden


@triton.jit
def forward(
    x, y, first, second, temperature, epsilon, score_weight, H, K, D, stream, start, left_share,
    ROWS: tl.constexpr, HIDDEN: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, ABSOLUTE: tl.constexpr,
    DROPOUT: tl.constexpr
):  # fmt: skip
    """Return outputs; difference, weight and cost of each output; the winner; and the loss of each output.

    All are [rows, outputs]. Cost and weight of a hypothesis are stored at its first coordinate for
    the loss, and at all of them for the gradient.
    """
    o = tl.arange(0, GROUPS * COLUMNS)[None, :]
    group, k = o // COLUMNS, o % COLUMNS
    hidden = product(x, tl.trans(first), tl.zeros((ROWS, HIDDEN), dtype=tl.float32))
    row = (start + tl.arange(0, ROWS))[:, None]
    hidden = _activated(hidden, tl.arange(0, HIDDEN)[None, :], row, H, stream, left_share, HIDDEN, DROPOUT)
    outputs = tl.zeros((ROWS, 2 * GROUPS * COLUMNS), dtype=tl.float32)
    outputs = product_of_both(_as_left(hidden, ROWS, HIDDEN), _both(second, HIDDEN, GROUPS * COLUMNS), outputs)
    outputs = _summed(outputs, ROWS, GROUPS * COLUMNS)
    difference = outputs - y
    cost = tl.abs(difference) if ABSOLUTE else difference * difference
    if GROUPS > 2:  # add up the coordinates of a hypothesis, and give each of them the sum
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
    # log(1 + e) is accurate enough here: e <= 1, and for tiny e the absolute error is below 1e-7.
    entropy = tl.where(outputs > 0, outputs, 0.0) - tl.where(label, outputs, 0.0)
    entropy += tl.log(1.0 + tl.exp(-tl.abs(outputs)))
    loss = tl.where(group == 0, weight * cost, tl.where(group == D, entropy * (score_weight / K), 0.0))
    return outputs, difference, cost, weight, label, tl.where(k < K, loss, 0.0)


@triton.jit
def is_finite(number):
    return number - number == 0


_INTEGERS = (
    "first_epoch", "last_epoch", "n_epochs", "n_models", "batch_size", "n_batches", "n_rows_ordered", "n_orders",
    "patience", "watches_loss", "scored", "detached",
    "F", "H", "K", "D",
)  # fmt: skip


@triton.jit
def _places(
    number, F, H, K, D, scored,
    FEATURES: tl.constexpr, HIDDEN: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Return which weights are trained, and their offsets in memory, for each layer.

    `number` is never negative, which the compiler cannot prove: it computes the offsets where they are used, instead of
    keeping all of them in registers for the whole training.
    """
    h = tl.where(number < 0, 1, 0) + tl.arange(0, HIDDEN)[:, None]
    f = tl.arange(0, FEATURES)[None, :]
    trained1 = (h < H) & (f <= F)
    place1 = tl.where(f < F, h * F + f, F * H + h)
    o = tl.arange(0, GROUPS * COLUMNS)[None, :]
    group, column = o // COLUMNS, o % COLUMNS
    output = tl.where(group < D, column * D + group, K * D + column)
    unit = _column(h)
    trained2 = (unit <= H) & (column < K) & (group < D + scored)
    n_outputs = K * D + K * scored
    place2 = (F + 1) * H + tl.where(unit < H, output * H + unit, n_outputs * H + output)
    return trained1, place1, trained2, place2


@triton.jit
def _step(weight, gradient, m, v, place, trained, mean, square, rate, root, kept, beta1, beta2, epsilon):
    """Return the weights after a step of Adam from moments m and v, and store the new moments."""
    m = m + (1 - beta1) * (gradient - m)
    v = beta2 * v + (1 - beta2) * gradient * gradient
    tl.store(mean + place, m, mask=trained)
    tl.store(square + place, v, mask=trained)
    return tl.where(trained, weight * kept - rate * m / (tl.sqrt(v) * root + epsilon), weight)


@triton.jit(do_not_specialize=_INTEGERS)
def train_epochs(
    flat, mean, square, n_steps, best, inputs, targets, row_weights, order, facts,
    rates, decays, rules, losses, watched, temperatures, learning_rates, best_value, best_epoch, stopped_epoch,
    failed_step,
    first_epoch, last_epoch, n_epochs, n_models, batch_size, n_batches, n_rows_ordered, n_orders,
    patience, watches_loss, scored, detached, F, H, K, D,
    score_weight, left_share, beta1, beta2, log1, log2, epsilon,
    FEATURES: tl.constexpr, HIDDEN: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    ABSOLUTE: tl.constexpr, DROPOUT: tl.constexpr, SHUFFLED: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """Train all models from `first_epoch` up to but not including `last_epoch`; see `fleet/backends/fused.py`."""
    model = tl.program_id(0)
    # Offsets of the weights of this model.
    n_outputs = K * D + K * scored
    n_parameters = (F + 1) * H + (H + 1) * n_outputs
    offset = model.to(tl.int64) * n_parameters
    flat, mean, square, best = flat + offset, mean + offset, square + offset, best + offset
    h, f = tl.arange(0, HIDDEN)[:, None], tl.arange(0, FEATURES)[None, :]
    trained1, place1, trained2, place2 = _places(first_epoch, F, H, K, D, scored, FEATURES, HIDDEN, GROUPS, COLUMNS)
    # The hidden unit after the last is always 1: biases of the outputs are its weights.
    first = tl.load(flat + place1, mask=trained1, other=0.0) + tl.where((h == H) & (f == F), 1.0, 0.0)
    second = tl.load(flat + place2, mask=trained2, other=0.0)

    own = facts + model * 8
    begin, n_rows, begin_held, n_held = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    index_of_order, every, decides, stream = tl.load(own + 4), tl.load(own + 5), tl.load(own + 6), tl.load(own + 7)
    n_rows_32, n_held_32 = n_rows.to(tl.int32), n_held.to(tl.int32)
    own_inputs, own_targets = inputs + begin * F, targets + begin * D

    steps = tl.load(n_steps + model)
    stopped, failed = tl.load(stopped_epoch + model), tl.load(failed_step + model)
    best_so_far, best_at = tl.load(best_value + model), tl.load(best_epoch + model)
    block = tl.arange(0, ROWS)
    places_of = tl.arange(0, GROUPS * COLUMNS)[None, :]
    is_real, is_first = places_of % COLUMNS < K, places_of < COLUMNS
    is_score = places_of // COLUMNS == D
    to_trunk = tl.where(is_score & (detached > 0), 0.0, 1.0 / left_share)
    by_column, features = _position(block), tl.arange(0, FEATURES)[:, None]

    epoch = first_epoch + 0
    while (epoch < last_epoch) & (stopped < 0):
        # Tables begin with the first epoch of the launch, histories with that of the training.
        row_of_table = (epoch - first_epoch).to(tl.int64) * n_models
        in_table, at = row_of_table + model, epoch.to(tl.int64) * n_models + model
        rate, decay = tl.load(rates + in_table), tl.load(decays + in_table)
        temperature = tl.load(rules + in_table + row_of_table)
        spared = tl.load(rules + in_table + row_of_table + n_models)
        tl.store(temperatures + at, temperature, mask=decides > 0)
        tl.store(learning_rates + at, rate)

        total = 0.0
        for batch in range(0, tl.cdiv(n_rows_32, batch_size)):
            n_real = tl.minimum(n_rows_32 - batch * batch_size, batch_size)
            share = 1.0 / n_real
            numbers_of_step = mixed(stream + epoch.to(tl.int64) * tl.cdiv(n_rows_32, batch_size) + batch)
            to_first = tl.zeros((HIDDEN, 2 * FEATURES), dtype=tl.float32)
            to_second = tl.zeros((HIDDEN, 2 * GROUPS * COLUMNS), dtype=tl.float32)
            back = _by_column(second, HIDDEN, GROUPS * COLUMNS)
            losses_of = tl.zeros((ROWS,), dtype=tl.float32)
            for start in range(0, n_real, ROWS):
                real = start + block < n_real
                row, row_by_column = batch * batch_size + start + block, batch * batch_size + start + by_column
                real_by_column = start + by_column < n_real
                if SHUFFLED:
                    turn = (epoch - first_epoch).to(tl.int64) * n_orders + index_of_order
                    own_order = order + turn * n_rows_ordered
                    row = tl.load(own_order + row, mask=real, other=0).to(tl.int32)
                    row_by_column = tl.load(own_order + row_by_column, mask=real_by_column, other=0).to(tl.int32)
                x, y = rows_of(own_inputs, own_targets, row, real, F, D, FEATURES, GROUPS, COLUMNS)
                x_turned = tl.load(
                    own_inputs + row_by_column[None, :] * F + features, mask=real_by_column & (features < F), other=0.0
                )
                x_turned = tl.where(features == F, 1.0, x_turned)
                count = tl.where(real, share, 0.0)
                if WEIGHTED:
                    count *= tl.load(row_weights + begin + row, mask=real, other=0.0)
                count = count[:, None]
                outputs, difference, cost, weight, label, each = forward(
                    x, y, first, second, temperature, spared, score_weight, H, K, D,
                    numbers_of_step, start, left_share,
                    ROWS, HIDDEN, GROUPS, COLUMNS, ABSOLUTE, DROPOUT
                )  # fmt: skip
                losses_of += tl.sum(each * count, axis=1)
                # The gradient of the outputs.
                if ABSOLUTE:
                    slope = tl.where(difference > 0, 1.0, tl.where(difference < 0, -1.0, 0.0 * difference))
                else:
                    slope = 2.0 * difference
                pull = (tl.sigmoid(outputs) - tl.where(label, 1.0, 0.0)) * (score_weight / K)
                to_all = tl.where(is_score, pull, weight * slope) * count  # gradients of padding reach no weights
                turned = product(first, x_turned, tl.zeros((HIDDEN, ROWS), dtype=tl.float32))
                at_row = (start + by_column)[None, :]
                turned = _activated(turned, h, at_row, H, numbers_of_step, left_share, HIDDEN, DROPOUT)
                to_second = product_of_both(
                    _as_left(turned, HIDDEN, ROWS), _both(to_all, ROWS, GROUPS * COLUMNS), to_second
                )
                to_outputs = tl.trans(_by_column(to_all * to_trunk, ROWS, GROUPS * COLUMNS))
                to_hidden = product(back, to_outputs, tl.zeros((HIDDEN, ROWS), dtype=tl.float32))
                to_hidden = tl.where(turned > 0, to_hidden, 0.0)
                to_first = product_of_both(_as_left(to_hidden, HIDDEN, ROWS), _both(x, ROWS, FEATURES), to_first)
            to_first = _summed(to_first, HIDDEN, FEATURES)
            to_second = _by_position(_summed(to_second, HIDDEN, GROUPS * COLUMNS), HIDDEN, GROUPS * COLUMNS)
            own1, at1, own2, at2 = _places(epoch + batch, F, H, K, D, scored, FEATURES, HIDDEN, GROUPS, COLUMNS)
            # Moments arrive while the sums below wait for all threads.
            m1, v1 = tl.load(mean + at1, own1, 0.0), tl.load(square + at1, own1, 0.0)
            m2, v2 = tl.load(mean + at2, own2, 0.0), tl.load(square + at2, own2, 0.0)
            loss = tl.sum(losses_of, axis=0)
            loss = loss - 0.0 * loss  # NaN for infinity, as in `mcl_loss`
            if (n_batches > 1) & (failed < 0) & (loss != loss):
                failed = epoch.to(tl.int64) * n_batches + batch
            total += loss * (n_real.to(tl.float32) / n_rows_32.to(tl.float32))
            # A model whose gradient is not finite keeps its weights.
            to_first, to_second = tl.where(own1, to_first, 0.0), tl.where(own2, to_second, 0.0)
            finite = is_finite(tl.sum(tl.sum(to_first, axis=1) + tl.sum(to_second, axis=1), axis=0))
            to_first, to_second = tl.where(finite, to_first, 0.0), tl.where(finite, to_second, 0.0)
            used = tl.where(finite, rate, 0.0)
            steps += 1
            scaled = used / one_minus_exp(steps * log1)
            root = 1.0 / tl.sqrt(one_minus_exp(steps * log2))
            kept = 1 - used * decay
            first = _step(first, to_first, m1, v1, at1, own1, mean, square, scaled, root, kept, beta1, beta2, epsilon)
            second = _step(
                second, to_second, m2, v2, at2, own2, mean, square, scaled, root, kept, beta1, beta2, epsilon
            )
            tl.debug_barrier()  # moments are read by the thread that wrote them; a layout may change that
        tl.store(losses + at, total)

        if (n_held > 0) & ((epoch + 1 == n_epochs) | ((epoch + 1) % every == 0)):
            losses_of = tl.zeros((ROWS,), dtype=tl.float32)
            lowest_of = losses_of
            for start in range(0, n_held_32, ROWS):
                real = start + block < n_held_32
                held_inputs, held_targets = inputs + begin_held * F, targets + begin_held * D
                x, y = rows_of(held_inputs, held_targets, start + block, real, F, D, FEATURES, GROUPS, COLUMNS)
                outputs, difference, cost, weight, label, each = forward(
                    x, y, first, second, temperature, spared, score_weight, H, K, D, stream, start, 1.0,
                    ROWS, HIDDEN, GROUPS, COLUMNS, ABSOLUTE, False
                )  # fmt: skip
                losses_of += tl.sum(tl.where(real[:, None], each, 0.0), axis=1)
                # A NaN may have no winner.
                counts = is_first & is_real & real[:, None] & (label | (cost != cost))
                lowest_of += tl.sum(tl.where(counts, cost, 0.0), axis=1)
            loss, distortion = tl.sum(losses_of, axis=0), tl.sum(lowest_of, axis=0)
            value = tl.where(watches_loss > 0, loss - 0.0 * loss, distortion) / n_held_32
            tl.store(watched + at, value)
            annealed = (decides > 0) & (temperature > 0) & (epoch + 1 < n_epochs)
            if (value < best_so_far) & (annealed == 0):
                best_so_far = value
                best_at = epoch.to(tl.int64)
                best1, to1, best2, to2 = _places(epoch, F, H, K, D, scored, FEATURES, HIDDEN, GROUPS, COLUMNS)
                tl.store(best + to1, first, mask=best1)
                tl.store(best + to2, second, mask=best2)
            waited = epoch - tl.maximum(best_at, 0)
            if (patience >= 0) & (annealed == 0) & (waited >= patience):
                stopped = epoch.to(tl.int64)
        epoch += 1

    trained1, place1, trained2, place2 = _places(epoch, F, H, K, D, scored, FEATURES, HIDDEN, GROUPS, COLUMNS)
    tl.store(flat + place1, first, mask=trained1)
    tl.store(flat + place2, second, mask=trained2)
    tl.store(n_steps + model, steps)
    tl.store(stopped_epoch + model, stopped)
    tl.store(failed_step + model, failed)
    tl.store(best_value + model, best_so_far)
    tl.store(best_epoch + model, best_at)
