"""The width of kernels, by the likelihood of held-out targets."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.density.kernels import HypothesisDensity

__all__ = ["Bandwidth", "fit_bandwidth"]


class Bandwidth(NamedTuple):
    """A rule for the bandwidth at each input: sqrt(floor^2 + (spread * deviation)^2).

    The deviation is the standard deviation of the scored hypotheses at that input: where the answers lie far apart
    because the noise is large, kernels should be wide; where they are branches, `spread` becomes 0 and they are not.

    Attributes:
        floor: smallest bandwidth, in units of the scale.
        spread: share of the deviation.
    """

    floor: float
    spread: float = 0.0

    def __call__(self, hypotheses: Tensor, probabilities: Tensor) -> Tensor:
        """Return the bandwidth for hypotheses [..., hypotheses, dim] in units of the scale, [..., 1]."""
        return (self.floor**2 + self.spread**2 * _deviation(hypotheses, probabilities).square()).sqrt()


def fit_bandwidth(
    kind: type[HypothesisDensity],
    hypotheses: Tensor,
    probabilities: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
) -> Bandwidth:
    """Return the bandwidth rule with the highest likelihood of held-out targets.

    Args:
        kind: `KernelMixture` or `VoronoiKernels`.
        hypotheses: [rows, hypotheses, dim], of rows that the model was not trained on, in units of the scale.
        probabilities: [rows, hypotheses]
        targets: [rows, dim]
        weights: [rows], how much each row counts.

    Example:
        >>> from torchmcl.density import KernelMixture
        >>> noise = 0.3 * torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
        >>> round(fit_bandwidth(KernelMixture, torch.zeros(1000, 1, 1), torch.ones(1000, 1), noise).floor, 1)
        0.3
    """
    if targets.shape != (len(hypotheses), hypotheses.shape[-1]) or len(targets) == 0:
        rule = f"have one row for each of `hypotheses` {tuple(hypotheses.shape)}, at least one, and its last axis"
        raise ValueError(bad_value("fit_bandwidth", "targets", rule, tuple(targets.shape)))
    weights = torch.ones(len(targets)).to(targets) if weights is None else weights.to(targets)
    hypotheses, probabilities = hypotheses.double(), probabilities.double()
    targets, weights = targets.double(), weights.double()
    deviation = _deviation(hypotheses, probabilities)

    def likelihood(floor: float, spread: float) -> float:
        width = (floor**2 + spread**2 * deviation.square()).sqrt()
        logs = kind(hypotheses, probabilities, width).log_prob(targets)
        return float((weights * logs).sum())

    # A coarse look at all scales from 1e-4 to 10, then twice a finer one around the best.
    floors = [10 ** (power / 2) for power in range(-8, 3)]
    spreads = [0.0, 0.1, 0.3, 1.0]
    best = max((likelihood(floor, spread), floor, spread) for floor in floors for spread in spreads)
    for ratio in (1.5, 1.15):
        _, floor, spread = best
        near = [floor * ratio**i for i in (-2, -1, 0, 1, 2)]
        wide = [spread * ratio**i for i in (-2, -1, 0, 1, 2)] if spread else [0.0, 0.03, 0.05]
        best = max((likelihood(a, b), a, b) for a in near for b in wide)
    return Bandwidth(best[1], best[2])


def _deviation(hypotheses: Tensor, probabilities: Tensor) -> Tensor:
    """Return the root mean squared deviation of the scored hypotheses per coordinate, [..., 1]."""
    weights = probabilities.unsqueeze(-1)
    mean = (weights * hypotheses).sum(dim=-2, keepdim=True)
    variance = (weights * (hypotheses - mean).square()).sum(dim=-2)
    return variance.mean(dim=-1, keepdim=True).sqrt()
