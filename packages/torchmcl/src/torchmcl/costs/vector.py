"""Costs of vectors and class ids."""

import torch
from torch import Tensor

from torchmcl.checks import check_class_ids, check_leading_axes, check_positive, check_tensor
from torchmcl.costs.declared import MEAN, MEDIAN, NormFormula, aligned_pair, declare_cost
from torchmcl.costs.distances import (
    SILENCE,
    InnerProducts,
    inner_products,
    squared_distances,
    sum_of_absolutes,
    sum_of_hubers,
)
from torchmcl.dispatch import broadcast_shapes
from torchmcl.errors import bad_value

__all__ = [
    "pairwise_cosine",
    "pairwise_cross_entropy",
    "pairwise_euclidean",
    "pairwise_huber",
    "pairwise_l1",
    "pairwise_neg_si_sdr",
    "pairwise_neg_snr",
    "pairwise_sq_euclidean",
]


@declare_cost(event_dims=1, center=MEAN, formula=NormFormula(order=2, power=2))
def pairwise_sq_euclidean(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    r"""Return the squared Euclidean cost of every (target, hypothesis) pair.

    .. math:: \|f_k(x) - y\|^2

    It is computed from differences: the relative error in single precision is below 1e-5 (up to 32 000 dimensions) for
    any common offset of the points, equal points are at distance 0 exactly, and no target changes the cost of another.

    Args:
        hypotheses: Predicted points, [..., hypotheses, dim].
        targets: Target points, [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> pairwise_sq_euclidean(hypotheses=torch.tensor([[0.0], [3.0]]), targets=torch.tensor([[1.0]]))
        tensor([[1., 4.]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, the loss l(y, f_k(x)) of
        Equation (1).
    """
    return squared_distances(*aligned_pair("pairwise_sq_euclidean", hypotheses, targets))


@declare_cost(event_dims=1, center=MEDIAN, formula=NormFormula(order=2))
def pairwise_euclidean(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the Euclidean distance of every (target, hypothesis) pair.

    Where a hypothesis hits its target the gradient is 0, not NaN.

    Args:
        hypotheses: Predicted points, [..., hypotheses, dim].
        targets: Target points, [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> pairwise_euclidean(hypotheses=torch.tensor([[0.0, 0.0]]), targets=torch.tensor([[3.0, 4.0]]))
        tensor([[5.]])
    """
    squared = squared_distances(*aligned_pair("pairwise_euclidean", hypotheses, targets))
    hit = squared == 0
    return torch.where(hit, squared, squared.masked_fill(hit, 1).sqrt())


@declare_cost(event_dims=1, formula=NormFormula(order=1))
def pairwise_l1(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of absolute differences of every (target, hypothesis) pair.

    Args:
        hypotheses: Predicted points, [..., hypotheses, dim].
        targets: Target points, [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32; the gradient of an exact hit is 0.

    Example:
        >>> pairwise_l1(hypotheses=torch.tensor([[0.0, 0.0]]), targets=torch.tensor([[3.0, -4.0]]))
        tensor([[7.]])
    """
    return sum_of_absolutes(*aligned_pair("pairwise_l1", hypotheses, targets))


@declare_cost(event_dims=1)
def pairwise_huber(*, hypotheses: Tensor, targets: Tensor, delta: float = 1.0) -> Tensor:
    """Return the Huber cost of every pair: quadratic within `delta`, linear beyond, summed over dimensions.

    Args:
        hypotheses: Predicted points, [..., hypotheses, dim].
        targets: Target points, [..., targets, dim]; padded rows must be finite.
        delta: Distance at which the quadratic part ends, > 0.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Raises:
        ValueError: If `delta` is not positive.

    Example:
        >>> pairwise_huber(hypotheses=torch.tensor([[0.0], [3.0]]), targets=torch.tensor([[1.0]]))
        tensor([[0.5000, 1.5000]])
    """
    check_positive("pairwise_huber", "delta", delta, "pairwise_l1 is its limit at 0.")
    hypotheses, targets = aligned_pair("pairwise_huber", hypotheses, targets)
    return sum_of_hubers(hypotheses, targets, min(delta, torch.finfo(hypotheses.dtype).max))


@declare_cost(event_dims=1)
def pairwise_cosine(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - cosine similarity of every (target, hypothesis) pair, in [0, 2].

    A zero vector (shorter than 1e-15) has no direction: its cosine is defined as 0, its cost as 1, with zero gradient.

    Args:
        hypotheses: Predicted points, [..., hypotheses, dim].
        targets: Target points, [..., targets, dim]; padded rows must be finite.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> pairwise_cosine(hypotheses=torch.tensor([[2.0, 0.0], [0.0, 1.0]]), targets=torch.tensor([[1.0, 0.0]]))
        tensor([[0., 1.]])
    """
    hypotheses, targets = aligned_pair("pairwise_cosine", hypotheses, targets)
    products = inner_products(hypotheses, targets)
    squared = products.target_energy[..., :, None] * products.hypothesis_energy[..., None, :]
    zero = (products.target_energy[..., :, None] <= SILENCE) | (products.hypothesis_energy[..., None, :] <= SILENCE)
    cosine = products.cross.masked_fill(zero, 0) / squared.masked_fill(zero, 1).sqrt()
    return (1 - cosine).clamp(0, 2).to(hypotheses.dtype)


# Costs of waveforms need only inner products and energies, no differences. They are accumulated in double precision, so
# that 1 - cos^2 is accurate beyond 100 dB; single precision would be accurate up to 60 dB. Values are limited to
# +-100 dB, far beyond the results of speech systems, so that a perfect reconstruction has a finite value and gradient.
_FLOOR = 1e-10


@declare_cost(event_dims=1)
def pairwise_neg_si_sdr(*, hypotheses: Tensor, targets: Tensor, zero_mean: bool = False) -> Tensor:
    """Return the negative scale-invariant signal-to-distortion ratio of every pair, in dB.

    The value lies between -100 dB (perfect) and 100 dB (orthogonal, or a silent hypothesis). A silent target has cost 0
    for every hypothesis, with zero gradient; exclude it by a mask if necessary.

    Args:
        hypotheses: Estimated waveforms, [..., hypotheses, samples].
        targets: True waveforms, [..., targets, samples]; padded rows must be finite.
        zero_mean: Whether to remove the mean of each waveform first.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> target = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
        >>> estimates = torch.tensor([[2.0, -2.0, 2.0, -1.0], [0.0, 1.0, 1.0, 0.0]])
        >>> pairwise_neg_si_sdr(hypotheses=estimates, targets=target)
        tensor([[-12.1307, 100.0000]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (42), with the
        opposite sign.
    """
    products = _energies("pairwise_neg_si_sdr", hypotheses, targets, zero_mean)
    energy = products.target_energy[..., :, None] * products.hypothesis_energy[..., None, :]
    mute = (products.target_energy[..., :, None] <= SILENCE) | (products.hypothesis_energy[..., None, :] <= SILENCE)
    explained = (products.cross.square().masked_fill(mute, 0) / energy.masked_fill(mute, 1)).clamp(max=1)
    decibels = 10 * torch.log10((1 - explained + _FLOOR) / (explained + _FLOOR))
    return _unless_silent(decibels, products).to(_result_dtype(hypotheses, targets))


@declare_cost(event_dims=1)
def pairwise_neg_snr(*, hypotheses: Tensor, targets: Tensor, zero_mean: bool = False) -> Tensor:
    """Return the negative signal-to-noise ratio of every pair, in dB.

    A silent hypothesis has 0 dB, and a silent target has cost 0 with zero gradient, as for SI-SDR. The value is at
    least -100 dB.

    Args:
        hypotheses: Estimated waveforms, [..., hypotheses, samples].
        targets: True waveforms, [..., targets, samples]; padded rows must be finite.
        zero_mean: Whether to remove the mean of each waveform first.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> target = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
        >>> pairwise_neg_snr(hypotheses=1.1 * target, targets=target)
        tensor([[-20.0000]])
    """
    products = _energies("pairwise_neg_snr", hypotheses, targets, zero_mean)
    signal = products.target_energy[..., :, None]
    noise = signal + products.hypothesis_energy[..., None, :] - 2 * products.cross
    loud = signal.masked_fill(signal <= SILENCE, 1)
    decibels = 10 * torch.log10(noise.clamp_min(0) / loud + _FLOOR)
    return _unless_silent(decibels, products).to(_result_dtype(hypotheses, targets))


def _energies(owner: str, hypotheses: Tensor, targets: Tensor, zero_mean: bool) -> InnerProducts:
    hypotheses, targets = aligned_pair(owner, hypotheses, targets)
    if zero_mean:
        hypotheses = hypotheses - hypotheses.mean(dim=-1, keepdim=True)
        targets = targets - targets.mean(dim=-1, keepdim=True)
    return inner_products(hypotheses, targets)


def _unless_silent(decibels: Tensor, products: InnerProducts) -> Tensor:
    return decibels.masked_fill(products.target_energy[..., :, None] <= SILENCE, 0)


def _result_dtype(hypotheses: Tensor, targets: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(hypotheses.dtype, targets.dtype), torch.float32)


@declare_cost(event_dims=1, target_dims=0)
def pairwise_cross_entropy(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every (class id, hypothesis) pair.

    Args:
        hypotheses: Logits, [..., hypotheses, classes].
        targets: Class ids, [..., targets]; integers from 0 to classes - 1, also where padded.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in the logits.

    Raises:
        TypeError: If the targets are not integers.
        ValueError: If the axes do not fit, or for an id out of range (on GPUs only inside `debug_checks`).

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
        >>> pairwise_cross_entropy(hypotheses=logits, targets=torch.tensor([1]))
        tensor([[0.6931, 0.1269]])
    """
    owner = "pairwise_cross_entropy"
    _check(owner, hypotheses, targets)
    hypotheses = hypotheses.to(torch.promote_types(hypotheses.dtype, torch.float32))
    leading = broadcast_shapes(hypotheses.shape[:-2], targets.shape[:-1])
    hypotheses = hypotheses.expand(*leading, *hypotheses.shape[-2:])
    n_hypotheses = hypotheses.shape[-2]
    ids = targets.long().expand(*leading, targets.shape[-1]).unsqueeze(-1)
    # Normalization per hypothesis before `gather` needs no [..., targets, hypotheses, classes].
    log_probs = hypotheses.log_softmax(dim=-1).mT  # [..., classes, hypotheses]
    ids = ids.expand(*ids.shape[:-1], n_hypotheses)
    try:
        return -log_probs.gather(-2, ids)
    except (RuntimeError, IndexError) as error:  # raised on the CPU for an id out of range
        if "out of bounds" not in str(error):
            raise
        rule = f"lie between 0 and {hypotheses.shape[-1] - 1}"
        raise ValueError(bad_value(owner, "targets", rule, "an id out of range", str(error))) from error


def _check(owner: str, hypotheses: Tensor, targets: Tensor) -> None:
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets, floating=False)
    if hypotheses.ndim < 2 or hypotheses.shape[-1] < 1:
        rule = "have shape [..., hypotheses, classes] with at least one class"
        raise ValueError(bad_value(owner, "hypotheses", rule, tuple(hypotheses.shape)))
    check_class_ids(owner, targets, hypotheses.shape[-1])
    if targets.ndim < 1:
        rule = "have shape [..., targets]"
        advice = "A batch of single targets is [batch, 1]: targets.unsqueeze(-1)."
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape), advice))
    check_leading_axes(owner, hypotheses, targets, hypotheses.shape[:-2], targets.shape[:-1])
