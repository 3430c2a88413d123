"""Hypotheses and their probabilities as a density: a normal distribution around each hypothesis.

`Mixture` is a `torch.distributions.Distribution` over [..., dim] with closed forms for everything. As the widths go to
0 it becomes the weighted set of points. `best_points` goes the other way: from a density to a few points that represent
it.
"""

from torchmcl.density.mixture import (
    REACH,
    Bandwidth,
    HighestDensitySet,
    Mixture,
    fit_bandwidth,
    masked_first,
    mixture_distribution,
)
from torchmcl.density.points import BestPoints, best_points, equal_mass_medians

__all__ = [
    "REACH",
    "Bandwidth",
    "BestPoints",
    "HighestDensitySet",
    "Mixture",
    "best_points",
    "equal_mass_medians",
    "fit_bandwidth",
    "masked_first",
    "mixture_distribution",
]
