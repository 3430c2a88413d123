"""Automatic annealing, and records of annealed training: phase transitions."""

from torchmcl.annealing.auto import AutoAnnealing, AutoValues
from torchmcl.annealing.model import RuleLike, move_hypotheses, separate_hypotheses
from torchmcl.annealing.records import (
    AnnealingRecords,
    AnnealingStatistics,
    CostScale,
    annealing_statistics,
    cost_scale,
    network_tolerance,
    phase_transitions,
)

__all__ = [
    "AnnealingRecords",
    "AnnealingStatistics",
    "AutoAnnealing",
    "AutoValues",
    "CostScale",
    "RuleLike",
    "annealing_statistics",
    "cost_scale",
    "move_hypotheses",
    "network_tolerance",
    "phase_transitions",
    "separate_hypotheses",
]
