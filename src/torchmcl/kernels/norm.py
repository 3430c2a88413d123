"""What a global layer norm needs: sums over the rows of each sample, and an affine map with numbers per feature.

Its forward and its backward pass are both a reduction and then such a map, of different tensors:
mean and variance, then features * scale + residual + shift; the sums of the gradient, then
gradient * scale + features * slope + offset.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["affine_rows", "sums_over_rows"]

_ROWS = 32
_PROGRAMS = 1024


@triton.jit
def _sums(left, right, out, n_rows, n_features, n_blocks, rows_each, ROWS: tl.constexpr, F: tl.constexpr):  # type: ignore[no-untyped-def]
    sample, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    feature = tl.arange(0, F)
    total = tl.zeros((ROWS, F), tl.float32)
    product = tl.zeros((ROWS, F), tl.float32)
    for start in range(block * rows_each, tl.minimum((block + 1) * rows_each, n_rows), ROWS):
        row = start + tl.arange(0, ROWS)
        real = (row < n_rows)[:, None] & (feature < n_features)[None, :]
        place = (sample * n_rows + row)[:, None] * n_features + feature[None, :]
        a = tl.load(left + place, mask=real, other=0.0).to(tl.float32)
        b = tl.load(right + place, mask=real, other=0.0).to(tl.float32)
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


def sums_over_rows(left: Tensor, right: Tensor) -> Tensor:
    """Return the sums of `left` and of `left * right` over the rows, [samples, 2, features], in float32.

    Args:
        left: [samples, rows, features], contiguous.
        right: of the same shape, contiguous.
    """
    n_samples, n_rows, n_features = left.shape
    n_blocks = max(1, min(_PROGRAMS // n_samples, n_rows // _ROWS))
    rows_each = triton.cdiv(triton.cdiv(n_rows, _ROWS), n_blocks) * _ROWS
    out = torch.empty(n_samples, n_blocks, 2, n_features, dtype=torch.float32, device=left.device)
    size = triton.next_power_of_2(n_features)
    _sums[(n_samples, n_blocks)](
        left, right, out, n_rows, n_features, n_blocks, rows_each, ROWS=_ROWS, F=size, num_warps=8
    )
    return out.sum(dim=1)


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
