"""torchmcl: several answers instead of one, for PyTorch.

Multiple choice learning and annealed multiple choice learning: costs, assignment rules, schedules,
losses, scores, modules and metrics that drop into any training loop.

The names are loaded when the first of them is asked for: the command line can then check its input, and show its
help, without torch.
"""

# ruff: noqa: F405  (the names come from a star, for type checkers only)

from typing import TYPE_CHECKING

from torchmcl._lazy import lazy_names
from torchmcl._version import __version__

if TYPE_CHECKING:
    from torchmcl._public import *  # noqa: F403
    from torchmcl.estimators import MCLClassifier, MCLRegressor  # noqa: F401

__all__ = [
    "EMD",
    "PIT",
    "WTA",
    "AnnealedWTA",
    "AssignmentRule",
    "AutoAnnealing",
    "Batch",
    "Constant",
    "Cosine",
    "Distributions",
    "Exponential",
    "Joined",
    "Linear",
    "Matching",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "Predictions",
    "PresenceScores",
    "RelaxedWTA",
    "RuleScheduler",
    "SceneWinners",
    "SigmoidScores",
    "Sinkhorn",
    "SoftmaxScores",
    "StepOutput",
    "TopN",
    "Until",
    "__version__",
    "annealed",
    "match",
    "mcl_loss",
    "mcl_step",
    "metrics",
    "mixture_cost",
    "mixture_score",
    "nn",
    "normalized_scores",
    "pairwise",
    "pairwise_ade",
    "pairwise_cosine",
    "pairwise_cross_entropy",
    "pairwise_dice",
    "pairwise_euclidean",
    "pairwise_fde",
    "pairwise_gaussian_nll",
    "pairwise_huber",
    "pairwise_l1",
    "pairwise_laplace_nll",
    "pairwise_neg_si_sdr",
    "pairwise_neg_snr",
    "pairwise_sq_ade",
    "pairwise_sq_euclidean",
    "pairwise_sq_fde",
    "pairwise_token_cross_entropy",
    "score_loss",
    "score_targets",
    "softmax_score_loss",
    "value_checks",
]

# The estimators need scikit-learn, which the other names must not load; they are no part of `__all__`.
_HOMES = dict.fromkeys(__all__, "torchmcl._public") | dict.fromkeys(
    ("MCLClassifier", "MCLRegressor"), "torchmcl.estimators"
)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
