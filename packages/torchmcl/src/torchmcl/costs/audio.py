"""Costs between waveforms, in decibels: negative SI-SDR and negative SNR.

Both need only inner products and energies, so no difference of two waveforms is ever built. The
products are accumulated in float64: 1 - cos^2 then keeps its digits up to 100 dB and beyond, where
float32 would lose them at 60 dB.
"""

import torch
from torch import Tensor

from torchmcl._checks import check_event_pair
from torchmcl.costs._parts import SILENCE, InnerProducts, aligned_pair, inner_products
from torchmcl.costs.declared import declares

# Values are confined to +-100 dB, far beyond what speech systems reach, so that a perfect
# reconstruction has a finite value and a finite gradient.
_FLOOR = 1e-10


@declares(event_dims=1)
def pairwise_neg_si_sdr(*, hypotheses: Tensor, targets: Tensor, zero_mean: bool = False) -> Tensor:
    """Return the negative scale-invariant signal-to-distortion ratio of every pair, in dB.

    The value lies between -100 dB (perfect) and 100 dB (orthogonal, or a silent hypothesis). A
    silent target has cost 0 for every hypothesis, with zero gradient. Mask it out
    if it should not count.

    Args:
        hypotheses: estimated waveforms [..., hypotheses, samples]
        targets: true waveforms [..., targets, samples]; padded rows must be finite.
        zero_mean: remove the mean of each waveform first.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> target = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
        >>> estimates = torch.tensor([[2.0, -2.0, 2.0, -1.0], [0.0, 1.0, 1.0, 0.0]])
        >>> pairwise_neg_si_sdr(hypotheses=estimates, targets=target)
        tensor([[-12.1307, 100.0000]])

    Reference:
        Eq. (42), with the sign turned.
    """
    products = _energies("pairwise_neg_si_sdr", hypotheses, targets, zero_mean)
    energy = products.target_energy[..., :, None] * products.hypothesis_energy[..., None, :]
    mute = (products.target_energy[..., :, None] <= SILENCE) | (products.hypothesis_energy[..., None, :] <= SILENCE)
    explained = (products.cross.square().masked_fill(mute, 0) / energy.masked_fill(mute, 1)).clamp(max=1)
    decibels = 10 * torch.log10((1 - explained + _FLOOR) / (explained + _FLOOR))
    return _unless_silent(decibels, products).to(_result_dtype(hypotheses, targets))


@declares(event_dims=1)
def pairwise_neg_snr(*, hypotheses: Tensor, targets: Tensor, zero_mean: bool = False) -> Tensor:
    """Return the negative signal-to-noise ratio of every pair, in dB.

    A silent hypothesis has 0 dB; a silent target costs 0 with zero gradient, as for SI-SDR. The
    value is at least -100 dB.

    Args:
        hypotheses: estimated waveforms [..., hypotheses, samples]
        targets: true waveforms [..., targets, samples]; padded rows must be finite.
        zero_mean: remove the mean of each waveform first.

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
    check_event_pair(owner, hypotheses, targets)
    hypotheses, targets = aligned_pair(hypotheses, targets)
    if zero_mean:
        hypotheses = hypotheses - hypotheses.mean(dim=-1, keepdim=True)
        targets = targets - targets.mean(dim=-1, keepdim=True)
    return inner_products(hypotheses, targets)


def _unless_silent(decibels: Tensor, products: InnerProducts) -> Tensor:
    return decibels.masked_fill(products.target_energy[..., :, None] <= SILENCE, 0)


def _result_dtype(hypotheses: Tensor, targets: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(hypotheses.dtype, targets.dtype), torch.float32)
