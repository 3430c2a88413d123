"""Classical quantisers, with one face: the ancestors of annealed MCL, to compare it with.

`Lloyd`, `DeterministicAnnealing` and `SimulatedAnnealing` place points among samples and are used like
scikit-learn's clusterers. `lloyd_max` gives the optimal points of a known density on the line.
"""

from torchmcl.theory.quantizers._base import Quantizer
from torchmcl.theory.quantizers.densities import (
    Density,
    ExponentialDensity,
    LaplaceDensity,
    NormalDensity,
    UniformDensity,
)
from torchmcl.theory.quantizers.scalar import ScalarQuantizer, lloyd_max, panter_dite_constant, scalar_distortion
from torchmcl.theory.quantizers.vector import DeterministicAnnealing, Lloyd, SimulatedAnnealing

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
