"""Automatic annealing, and records of annealed training: phase transitions."""

from torchmcl.annealing.auto import POLICY_CONSTANTS, AutoAnnealing, AutoValues
from torchmcl.annealing.driver import AnnealingDriver, AnnealingEvent, TrainedWeights
from torchmcl.annealing.model import RuleLike, move_hypotheses, separate_hypotheses
from torchmcl.annealing.moves import HeadTensors, Moves, Samples
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
    "POLICY_CONSTANTS",
    "AnnealingDriver",
    "AnnealingEvent",
    "AnnealingRecords",
    "AnnealingStatistics",
    "AutoAnnealing",
    "AutoValues",
    "CostScale",
    "HeadTensors",
    "Moves",
    "RuleLike",
    "Samples",
    "TrainedWeights",
    "annealing_statistics",
    "cost_scale",
    "move_hypotheses",
    "network_tolerance",
    "phase_transitions",
    "separate_hypotheses",
]
