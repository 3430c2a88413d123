"""Layer norm over all axes of a sample, together with the residual that follows it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchmcl import accel

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
        if residual is not None and _can_fuse(features, residual):
            return _FusedNorm.apply(features, residual, self.weight, self.bias)
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


def _can_fuse(features: Tensor, residual: Tensor) -> bool:
    return (
        accel.runs_triton(features)
        and features.ndim == 4
        and features.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and features.shape[-1] <= 1024
        and 0 < features.numel() < 2**31
    )


def _rows(features: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return [samples, rows, features] in the given memory order, copied only if necessary."""
    return features.permute(order).contiguous().flatten(1, 2)


class _FusedNorm(torch.autograd.Function):
    """Global layer norm plus residual: two passes over memory in each direction."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from torchmcl_speech.kernels.norm import affine_rows, normalizing

        # The rows of a sample may be in any order, as long as all tensors share it.
        # Use that of the features, unless samples are interleaved in it (cuDNN puts time first): this requires a copy.
        model = features if features.stride(0) == features[0].numel() else residual
        order = (0, 1, 2, 3) if model.stride(1) >= model.stride(2) else (0, 2, 1, 3)
        rows = _rows(features, order)
        moments, scale, shift = normalizing(rows, weight, bias, _EPSILON)
        out = affine_rows(rows, _rows(residual, order), scale, moments[2], shift, residual.dtype)
        ctx.save_for_backward(rows, weight, moments)
        ctx.order, ctx.shape = order, features.shape
        return _restored(out, order, features.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from torchmcl_speech.kernels.norm import affine_rows, pulling

        rows, weight, moments = ctx.saved_tensors
        grad_rows = _rows(grad, ctx.order)
        scale, slope, shift, (to_weight, to_bias) = pulling(grad_rows, rows, weight, moments)
        to_features = affine_rows(grad_rows, rows, scale, slope, shift, rows.dtype)
        to_residual = grad if ctx.needs_input_grad[1] else None
        return (
            _restored(to_features, ctx.order, ctx.shape),
            to_residual,
            to_weight.to(weight.dtype),
            to_bias.to(weight.dtype),
        )


def _restored(rows: Tensor, order: tuple[int, ...], shape: torch.Size) -> Tensor:
    return rows.unflatten(1, (shape[order[1]], shape[order[2]])).permute(order)  # the order is its own inverse
