"""The theory of annealed multiple choice learning as functions.

Free energy and critical temperatures (statistical physics), and rate-distortion (information theory).
"""

from torchmcl.theory.bounds import (
    differential_entropy,
    gaussian_distortion,
    gaussian_rate,
    high_resolution_distortion,
    shannon_lower_bound,
    zador_bounds,
    zador_constant,
)
from torchmcl.theory.critical import (
    Trajectory,
    Transition,
    covariance,
    critical_temperature_bound,
    critical_temperature_of_residuals,
    distinct_representatives,
    first_critical_temperature,
    n_distinct,
    next_critical_temperatures,
    observed_transitions,
    thermal_tolerance,
)
from torchmcl.theory.free_energy import (
    assignment_entropy,
    boltzmann_weights,
    covariance_blocks,
    free_energy,
    free_energy_hessian,
    hypothesis_masses,
    smallest_hessian_eigenvalue,
    soft_barycentres,
    soft_distortion,
)
from torchmcl.theory.rate_distortion import (
    RatePoints,
    blahut_arimoto,
    distortion_at_rate,
    max_distortion,
    mutual_information,
    rate_of_samples,
)

__all__ = [
    "RatePoints",
    "Trajectory",
    "Transition",
    "assignment_entropy",
    "blahut_arimoto",
    "boltzmann_weights",
    "covariance",
    "covariance_blocks",
    "critical_temperature_bound",
    "critical_temperature_of_residuals",
    "differential_entropy",
    "distinct_representatives",
    "distortion_at_rate",
    "first_critical_temperature",
    "free_energy",
    "free_energy_hessian",
    "gaussian_distortion",
    "gaussian_rate",
    "high_resolution_distortion",
    "hypothesis_masses",
    "max_distortion",
    "mutual_information",
    "n_distinct",
    "next_critical_temperatures",
    "observed_transitions",
    "rate_of_samples",
    "shannon_lower_bound",
    "smallest_hessian_eigenvalue",
    "soft_barycentres",
    "soft_distortion",
    "thermal_tolerance",
    "zador_bounds",
    "zador_constant",
]
