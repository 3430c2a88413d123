"""Hypotheses and their probabilities as a density: a kernel around each hypothesis.

Two families, both `torch.distributions.Distribution`s over [..., dim]:

- `KernelMixture`: a Gaussian kernel around each hypothesis; smooth, with closed forms for everything.
- `VoronoiKernels`: the same kernels, each cut off at the border of its hypothesis' cell and renormalized, so that
  the mass of a cell is exactly the probability of its hypothesis.

Distances are taken after dividing each coordinate by `scale`, so that outputs of different units can share a
bandwidth. As the bandwidth goes to 0 both become the weighted set of points. `best_points` goes the other way: from a
density to a few points that represent it.
"""

from torchmcl.density.kernels import Bandwidth, HypothesisDensity, KernelMixture, fit_bandwidth
from torchmcl.density.mixtures import mixture_distribution
from torchmcl.density.on_line import HighestDensitySet
from torchmcl.density.points import BestPoints, best_points
from torchmcl.density.voronoi import VoronoiKernels

__all__ = [
    "Bandwidth",
    "BestPoints",
    "HighestDensitySet",
    "HypothesisDensity",
    "KernelMixture",
    "VoronoiKernels",
    "best_points",
    "fit_bandwidth",
    "mixture_distribution",
]
