"""Annealing that decides for itself, and its traces: records, phase transitions, and the tree of hypotheses."""

from torchmcl.annealing.auto import AutoAnnealing, AutoValues, CostScale, cost_scale
from torchmcl.annealing.course import RuleLike
from torchmcl.annealing.drawing import draw_dendrogram, draw_tree
from torchmcl.annealing.measure import Measurement, measure
from torchmcl.annealing.records import AnnealingRecords, network_tolerance
from torchmcl.annealing.snapshots import Replay, Snapshots
from torchmcl.annealing.transitions import phase_transitions
from torchmcl.annealing.tree import HypothesisTree, Node

__all__ = [
    "AnnealingRecords",
    "AutoAnnealing",
    "AutoValues",
    "CostScale",
    "HypothesisTree",
    "Measurement",
    "Node",
    "Replay",
    "RuleLike",
    "Snapshots",
    "cost_scale",
    "draw_dendrogram",
    "draw_tree",
    "measure",
    "network_tolerance",
    "phase_transitions",
]
