"""The score of a mixture of normal distributions: the quality of all hypotheses together for a target."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl._checks import check_non_negative
from torchmcl._eager import without_autocast
from torchmcl.costs.declared import CostDeclaration, NormalMixture
from torchmcl.costs.likelihood import pairwise_gaussian_nll


@dataclass(frozen=True)
class MixtureNLLWithCRPS:
    """The negative log-likelihood of a target under all hypotheses together, plus a multiple of their CRPS.

    The hypotheses are normal distributions, their scores (the softmax of the logits) are the shares of a mixture.
    The likelihood alone rewards certainty without bound where targets repeat, and pays little attention to distances
    where it is low; the continuous ranked probability score (CRPS), the mean distance of a draw to the target minus
    half of that between two draws, does the opposite. Together they gave better densities of tables than either.

    There is one cost for each target, [..., targets, 1], so that every rule gives it the weight 1; scores are trained
    by it, so use `score_weight=0`. Of targets with several coordinates the CRPS is the sum of those of each coordinate.

    Args:
        crps: the weight of the CRPS, in units of the targets.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3, scales=True)
        >>> batch = mcl.Batch(torch.randn(8, 2), torch.randn(8, 1, 1))
        >>> step = mcl.mcl_step(model, batch, mcl.WTA(), cost_fn=mcl.MixtureNLLWithCRPS(3.0), score_weight=0)
        >>> step.matching.cost.shape
        torch.Size([8, 1, 1])
    """

    crps: float = 0.0

    def __post_init__(self) -> None:
        """Check the field."""
        check_non_negative("MixtureNLLWithCRPS", "crps", self.crps)

    @property
    def declaration(self) -> CostDeclaration:
        """Vectors, and the closed form with this weight of the CRPS."""
        return CostDeclaration(event_dims=1, formula=NormalMixture(self.crps))

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, scale: Tensor, score_logits: Tensor) -> Tensor:
        """Return the cost [..., targets, 1].

        Args:
            hypotheses: means [..., hypotheses, dim]
            targets: [..., targets, dim]
            scale: standard deviations, of the shape of `hypotheses` or one that broadcasts to it
            score_logits: [..., hypotheses]
        """
        cost = pairwise_gaussian_nll(hypotheses=hypotheses, targets=targets, scale=scale)
        log_shares = score_logits.to(cost.dtype).log_softmax(dim=-1).unsqueeze(-2)  # [..., 1, hypotheses]
        likelihood = (log_shares - cost).logsumexp(dim=-1, keepdim=True)
        if self.crps == 0:
            return -likelihood
        scale = scale.to(cost.dtype).expand(hypotheses.shape)
        crps = _crps(hypotheses.to(cost.dtype), targets.to(cost.dtype), scale, log_shares.exp())
        return self.crps * crps - likelihood


def _crps(hypotheses: Tensor, targets: Tensor, scale: Tensor, shares: Tensor) -> Tensor:
    """Return the CRPS summed over coordinates, [..., targets, 1], of shares [..., 1, hypotheses]."""
    offsets = targets.unsqueeze(-2) - hypotheses.unsqueeze(-3)  # [..., targets, hypotheses, dim]
    near = (shares * mean_distance(offsets, scale.unsqueeze(-3)).sum(dim=-1)).sum(dim=-1, keepdim=True)
    apart = hypotheses.unsqueeze(-2) - hypotheses.unsqueeze(-3)  # [..., hypotheses, hypotheses, dim]
    both = (scale.square().unsqueeze(-2) + scale.square().unsqueeze(-3)).sqrt()
    spread = mean_distance(apart, both).sum(dim=-1)
    with without_autocast(spread):
        return near - (shares @ spread * shares).sum(dim=-1, keepdim=True) / 2


def mean_distance(offset: Tensor, scale: Tensor) -> Tensor:
    """Return the mean of |offset + scale z| for a standard normal z."""
    z = offset / scale
    bell = torch.exp(-z.square() / 2)
    return offset * torch.erf(z / math.sqrt(2)) + scale * bell * math.sqrt(2 / math.pi)
