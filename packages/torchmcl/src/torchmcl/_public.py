"""The public names of the package; `torchmcl` loads this module on first use of a name."""

from torchmcl import metrics, nn
from torchmcl._checks import debug_checks
from torchmcl._version import __version__
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.costs import (
    MixtureNLL,
    MixtureNLLWithCRPS,
    Pairwise,
    pairwise_ade,
    pairwise_cosine,
    pairwise_cross_entropy,
    pairwise_dice,
    pairwise_euclidean,
    pairwise_fde,
    pairwise_gaussian_nll,
    pairwise_huber,
    pairwise_l1,
    pairwise_laplace_nll,
    pairwise_neg_si_sdr,
    pairwise_neg_snr,
    pairwise_sq_ade,
    pairwise_sq_euclidean,
    pairwise_sq_fde,
    pairwise_token_cross_entropy,
)
from torchmcl.exporting import export
from torchmcl.loop import RuleScheduler
from torchmcl.losses import assign, mcl_loss
from torchmcl.nn import MultiHypothesisHead, MultiHypothesisMLP
from torchmcl.rules.transport import EMD, PIT, Sinkhorn
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA, SceneWinners, TopK
from torchmcl.schedules import Constant, Cosine, CutoffAt, Exponential, JoinedSchedule, Linear, annealed
from torchmcl.scoring import (
    PresenceScores,
    QualityScores,
    SigmoidScores,
    SoftmaxScores,
    normalized_scores,
    score_loss,
    score_targets,
)
from torchmcl.step import mcl_step
from torchmcl.types import Batch, Distributions, Matching, Predictions, StepOutput

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
    "CutoffAt",
    "Distributions",
    "Exponential",
    "JoinedSchedule",
    "Linear",
    "Matching",
    "MixtureNLL",
    "MixtureNLLWithCRPS",
    "MultiHypothesisHead",
    "MultiHypothesisMLP",
    "Pairwise",
    "Predictions",
    "PresenceScores",
    "QualityScores",
    "RelaxedWTA",
    "RuleScheduler",
    "SceneWinners",
    "SigmoidScores",
    "Sinkhorn",
    "SoftmaxScores",
    "StepOutput",
    "TopK",
    "__version__",
    "annealed",
    "assign",
    "debug_checks",
    "export",
    "mcl_loss",
    "mcl_step",
    "metrics",
    "nn",
    "normalized_scores",
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
]
