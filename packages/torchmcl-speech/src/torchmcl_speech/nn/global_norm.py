"""Layer norm over all axes of a sample, with the preceding projection and the following residual connection."""

import torch
from torch import Tensor, nn

__all__ = ["GlobalLayerNorm", "projected_norm"]

# Far below the feature variance of quiet speech, and far above the rounding errors of float32.
_EPSILON = 1e-8


class GlobalLayerNorm(nn.Module):
    """Layer norm that normalizes each sample over all its axes, and then scales and shifts each feature.

    Statistics are computed at least in float32. If a residual is passed, it is added to the result in the same
    operation, because scale and shift of a sample are one value per feature.

    Args:
        n_features: Size of the last axis.

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
        """Normalize features [batch, ..., features] and add a residual of the same shape, if any."""
        axes = tuple(range(1, features.ndim))
        dtype = torch.promote_types(features.dtype, torch.float32)
        variance, mean = _moments(features.to(dtype), axes)
        scale = self.weight * torch.rsqrt(variance + _EPSILON)  # [batch, 1, ..., features]
        shift = self.bias - mean * scale
        normed = torch.addcmul(shift if residual is None else residual + shift, features, scale)
        # In half precision only if the weights are; under autocast they are not, and the residual stays precise.
        narrow = torch.promote_types(features.dtype, self.weight.dtype)
        return normed.to(narrow if residual is None else torch.promote_types(narrow, residual.dtype))


def _moments(features: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Compute variance and mean over axes, which are kept with size 1."""
    if features.device.type != "cpu" or torch.is_grad_enabled():
        variance, mean = torch.var_mean(features, dim=axes, correction=0, keepdim=True)
        return variance, mean
    # Two passes, which torch vectorizes, take an eighth of the time.
    mean = features.mean(dim=axes, keepdim=True)
    return (features - mean).square().mean(dim=axes, keepdim=True), mean


def projected_norm(projection: nn.Linear, norm: GlobalLayerNorm, features: Tensor, residual: Tensor) -> Tensor:
    """Compute `norm(projection(features), residual)` without copies of permuted views.

    Args:
        projection: Projection of the last axis.
        norm: Norm of the projected features.
        features: Input features [batch, ..., features].
        residual: Residual [batch, ..., projected features].
    """
    if torch.compiler.is_exporting():  # sorting by stride would add constraints
        return norm(projection(features), residual)
    order, back = _memory_order(features)
    return norm(projection(features.permute(order)).permute(back), residual)


def _memory_order(features: Tensor) -> tuple[list[int], list[int]]:
    """Return the order of the axes in memory, without moving the last axis, and the inverse order."""
    strides, n = features.stride(), features.ndim - 1
    order = sorted(range(n), key=lambda axis: -strides[axis])
    return [*order, n], [*(order.index(axis) for axis in range(n)), n]
