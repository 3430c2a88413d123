"""The theory of annealed multiple choice learning as functions.

Free energy and critical temperatures (statistical physics), and rate-distortion (information theory).
"""

from torchmcl.theory.critical import (
    CriticalTemperature,
    Trajectory,
    Transition,
    covariance,
    critical_temperature,
    critical_temperature_of_residuals,
    local_critical_temperature,
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
    soft_barycenters,
    soft_distortion,
)
from torchmcl.theory.rate_distortion import (
    RatePoints,
    blahut_arimoto,
    differential_entropy,
    gaussian_distortion,
    gaussian_rate,
    lloyd,
    max_distortion,
    mutual_information,
    rate_of_samples,
    shannon_lower_bound,
)

__all__ = [
    "CriticalTemperature",
    "RatePoints",
    "Trajectory",
    "Transition",
    "assignment_entropy",
    "blahut_arimoto",
    "boltzmann_weights",
    "covariance",
    "covariance_blocks",
    "critical_temperature",
    "critical_temperature_of_residuals",
    "differential_entropy",
    "free_energy",
    "free_energy_hessian",
    "gaussian_distortion",
    "gaussian_rate",
    "hypothesis_masses",
    "lloyd",
    "local_critical_temperature",
    "max_distortion",
    "mutual_information",
    "n_distinct",
    "next_critical_temperatures",
    "observed_transitions",
    "rate_of_samples",
    "shannon_lower_bound",
    "soft_barycenters",
    "soft_distortion",
    "thermal_tolerance",
]
