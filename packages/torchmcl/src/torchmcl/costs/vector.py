"""Costs between vectors: squared Euclidean, Euclidean, L1, Huber, cosine."""

import torch
from torch import Tensor

from torchmcl._checks import check_event_pair, check_real
from torchmcl.accel import accelerated, in_torch, in_triton, triton
from torchmcl.accel.eager.distances import squared_distances, sum_of_absolutes, sum_of_hubers
from torchmcl.costs._parts import SILENCE, aligned_pair, inner_products
from torchmcl.costs.declared import MEAN, MEDIAN, Norm, declares


@declares(event_dims=1, centre=MEAN, formula=Norm(order=2, power=2))
def pairwise_sq_euclidean(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the squared Euclidean cost of every (target, hypothesis) pair.

    Differences are taken first, in any number of dimensions: the relative error of the cost in float32 stays below 1e-5
    (up to 32 000 dimensions) for any common offset of the points, equal points are at distance 0 exactly, and no
    target changes the cost of another.

    Args:
        hypotheses: [..., hypotheses, dim]
        targets: [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> pairwise_sq_euclidean(hypotheses=torch.tensor([[0.0], [3.0]]), targets=torch.tensor([[1.0]]))
        tensor([[1., 4.]])

    Reference:
        The loss l(y, f_k(x)) of Eq. (1).
    """
    check_event_pair("pairwise_sq_euclidean", hypotheses, targets)
    return _sq_euclidean(*aligned_pair(hypotheses, targets))


@declares(event_dims=1, centre=MEDIAN, formula=Norm(order=2))
def pairwise_euclidean(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the Euclidean distance of every (target, hypothesis) pair.

    Where a hypothesis hits its target the gradient is 0, not NaN.

    Args:
        hypotheses: [..., hypotheses, dim]
        targets: [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> pairwise_euclidean(hypotheses=torch.tensor([[0.0, 0.0]]), targets=torch.tensor([[3.0, 4.0]]))
        tensor([[5.]])
    """
    check_event_pair("pairwise_euclidean", hypotheses, targets)
    squared = _sq_euclidean(*aligned_pair(hypotheses, targets))
    hit = squared == 0
    return torch.where(hit, squared, squared.masked_fill(hit, 1).sqrt())


@declares(event_dims=1, formula=Norm(order=1))
def pairwise_l1(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of absolute differences of every (target, hypothesis) pair.

    Args:
        hypotheses: [..., hypotheses, dim]
        targets: [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32; the gradient of an exact hit is 0.

    Example:
        >>> pairwise_l1(hypotheses=torch.tensor([[0.0, 0.0]]), targets=torch.tensor([[3.0, -4.0]]))
        tensor([[7.]])
    """
    check_event_pair("pairwise_l1", hypotheses, targets)
    return _l1(*aligned_pair(hypotheses, targets))


@declares(event_dims=1)
def pairwise_huber(*, hypotheses: Tensor, targets: Tensor, delta: float = 1.0) -> Tensor:
    """Return the Huber cost of every pair: quadratic within `delta`, linear beyond, summed over dimensions.

    Args:
        hypotheses: [..., hypotheses, dim]
        targets: [..., targets, dim]; padded rows must be finite.
        delta: where the quadratic part ends, > 0.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Raises:
        ValueError: if `delta` is not positive.

    Example:
        >>> pairwise_huber(hypotheses=torch.tensor([[0.0], [3.0]]), targets=torch.tensor([[1.0]]))
        tensor([[0.5000, 1.5000]])
    """
    check_event_pair("pairwise_huber", hypotheses, targets)
    check_real("pairwise_huber", "delta", delta)
    if delta <= 0:
        raise ValueError(f"pairwise_huber: `delta` must be > 0, got {delta!r}. pairwise_l1 is its limit at 0.")
    hypotheses, targets = aligned_pair(hypotheses, targets)
    return _huber(hypotheses, targets, min(delta, torch.finfo(hypotheses.dtype).max))


@declares(event_dims=1)
def pairwise_cosine(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - cosine similarity of every (target, hypothesis) pair, in [0, 2].

    A zero vector (shorter than 1e-15) has no direction: its cosine counts as 0 and its cost as 1,
    with zero gradient.

    Args:
        hypotheses: [..., hypotheses, dim]
        targets: [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> pairwise_cosine(hypotheses=torch.tensor([[2.0, 0.0], [0.0, 1.0]]), targets=torch.tensor([[1.0, 0.0]]))
        tensor([[0., 1.]])
    """
    check_event_pair("pairwise_cosine", hypotheses, targets)
    hypotheses, targets = aligned_pair(hypotheses, targets)
    products = inner_products(hypotheses, targets)
    squared = products.target_energy[..., :, None] * products.hypothesis_energy[..., None, :]
    zero = (products.target_energy[..., :, None] <= SILENCE) | (products.hypothesis_energy[..., None, :] <= SILENCE)
    cosine = products.cross.masked_fill(zero, 0) / squared.masked_fill(zero, 1).sqrt()
    return (1 - cosine).clamp(0, 2).to(hypotheses.dtype)


@accelerated(in_triton(triton.squared_distances), in_torch(squared_distances))
def _sq_euclidean(hypotheses: Tensor, targets: Tensor) -> Tensor:
    return _differences(hypotheses, targets).square().sum(dim=-1)


@accelerated(in_torch(sum_of_absolutes))
def _l1(hypotheses: Tensor, targets: Tensor) -> Tensor:
    return _differences(hypotheses, targets).abs().sum(dim=-1)


@accelerated(in_torch(sum_of_hubers))
def _huber(hypotheses: Tensor, targets: Tensor, delta: float) -> Tensor:
    distances = _differences(hypotheses, targets).abs()
    inside = distances.clamp(max=delta)
    return (inside * (distances - inside / 2)).sum(dim=-1)


def _differences(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return hypothesis - target of every pair, [..., targets, hypotheses, dim]."""
    return hypotheses.unsqueeze(-3) - targets.unsqueeze(-2)
