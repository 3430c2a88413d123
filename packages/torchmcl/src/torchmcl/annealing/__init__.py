"""Automatic annealing, and records of annealed training: phase transitions and the hypothesis tree."""

from torchmcl.annealing.auto import AutoAnnealing, AutoValues
from torchmcl.annealing.course import RuleLike, move_hypotheses, part_hypotheses
from torchmcl.annealing.drawing import draw_dendrogram, draw_tree
from torchmcl.annealing.measure import CostScale, Measurement, cost_scale, measure
from torchmcl.annealing.records import AnnealingRecords, network_tolerance, phase_transitions
from torchmcl.annealing.tree import HypothesisTree, Node, WeightHistory

__all__ = [
    "AnnealingRecords",
    "AutoAnnealing",
    "AutoValues",
    "CostScale",
    "HypothesisTree",
    "Measurement",
    "Node",
    "RuleLike",
    "WeightHistory",
    "cost_scale",
    "draw_dendrogram",
    "draw_tree",
    "measure",
    "move_hypotheses",
    "network_tolerance",
    "part_hypotheses",
    "phase_transitions",
]
