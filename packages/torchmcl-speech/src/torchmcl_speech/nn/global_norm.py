"""Layer norm over all axes of a sample, together with the projection before it and the residual that follows it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from torchmcl import dispatch

# Far below the variance of features of quiet speech, far above float32 rounding errors.
_EPSILON = 1e-8


class GlobalLayerNorm(nn.Module):
    """Normalize each sample over all its axes, then scale and shift each feature.

    Statistics are taken in float32 at least. With a residual, the result is added to it: the two
    belong together, as scale and shift of one sample are numbers per feature.

    Args:
        n_features: size of the last axis.

    Example:
        >>> normed = GlobalLayerNorm(8)(3 + 2 * torch.randn(4, 100, 8))
        >>> bool(normed.mean((1, 2)).abs().max() < 1e-5)
        True
    """

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_features))
        self.bias = nn.Parameter(torch.zeros(n_features))

    def forward(self, features: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the normalized features [batch, ..., features], plus `residual` of the same shape."""
        axes = tuple(range(1, features.ndim))
        dtype = torch.promote_types(features.dtype, torch.float32)
        variance, mean = _moments(features.to(dtype), axes)
        scale = self.weight * torch.rsqrt(variance + _EPSILON)  # [batch, 1, ..., features]
        shift = self.bias - mean * scale
        normed = torch.addcmul(shift if residual is None else residual + shift, features, scale)
        # In half precision only where the weights are: under autocast they are not, and the residual stays precise.
        narrow = torch.promote_types(features.dtype, self.weight.dtype)
        return normed.to(narrow if residual is None else torch.promote_types(narrow, residual.dtype))


def _moments(features: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return variance and mean over the given axes, which are kept with size 1."""
    if features.device.type != "cpu" or torch.is_grad_enabled():
        variance, mean = torch.var_mean(features, dim=axes, correction=0, keepdim=True)
        return variance, mean
    # In two passes, which torch vectorizes: an eighth of the time.
    mean = features.mean(dim=axes, keepdim=True)
    return (features - mean).square().mean(dim=axes, keepdim=True), mean


def projected_norm(projection: nn.Linear, norm: GlobalLayerNorm, features: Tensor, residual: Tensor) -> Tensor:
    """Return `norm(projection(features), residual)`, without copies of permuted views.

    Args:
        projection: along the last axis.
        norm: of as many features as the projection returns.
        features: [batch, ..., features].
        residual: [batch, ..., features of the norm].
    """
    if _can_fuse(projection, features):
        return _ProjectedNorm.apply(features, residual, projection.weight, projection.bias, norm.weight, norm.bias)
    if torch.compiler.is_exporting():  # sorting by stride would add constraints
        return norm(projection(features), residual)
    order, back = _memory_order(features)
    return norm(projection(features.permute(order)).permute(back), residual)


def _can_fuse(projection: nn.Linear, features: Tensor) -> bool:
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else features.dtype
    n_rows = features.numel() // features.shape[-1]
    return (
        dispatch.runs_triton(features)
        and features.ndim == 4
        and features.dtype == dtype
        and dtype in (torch.bfloat16, torch.float16, torch.float32)
        and projection.out_features <= 1024
        and 0 < n_rows * projection.out_features < 2**31
    )


def _memory_order(features: Tensor) -> tuple[list[int], list[int]]:
    """Return the order of the axes in memory, the last one left in place, and its inverse."""
    strides, n = features.stride(), features.ndim - 1
    order = sorted(range(n), key=lambda axis: -strides[axis])
    return [*order, n], [*(order.index(axis) for axis in range(n)), n]


def _rows(features: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return [samples, rows, features] in the given memory order, copied only if necessary."""
    return features.permute(order).contiguous().flatten(1, 2)


class _ProjectedNorm(torch.autograd.Function):
    """A projection, then global layer norm plus residual: two passes over memory for the norm in each direction."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, residual: Tensor, to_width: Tensor, offset: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        from torchmcl_speech.kernels.norm import affine_rows, normalizing

        in_memory, back = _memory_order(features)
        narrow, ordered = to_width.to(features.dtype), features.permute(in_memory)
        update = F.linear(ordered, narrow, offset.to(features.dtype)).permute(back)
        # The rows of a sample may be in any order, as long as all tensors share it.
        # Use that of the update, unless samples are interleaved in it (cuDNN puts time first): this requires a copy.
        model = update if update.stride(0) == update[0].numel() else residual
        order = (0, 1, 2, 3) if model.stride(1) >= model.stride(2) else (0, 2, 1, 3)
        rows = _rows(update, order)
        moments, scale, shift, totals = normalizing(rows, weight, bias, _EPSILON)
        out = affine_rows(rows, _rows(residual, order), scale, moments[2], shift, residual.dtype)
        ctx.save_for_backward(ordered, narrow, rows, weight, moments, totals)
        ctx.order, ctx.in_memory, ctx.back, ctx.shape = order, in_memory, back, update.shape
        ctx.dtype = to_width.dtype
        return _restored(out, order, update.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from torchmcl_speech.kernels.norm import affine_rows, pulling

        ordered, narrow, rows, weight, moments, totals = ctx.saved_tensors
        grad_rows = _rows(grad, ctx.order)
        scale, slope, shift, to_layer = pulling(grad_rows, rows, weight, moments, totals)
        to_rows = affine_rows(grad_rows, rows, scale, slope, shift, rows.dtype)
        to_update = _restored(to_rows, ctx.order, ctx.shape).permute(ctx.in_memory)
        to_features = (to_update @ narrow).permute(ctx.back)
        to_projection = to_update.flatten(0, -2).T @ ordered.flatten(0, -2)
        to_weight, to_bias, to_offset = to_layer.to(weight.dtype)
        to_residual = grad if ctx.needs_input_grad[1] else None
        return to_features, to_residual, to_projection.to(ctx.dtype), to_offset.to(ctx.dtype), to_weight, to_bias


def _restored(rows: Tensor, order: tuple[int, ...], shape: torch.Size) -> Tensor:
    return rows.unflatten(1, (shape[order[1]], shape[order[2]])).permute(order)  # the order is its own inverse
