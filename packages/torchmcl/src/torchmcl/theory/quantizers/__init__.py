"""Classical quantizers with one interface: the predecessors of annealed MCL, for comparison.

`Lloyd`, `DeterministicAnnealing` and `SimulatedAnnealing` place points among samples. They are scikit-learn clusterers
and are loaded when first used. `lloyd_max` gives the optimal points of a known density on the line.
"""

import importlib
from typing import TYPE_CHECKING, Any

from torchmcl._optional import optional_import
from torchmcl.theory.quantizers.scalar import (
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

if TYPE_CHECKING:
    from torchmcl.theory.quantizers.vector import DeterministicAnnealing, Lloyd, Quantizer, SimulatedAnnealing

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


def __getattr__(name: str) -> Any:
    """Load the quantizers of samples on first use."""
    if name in __all__:
        optional_import("sklearn", extra="sklearn", needed_by=f"torchmcl.theory.quantizers.{name}")
        return getattr(importlib.import_module("torchmcl.theory.quantizers.vector"), name)
    raise AttributeError(f"module 'torchmcl.theory.quantizers' has no attribute {name!r}")
