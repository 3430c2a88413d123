"""torchmcl: several answers instead of one, for PyTorch.

Multiple choice learning and annealed multiple choice learning: costs, assignment rules, schedules,
losses, scores, modules and metrics that drop into any training loop.
"""

import importlib
from typing import Any

from torchmcl import metrics, nn
from torchmcl._checks import value_checks
from torchmcl._version import __version__
from torchmcl.assignment import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA, TopN
from torchmcl.costs import (
    pairwise,
    pairwise_cosine,
    pairwise_cross_entropy,
    pairwise_euclidean,
    pairwise_huber,
    pairwise_l1,
    pairwise_neg_si_sdr,
    pairwise_neg_snr,
    pairwise_sq_euclidean,
)
from torchmcl.losses import match, mcl_loss
from torchmcl.nn import MultiHypothesisHead, MultiHypothesisMLP
from torchmcl.schedules import Constant, Cosine, Exponential, Joined, Linear, TemperatureScheduler, Until, annealed
from torchmcl.scoring import normalized_scores, score_loss, score_targets
from torchmcl.training import mcl_step
from torchmcl.transport import EMD, PIT, Sinkhorn
from torchmcl.types import Batch, Matching, Predictions, StepOutput

__all__ = [
    "EMD",
    "PIT",
    "WTA",
    "AnnealedWTA",
    "AssignmentRule",
    "Batch",
    "Constant",
    "Cosine",
    "Exponential",
    "Joined",
    "Linear",
    "Matching",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "Predictions",
    "RelaxedWTA",
    "Sinkhorn",
    "StepOutput",
    "TemperatureScheduler",
    "TopN",
    "Until",
    "__version__",
    "annealed",
    "match",
    "mcl_loss",
    "mcl_step",
    "metrics",
    "nn",
    "normalized_scores",
    "pairwise",
    "pairwise_cosine",
    "pairwise_cross_entropy",
    "pairwise_euclidean",
    "pairwise_huber",
    "pairwise_l1",
    "pairwise_neg_si_sdr",
    "pairwise_neg_snr",
    "pairwise_sq_euclidean",
    "score_loss",
    "score_targets",
    "value_checks",
]

# Made on demand: they need scikit-learn, which `import torchmcl` must not load.
_ESTIMATORS = ("MCLClassifier", "MCLRegressor")


def __getattr__(name: str) -> Any:
    """Load the estimators when one is asked for."""
    if name in _ESTIMATORS:
        return getattr(importlib.import_module("torchmcl.estimators"), name)
    raise AttributeError(f"module 'torchmcl' has no attribute {name!r}")
