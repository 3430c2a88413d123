"""Hypotheses and their probabilities as a density: a kernel around each hypothesis.

`KernelMixture` is a `torch.distributions.Distribution` over [..., dim] with a Gaussian kernel around each hypothesis;
it is smooth, with closed forms for everything.

Distances are taken after dividing each coordinate by `scale`, so that outputs of different units can share a
bandwidth. As the bandwidth goes to 0 it becomes the weighted set of points. `best_points` goes the other way: from a
density to a few points that represent it.
"""

from torchmcl.density.kernels import Bandwidth, KernelMixture, fit_bandwidth
from torchmcl.density.mixtures import mixture_distribution
from torchmcl.density.on_line import HighestDensitySet
from torchmcl.density.points import BestPoints, best_points

__all__ = [
    "Bandwidth",
    "BestPoints",
    "HighestDensitySet",
    "KernelMixture",
    "best_points",
    "fit_bandwidth",
    "mixture_distribution",
]
