"""torchmcl: multiple choice learning for PyTorch.

A network predicts several hypotheses and a score for each. Costs, assignment rules, schedules, losses, scores, modules
and metrics fit into any training loop.

The names of this package are imported on first use, so that `torchmcl.app` and `torchmcl.errors` need no torch.
"""

from typing import TYPE_CHECKING

from torchmcl._version import __version__ as __version__
from torchmcl.optional import lazy_names

if TYPE_CHECKING:
    from torchmcl.annealing.auto import AutoAnnealing as AutoAnnealing
    from torchmcl.costs import MixtureNLL as MixtureNLL
    from torchmcl.costs import Pairwise as Pairwise
    from torchmcl.costs import pairwise_ade as pairwise_ade
    from torchmcl.costs import pairwise_cosine as pairwise_cosine
    from torchmcl.costs import pairwise_cross_entropy as pairwise_cross_entropy
    from torchmcl.costs import pairwise_dice as pairwise_dice
    from torchmcl.costs import pairwise_euclidean as pairwise_euclidean
    from torchmcl.costs import pairwise_fde as pairwise_fde
    from torchmcl.costs import pairwise_gaussian_nll as pairwise_gaussian_nll
    from torchmcl.costs import pairwise_huber as pairwise_huber
    from torchmcl.costs import pairwise_l1 as pairwise_l1
    from torchmcl.costs import pairwise_laplace_nll as pairwise_laplace_nll
    from torchmcl.costs import pairwise_neg_si_sdr as pairwise_neg_si_sdr
    from torchmcl.costs import pairwise_neg_snr as pairwise_neg_snr
    from torchmcl.costs import pairwise_sq_ade as pairwise_sq_ade
    from torchmcl.costs import pairwise_sq_euclidean as pairwise_sq_euclidean
    from torchmcl.exporting import export as export
    from torchmcl.loop import RuleScheduler as RuleScheduler
    from torchmcl.losses import assign as assign
    from torchmcl.losses import mcl_loss as mcl_loss
    from torchmcl.nn import MultiHypothesisHead as MultiHypothesisHead
    from torchmcl.nn import MultiHypothesisMLP as MultiHypothesisMLP
    from torchmcl.rules.transport import EMD as EMD
    from torchmcl.rules.transport import PIT as PIT
    from torchmcl.rules.transport import Sinkhorn as Sinkhorn
    from torchmcl.rules.winners import WTA as WTA
    from torchmcl.rules.winners import AnnealedWTA as AnnealedWTA
    from torchmcl.rules.winners import AssignmentRule as AssignmentRule
    from torchmcl.rules.winners import RelaxedWTA as RelaxedWTA
    from torchmcl.rules.winners import TopK as TopK
    from torchmcl.schedules import Constant as Constant
    from torchmcl.schedules import Cosine as Cosine
    from torchmcl.schedules import CutoffAt as CutoffAt
    from torchmcl.schedules import Exponential as Exponential
    from torchmcl.schedules import Linear as Linear
    from torchmcl.schedules import annealed as annealed
    from torchmcl.scoring import SigmoidScores as SigmoidScores
    from torchmcl.scoring import SoftmaxScores as SoftmaxScores
    from torchmcl.scoring import normalized_scores as normalized_scores
    from torchmcl.step import mcl_step as mcl_step
    from torchmcl.types import Batch as Batch
    from torchmcl.types import Distributions as Distributions
    from torchmcl.types import Matching as Matching
    from torchmcl.types import Predictions as Predictions
    from torchmcl.types import StepOutput as StepOutput

# Name -> module that it is imported from on first use.
_HOMES = {
    "AnnealedWTA": "torchmcl.rules.winners",
    "AssignmentRule": "torchmcl.rules.winners",
    "AutoAnnealing": "torchmcl.annealing.auto",
    "Batch": "torchmcl.types",
    "Constant": "torchmcl.schedules",
    "Cosine": "torchmcl.schedules",
    "CutoffAt": "torchmcl.schedules",
    "Distributions": "torchmcl.types",
    "EMD": "torchmcl.rules.transport",
    "Exponential": "torchmcl.schedules",
    "Linear": "torchmcl.schedules",
    "Matching": "torchmcl.types",
    "MixtureNLL": "torchmcl.costs",
    "MultiHypothesisHead": "torchmcl.nn",
    "MultiHypothesisMLP": "torchmcl.nn",
    "PIT": "torchmcl.rules.transport",
    "Pairwise": "torchmcl.costs",
    "Predictions": "torchmcl.types",
    "RelaxedWTA": "torchmcl.rules.winners",
    "RuleScheduler": "torchmcl.loop",
    "SigmoidScores": "torchmcl.scoring",
    "Sinkhorn": "torchmcl.rules.transport",
    "SoftmaxScores": "torchmcl.scoring",
    "StepOutput": "torchmcl.types",
    "TopK": "torchmcl.rules.winners",
    "WTA": "torchmcl.rules.winners",
    "annealed": "torchmcl.schedules",
    "assign": "torchmcl.losses",
    "export": "torchmcl.exporting",
    "mcl_loss": "torchmcl.losses",
    "mcl_step": "torchmcl.step",
    "normalized_scores": "torchmcl.scoring",
    "pairwise_ade": "torchmcl.costs",
    "pairwise_cosine": "torchmcl.costs",
    "pairwise_cross_entropy": "torchmcl.costs",
    "pairwise_dice": "torchmcl.costs",
    "pairwise_euclidean": "torchmcl.costs",
    "pairwise_fde": "torchmcl.costs",
    "pairwise_gaussian_nll": "torchmcl.costs",
    "pairwise_huber": "torchmcl.costs",
    "pairwise_l1": "torchmcl.costs",
    "pairwise_laplace_nll": "torchmcl.costs",
    "pairwise_neg_si_sdr": "torchmcl.costs",
    "pairwise_neg_snr": "torchmcl.costs",
    "pairwise_sq_ade": "torchmcl.costs",
    "pairwise_sq_euclidean": "torchmcl.costs",
}
__all__ = list(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
