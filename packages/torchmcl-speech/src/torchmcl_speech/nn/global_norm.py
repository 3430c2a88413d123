"""Layer norm over all axes of a sample, together with the projection before it and the residual that follows it."""

import torch
from torch import Tensor, nn

__all__ = ["GlobalLayerNorm", "projected_norm"]

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
    if torch.compiler.is_exporting():  # sorting by stride would add constraints
        return norm(projection(features), residual)
    order, back = _memory_order(features)
    return norm(projection(features.permute(order)).permute(back), residual)


def _memory_order(features: Tensor) -> tuple[list[int], list[int]]:
    """Return the order of the axes in memory, the last one left in place, and its inverse."""
    strides, n = features.stride(), features.ndim - 1
    order = sorted(range(n), key=lambda axis: -strides[axis])
    return [*order, n], [*(order.index(axis) for axis in range(n)), n]
