"""The least distortion that any n answers could have, if the predicted density were the truth."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchmcl.density import KernelMixture
from torchmcl.density.points import equal_shares
from torchmcl.theory import RatePoints, blahut_arimoto

__all__ = ["least_distortions"]

_N_ROWS, _N_SAMPLES = 32, 64
# Temperatures in units of each row's variance: from one answer to more than any table asks for.
_TEMPERATURES = tuple(2.0 * 0.5**step for step in range(12))


def least_distortions(density: KernelMixture, numbers: Sequence[int]) -> list[float | None]:
    """Return D(R = log2 n) for each number n of answers, the mean over rows; None beyond the curve's end.

    Blahut and Arimoto's curve is computed on samples of the density at some rows, evenly spaced, relative to the
    variance of each, and scaled to the mean variance over all rows.

    Args:
        density: over one output, batch shape [rows].
        numbers: of answers, each >= 1.

    Example:
        >>> density = KernelMixture(torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[0.5, 0.5]]), bandwidth=0.1)
        >>> one, two = least_distortions(density, [1, 2])
        >>> round(one), round(two, 1)
        (1, 0.0)
    """
    variances = density.variance.squeeze(-1)
    n_rows = len(variances)
    places = torch.linspace(0, n_rows - 1, min(n_rows, _N_ROWS)).round().long().unique()
    # The middles of cells of equal mass stand for the density: samples without the noise of sampling.
    samples = equal_shares(density.rows(places), _N_SAMPLES)
    spread = samples.var(dim=-1, correction=0).clamp_min(1e-12)
    unit = (samples - samples.mean(dim=-1, keepdim=True)) / spread.sqrt().unsqueeze(-1)
    cost = (unit.unsqueeze(-1) - unit.unsqueeze(-2)).square().float()
    curve: list[RatePoints] = []
    for temperature in _TEMPERATURES:
        curve.append(blahut_arimoto(cost, temperature, n_iters=100, tolerance=5e-3))
        if bool((curve[-1].rate > math.log2(max(numbers))).all()):
            break
    # Rate 0 has the variance itself, which is 1.
    rates = torch.stack([torch.zeros(len(places)), *(point.rate for point in curve)])  # [points, rows]
    distortions = torch.stack([torch.ones(len(places)), *(point.distortion for point in curve)])
    weights = spread / spread.sum()
    made: list[float | None] = []
    for number in numbers:
        share = _at_rate(rates, distortions, math.log2(number))
        made.append(None if share is None else float((weights * share).sum() * variances.mean()))
    return made


def _at_rate(rates: Tensor, distortions: Tensor, rate: float) -> Tensor | None:
    """Return the distortion of each row at a rate, linear between the points of its curve, [rows]."""
    if rate == 0:
        return distortions[0]
    if bool((rates[-1] < rate).any()):
        return None
    right = (rates < rate).sum(dim=0).clamp(1, len(rates) - 1)
    left = right - 1
    at = [part.gather(0, place.unsqueeze(0)).squeeze(0) for part in (rates, distortions) for place in (left, right)]
    share = (rate - at[0]) / (at[1] - at[0]).clamp_min(1e-9)
    return at[2] + share * (at[3] - at[2])
