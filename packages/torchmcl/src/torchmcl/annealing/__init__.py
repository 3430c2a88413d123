"""Automatic annealing, and records of annealed training: phase transitions."""

from torchmcl.annealing.auto import AutoAnnealing, AutoValues
from torchmcl.annealing.course import RuleLike, move_hypotheses, part_hypotheses
from torchmcl.annealing.records import (
    AnnealingRecords,
    CostScale,
    Measurement,
    cost_scale,
    measure,
    network_tolerance,
    phase_transitions,
)

__all__ = [
    "AnnealingRecords",
    "AutoAnnealing",
    "AutoValues",
    "CostScale",
    "Measurement",
    "RuleLike",
    "cost_scale",
    "measure",
    "move_hypotheses",
    "network_tolerance",
    "part_hypotheses",
    "phase_transitions",
]
