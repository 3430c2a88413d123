"""Parts of a global layer norm: sums over the rows of each sample, and an affine map per feature.

Its forward and its backward pass are both a reduction and then such a map, of different tensors:
mean and variance, then features * scale + residual + shift; the sums of the gradient, then
gradient * scale + features * slope + offset.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32
# Rows per summing program: at most this many, and fewer with many features, because its sums are in registers.
_ROWS_SUMMED = 64
_ENTRIES_SUMMED = 1024
_PROGRAMS = 1400
# Number of blocks of sums that the final program of a sample holds.
_BLOCKS = 64


@triton.jit
def _sums(  # type: ignore[no-untyped-def]
    left, right, out, n_rows, n_features, n_blocks, rows_each, SAME: tl.constexpr, ROWS: tl.constexpr, F: tl.constexpr
):
    sample, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    feature = tl.arange(0, F)
    total = tl.zeros((ROWS, F), tl.float32)
    product = tl.zeros((ROWS, F), tl.float32)
    for start in range(block * rows_each, tl.minimum((block + 1) * rows_each, n_rows), ROWS):
        row = start + tl.arange(0, ROWS)
        real = (row < n_rows)[:, None] & (feature < n_features)[None, :]
        place = (sample * n_rows + row)[:, None] * n_features + feature[None, :]
        a = tl.load(left + place, mask=real, other=0.0).to(tl.float32)
        b = a if SAME else tl.load(right + place, mask=real, other=0.0).to(tl.float32)
        total += a
        product += a * b
    place = out + (sample * n_blocks + block) * 2 * n_features + feature
    tl.store(place, tl.sum(total, axis=0), mask=feature < n_features)
    tl.store(place + n_features, tl.sum(product, axis=0), mask=feature < n_features)


@triton.jit
def _affine(  # type: ignore[no-untyped-def]
    left,
    right,
    scale,
    slope,
    shift,
    out,
    n_rows,
    n_features,
    ROWS: tl.constexpr,
    F: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, F)
    own = feature < n_features
    real = (row < n_rows)[:, None] & own[None, :]
    place = (sample * n_rows + row)[:, None] * n_features + feature[None, :]
    a = tl.load(left + place, mask=real, other=0.0).to(tl.float32)
    b = tl.load(right + place, mask=real, other=0.0).to(tl.float32)
    by_feature = sample * n_features + feature
    factor = tl.load(scale + by_feature, mask=own, other=0.0)
    offset = tl.load(shift + by_feature, mask=own, other=0.0)
    value = a * factor[None, :] + b * tl.load(slope + sample) + offset[None, :]
    tl.store(out + place, value.to(out.dtype.element_ty), mask=real)


@triton.jit
def _of_blocks(blocks, sample, n_features, n_blocks, BLOCKS: tl.constexpr, F: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the two sums over the blocks of a sample, for each feature."""
    block, feature = tl.arange(0, BLOCKS), tl.arange(0, F)
    place = blocks + (sample * n_blocks + block)[:, None] * 2 * n_features + feature[None, :]
    real = (block < n_blocks)[:, None] & (feature < n_features)[None, :]
    total = tl.sum(tl.load(place, mask=real, other=0.0), axis=0)
    return total, tl.sum(tl.load(place + n_features, mask=real, other=0.0), axis=0)


@triton.jit
def _normalizing(  # type: ignore[no-untyped-def]
    blocks,
    weight,
    bias,
    moments,
    scale,
    shift,
    totals,
    n_features,
    n_blocks,
    n,
    epsilon,
    BLOCKS: tl.constexpr,
    F: tl.constexpr,
):
    sample, feature = tl.program_id(0), tl.arange(0, F)
    own = feature < n_features
    total, product = _of_blocks(blocks, sample, n_features, n_blocks, BLOCKS, F)
    mean = tl.sum(total) / n
    inverse_std = tl.rsqrt(tl.maximum(tl.sum(product) / n - mean * mean, 0.0) + epsilon)
    factor = tl.load(weight + feature, mask=own, other=0.0).to(tl.float32) * inverse_std
    n_samples = tl.num_programs(0)
    tl.store(moments + sample, mean)
    tl.store(moments + n_samples + sample, inverse_std)
    tl.store(moments + 2 * n_samples + sample, 1.0)
    place = sample * n_features + feature
    tl.store(scale + place, factor, mask=own)
    offset = tl.load(bias + feature, mask=own, other=0.0).to(tl.float32) - mean * factor
    tl.store(shift + place, offset, mask=own)
    tl.store(totals + place, total, mask=own)


@triton.jit
def _pulling(  # type: ignore[no-untyped-def]
    blocks,
    weight,
    moments,
    totals,
    scale,
    slope,
    shift,
    to_layer,
    n_features,
    n_blocks,
    n,
    BLOCKS: tl.constexpr,
    F: tl.constexpr,
):
    sample, feature = tl.program_id(0), tl.arange(0, F)
    own = feature < n_features
    plain, mixed = _of_blocks(blocks, sample, n_features, n_blocks, BLOCKS, F)
    n_samples = tl.num_programs(0)
    mean, inverse_std = tl.load(moments + sample), tl.load(moments + n_samples + sample)
    wide = tl.load(weight + feature, mask=own, other=0.0).to(tl.float32)
    normed = (mixed - mean * plain) * inverse_std
    pull, along = tl.sum(plain * wide) / n, tl.sum(normed * wide) / n
    # d(features) = inverse_std * (weight * grad - pull - normalized * along)
    factor = -inverse_std * inverse_std * along
    place = sample * n_features + feature
    tl.store(scale + place, wide * inverse_std, mask=own)
    tl.store(slope + sample, factor)
    offset = -inverse_std * pull - factor * mean
    tl.store(shift + place, feature * 0.0 + offset, mask=own)
    # The sums over the rows: of normalized * gradient, of the gradient, and of d(features).
    tl.store(to_layer + place, normed, mask=own)
    tl.store(to_layer + n_samples * n_features + place, plain, mask=own)
    total = tl.load(totals + place, mask=own, other=0.0)
    summed = wide * inverse_std * plain + factor * total + offset * (n / n_features)
    tl.store(to_layer + 2 * n_samples * n_features + place, summed, mask=own)


def _block_sums(left: Tensor, right: Tensor) -> Tensor:
    """Return the sums of `left` and of `left * right` over blocks of rows, [samples, blocks, 2, features]."""
    n_samples, n_rows, n_features = left.shape
    size = triton.next_power_of_2(n_features)
    tile = max(1, min(_ROWS_SUMMED, _ENTRIES_SUMMED // size))
    n_blocks = max(1, min(_PROGRAMS // n_samples, n_rows // tile))
    rows_each = triton.cdiv(triton.cdiv(n_rows, tile), n_blocks) * tile
    out = torch.empty(n_samples, n_blocks, 2, n_features, dtype=torch.float32, device=left.device)
    _sums[(n_samples, n_blocks)](
        left,
        right,
        out,
        n_rows,
        n_features,
        n_blocks,
        rows_each,
        SAME=left is right,
        ROWS=tile,
        F=size,
        num_warps=2,
    )
    return out


def _reduced(blocks: Tensor) -> tuple[Tensor, int]:
    """Return sums in at most 64 blocks per sample, the most that one program processes, and the number of blocks."""
    if blocks.shape[1] > _BLOCKS or blocks.shape[-1] > 256:
        blocks = blocks.sum(dim=1, keepdim=True)
    return blocks, blocks.shape[1]


def sum_over_rows(rows: Tensor) -> Tensor:
    """Return the sum of [rows, features] over the rows in float32: torch is slow for many short rows."""
    whole = rows.unsqueeze(0)
    return _block_sums(whole, whole)[0, :, 0].sum(dim=0)


def normalizing(features: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, ...]:
    """Return moments [3, samples] (mean, inverse standard deviation, 1), and scale, shift and sums [samples, features].

    Args:
        features: [samples, rows, features], contiguous.
        weight: [features].
        bias: [features].
        epsilon: added to the variance.
    """
    n_samples, n_rows, n_features = features.shape
    blocks, n_blocks = _reduced(_block_sums(features, features))
    moments = blocks.new_empty(3, n_samples)
    scale, shift, totals = blocks.new_empty(3, n_samples, n_features)
    sizes = {"BLOCKS": triton.next_power_of_2(n_blocks), "F": triton.next_power_of_2(n_features)}
    n = n_rows * n_features
    _normalizing[(n_samples,)](
        blocks, weight, bias, moments, scale, shift, totals, n_features, n_blocks, n, epsilon, **sizes, num_warps=8
    )
    return moments, scale, shift, totals


def pulling(
    grad: Tensor, features: Tensor, weight: Tensor, moments: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scale, slope and shift of the map from gradient and features to the gradient of the features.

    And [3, features]: the gradients of weight and bias, and the sums of the gradient of the features over all rows.
    See `normalizing` for the arguments.
    """
    n_samples, n_rows, n_features = features.shape
    blocks, n_blocks = _reduced(_block_sums(grad, features))
    scale, shift = blocks.new_empty(2, n_samples, n_features)
    slope = blocks.new_empty(n_samples)
    to_layer = blocks.new_empty(3, n_samples, n_features)
    sizes = {"BLOCKS": triton.next_power_of_2(n_blocks), "F": triton.next_power_of_2(n_features)}
    n = n_rows * n_features
    _pulling[(n_samples,)](
        blocks, weight, moments, totals, scale, slope, shift, to_layer, n_features, n_blocks, n, **sizes, num_warps=8
    )
    return scale, slope, shift, to_layer.sum(dim=1)


def affine_rows(left: Tensor, right: Tensor, scale: Tensor, slope: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `left * scale + right * slope + shift` of type `dtype`.

    Args:
        left: [samples, rows, features], contiguous.
        right: of the same shape, contiguous.
        scale: [samples, features], float32.
        slope: [samples], float32.
        shift: [samples, features], float32.
        dtype: of the result.
    """
    n_samples, n_rows, n_features = left.shape
    out = torch.empty(left.shape, dtype=dtype, device=left.device)
    size = triton.next_power_of_2(n_features)
    grid = (n_samples, triton.cdiv(n_rows, _ROWS))
    parts = (part.contiguous() for part in (scale, slope, shift))
    _affine[grid](left, right, *parts, out, n_rows, n_features, ROWS=_ROWS, F=size, num_warps=8)
    return out
