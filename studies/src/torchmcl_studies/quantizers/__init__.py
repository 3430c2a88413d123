"""Classical quantizers with a common interface: predecessors of annealed MCL, for comparison.

`Lloyd`, `DeterministicAnnealing` and `SimulatedAnnealing` compute a codebook from samples; they are scikit-learn
clusterers. `lloyd_max` computes the optimal codebook of a known univariate density.
"""

from torchmcl_studies.quantizers.scalar import (
    Density,
    ExponentialDensity,
    LaplaceDensity,
    NormalDensity,
    ScalarQuantizer,
    UniformDensity,
    lloyd_max,
    panter_dite_constant,
    scalar_distortion,
)
from torchmcl_studies.quantizers.vector import DeterministicAnnealing, Lloyd, Quantizer, SimulatedAnnealing

__all__ = [
    "Density",
    "DeterministicAnnealing",
    "ExponentialDensity",
    "LaplaceDensity",
    "Lloyd",
    "NormalDensity",
    "Quantizer",
    "ScalarQuantizer",
    "SimulatedAnnealing",
    "UniformDensity",
    "lloyd_max",
    "panter_dite_constant",
    "scalar_distortion",
]
