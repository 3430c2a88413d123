"""The minimum distortion of n answers, if the predicted density is correct."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.density import KernelMixture
from torchmcl.density.points import equal_shares
from torchmcl.theory import RatePoints, blahut_arimoto

__all__ = ["least_distortions"]

_N_ROWS, _N_SAMPLES = 32, 64
# In space samples are drawn, and a curve of samples ends at the logarithm of their number.
_N_DRAWN = 256
# Temperatures in units of each row's variance: from one answer to more than any table asks for.
_TEMPERATURES = tuple(2.0 * 0.5**step for step in range(12))


def least_distortions(density: KernelMixture, numbers: Sequence[int]) -> list[float | None]:
    """Return D(R = log2 n) for each number n of answers, the mean over rows; None beyond the curve's end.

    Blahut and Arimoto's curve is computed on samples of the density at some rows, evenly spaced, relative to the
    variance of each, and scaled to the mean variance over all rows.

    Args:
        density: batch shape [rows].
        numbers: of answers, each >= 1.

    Example:
        >>> density = KernelMixture(torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[0.5, 0.5]]), bandwidth=0.1)
        >>> one, two = least_distortions(density, [1, 2])
        >>> round(one), round(two, 1)
        (1, 0.0)
    """
    variances = density.variance.sum(dim=-1)
    n_rows = len(variances)
    places = torch.linspace(0, n_rows - 1, min(n_rows, _N_ROWS)).round().long().unique()
    samples = _samples(density.rows(places))
    samples = samples - samples.mean(dim=-2, keepdim=True)
    spread = samples.square().sum(dim=-1).mean(dim=-1).clamp_min(1e-12)  # [rows]
    unit = (samples / spread.sqrt().view(-1, 1, 1)).float()
    cost = pairwise_sq_euclidean(hypotheses=unit, targets=unit)
    curve: list[RatePoints] = []
    for temperature in _TEMPERATURES:
        curve.append(blahut_arimoto(cost, temperature, n_iters=100, tolerance=5e-3))
        if bool((curve[-1].rate > math.log2(max(numbers))).all()):
            break
    weights = spread / spread.sum()
    longest = torch.stack([point.rate for point in curve]).amax(dim=0).amin()
    made: list[float | None] = []
    for number in numbers:
        rate = math.log2(number)
        share = _at_rate(curve, rate)
        known = rate == 0 or rate <= float(longest)
        made.append(float((weights * share).sum() * variances.mean()) if known else None)
    return made


def _samples(density: KernelMixture) -> Tensor:
    """Return samples [rows, samples, dim]."""
    if density.dim > 1:
        return density.sample((_N_DRAWN,), torch.Generator(density.hypotheses.device).manual_seed(0)).transpose(0, 1)
    # The middles of cells of equal mass stand for the density: samples without the noise of sampling.
    return equal_shares(density, _N_SAMPLES).unsqueeze(-1)


def _at_rate(curve: Sequence[RatePoints], rate: float) -> Tensor:
    """Return a lower bound of the distortion of a row at a rate, in units of its variance, [rows].

    A convex curve lies above its tangents, whose slopes are the temperatures; between two points a straight line would
    lie above the curve, and be no floor. What a point may still lack (`gap`) is taken off.
    """
    if rate == 0:
        return torch.ones_like(curve[0].distortion)
    tangents = [point.distortion + point.temperature * math.log(2) * (point.rate - point.gap - rate) for point in curve]
    return torch.stack(tangents).amax(dim=0).clamp(0, 1)
