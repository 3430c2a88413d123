"""Costs of angles, which are periodic, and of rotations in space."""

import math

import torch
from torch import Tensor

from torchmcl.checks import check_leading_axes, check_positive, check_tensor
from torchmcl.costs.declared import aligned_pair, declare_cost
from torchmcl.costs.vector import pairwise_sq_euclidean
from torchmcl.errors import bad_value

__all__ = ["pairwise_geodesic", "pairwise_sq_angle", "rotation_matrices", "wrap_angle"]

# Length below which a vector has no direction: gradients would overflow float32.
_SHORTEST = 1e-15
# Rounding errors up to which the difference of two directions counts as 0.
_N_ROUNDING = 8


@declare_cost(event_dims=1)
def pairwise_sq_angle(*, hypotheses: Tensor, targets: Tensor, period: float = 2 * math.pi) -> Tensor:
    """Return the sum of squared angle differences of every (target, hypothesis) pair.

    Args:
        hypotheses: Predicted angles, [..., hypotheses, dim]; any real numbers, equivalent up to multiples of `period`.
        targets: Target points, [..., targets, dim]; padded rows must be finite.
        period: Full turn, > 0: 2 pi for radians, 360 for degrees, 24 for the hours of a day.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> pairwise_sq_angle(hypotheses=torch.tensor([[350.0], [90.0]]), targets=torch.tensor([[10.0]]), period=360.0)
        tensor([[ 400., 6400.]])
    """
    check_positive("pairwise_sq_angle", "period", period)
    hypotheses, targets = aligned_pair("pairwise_sq_angle", hypotheses, targets)
    cost = hypotheses[..., :0].sum(dim=-1).unsqueeze(-2) + targets[..., :0].sum(dim=-1).unsqueeze(-1)
    for h, t in zip(hypotheses.unbind(dim=-1), targets.unbind(dim=-1), strict=True):
        cost = cost + wrap_angle(h.unsqueeze(-2) - t.unsqueeze(-1), period).square()
    return cost


def wrap_angle(difference: Tensor, period: float = 2 * math.pi) -> Tensor:
    """Map differences of angles to [-period / 2, period / 2].

    Example:
        >>> wrap_angle(torch.tensor([0.1, 3.5, -3.5]))
        tensor([ 0.1000, -2.7832,  2.7832])
    """
    return difference - period * (difference.detach() / period).round()


def rotation_matrices(values: Tensor) -> Tensor:
    """Return rotation matrices [..., 3, 3] from one of three representations, recognized by the last axis.

    Vectors too short for a direction (below 1e-15) and parallel columns give a matrix of zeros, at a nonzero angle to
    every rotation.

    Args:
        values: First two columns before their orthonormalization, [..., 6]; quaternions (w, x, y, z) of any length,
            [..., 4]; or rotation matrices, [..., 3, 3], which are returned unchanged.

    Raises:
        ValueError: For any other last axis.

    Example:
        >>> rotation_matrices(torch.tensor([2.0, 0.0, 0.0, 1.0, 3.0, 0.0])).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]

    References:
        Y. Zhou et al., *On the continuity of rotation representations in neural networks*, CVPR 2019, arXiv:1812.07035,
        Equation (14).
    """
    check_tensor("rotation_matrices", "values", values)
    n_axes = _axes(values)
    if n_axes is None:
        rule = "have shape [..., 6], [..., 4] or [..., 3, 3]"
        raise ValueError(bad_value("rotation_matrices", "values", rule, tuple(values.shape)))
    if n_axes == 2:
        return values
    if values.shape[-1] == 6:
        first = _direction(values[..., :3])
        other = _direction(values[..., 3:])
        rest = _without(first, other)
        parallel = rest.abs().amax(dim=-1, keepdim=True) <= _N_ROUNDING * torch.finfo(rest.dtype).eps
        second = _direction(_without(first, _direction(rest))).masked_fill(parallel, 0)  # twice, for exact right angles
        first = first.masked_fill(parallel, 0)
        return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)
    w, x, y, z = _direction(values).unbind(dim=-1)
    rows = [
        *(w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z),
    ]
    return torch.stack(rows, dim=-1).unflatten(-1, (3, 3))


@declare_cost(event_dims=...)
def pairwise_geodesic(*, hypotheses: Tensor, targets: Tensor, event_dims: int = 1) -> Tensor:
    """Return the angle between the rotations of every pair, in radians from 0 to pi; the mean over several joints.

    Where a hypothesis hits its target, and at half a turn, the gradient is 0.

    Args:
        hypotheses: Rotations, [..., hypotheses, 6], [..., hypotheses, 4] or [..., hypotheses, 3, 3] as in
            `rotation_matrices`; with an axis of joints, [..., hypotheses, joints, 6].
        targets: Rotations, [..., targets, ...], in any of these representations; padded rows must be finite.
        event_dims: Number of axes of one hypothesis; supplied by `mcl_step`.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> same, half_turn = [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]  # quaternions
        >>> pairwise_geodesic(hypotheses=torch.tensor([same, half_turn]), targets=torch.eye(3)[None])
        tensor([[0.0000, 3.1416]])
    """
    owner = "pairwise_geodesic"
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets)
    n_joint_axes = event_dims - (_axes(hypotheses) or event_dims + 1)
    n_axes = n_joint_axes + (_axes(targets) or 0)
    if n_joint_axes < 0 or _axes(targets) is None or min(hypotheses.ndim - event_dims, targets.ndim - n_axes) < 1:
        rule = "both end in 6, 4 or [3, 3] after an axis of hypotheses or targets, and axes of joints if any"
        raise ValueError(bad_value(owner, "hypotheses` and `targets", rule, (*hypotheses.shape, *targets.shape)))
    left, right = hypotheses.shape[: -event_dims - 1], targets.shape[: targets.ndim - n_axes - 1]
    check_leading_axes(owner, hypotheses, targets, left, right)
    dtype = torch.promote_types(torch.promote_types(hypotheses.dtype, targets.dtype), torch.float32)
    parts = []
    for events, leading in ((hypotheses, left), (targets, right)):
        matrices = rotation_matrices(events.to(dtype)).flatten(-2)  # [..., events, *joints, 9]
        first = len(leading) + 1
        joints = matrices.flatten(first, -2) if n_joint_axes else matrices.unsqueeze(first)
        parts.append(joints.transpose(-2, -3))  # [..., joints, events, 9]
    if parts[0].shape[-3] != parts[1].shape[-3]:
        rule = f"have as many joints as `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    # |R - S|^2 = 8 sin^2(angle / 2): unlike the arccosine of the trace, it is accurate at small angles.
    square = pairwise_sq_euclidean(hypotheses=parts[0], targets=parts[1]) / 8
    hit, far = square <= 0, square >= 1
    angle = 2 * square.masked_fill(hit | far, 0.5).sqrt().asin()
    return angle.masked_fill(hit, 0).masked_fill(far, math.pi).mean(dim=-3)


def _axes(values: Tensor) -> int | None:
    """Return the number of axes of one rotation, None for other shapes."""
    if values.ndim and values.shape[-1] in (4, 6):
        return 1
    return 2 if values.ndim > 1 and values.shape[-2:] == (3, 3) else None


def _direction(values: Tensor) -> Tensor:
    """Return vectors [..., n] divided by their length; 0 for vectors that are too short."""
    size = values.detach().abs().amax(dim=-1, keepdim=True)
    faint = size <= _SHORTEST
    values = (values / size.masked_fill(faint, 1)).masked_fill(faint, 1)  # the squares of large entries would overflow
    return (values / values.square().sum(dim=-1, keepdim=True).sqrt()).masked_fill(faint, 0)


def _without(direction: Tensor, values: Tensor) -> Tensor:
    """Return vectors [..., n] less their component along a direction of length 1."""
    return values - (direction * values).sum(dim=-1, keepdim=True) * direction
