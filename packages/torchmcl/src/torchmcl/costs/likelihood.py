"""Negative log-likelihoods of hypotheses that are distributions, and of their mixture."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.checks import check_callable, check_non_negative, check_tensor
from torchmcl.costs.chunked import GAUSSIAN, LAPLACE, Family, summed_nll
from torchmcl.costs.declared import (
    CostDeclaration,
    NormalMixtureFormula,
    aligned_events,
    check_takes_mask,
    cost_declaration,
    declare_cost,
    flattened,
    n_valid_steps,
    needs,
)
from torchmcl.dispatch import broadcast_shapes, debug_checks_enabled, without_autocast
from torchmcl.errors import bad_value

__all__ = [
    "MixtureNLL",
    "MixtureNLLWithCRPS",
    "mean_distance",
    "pairwise_gaussian_nll",
    "pairwise_laplace_nll",
]


@declare_cost(event_dims=...)
def pairwise_gaussian_nll(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    scale: Tensor,
    mask: Tensor | None = None,
    event_dims: int = 1,
    per_step: bool = False,
) -> Tensor:
    r"""Return the negative log-density of every target under the normal distribution of every hypothesis.

    .. math:: \sum_d \frac{(y_d - \mu_d)^2}{2 \sigma_d^2} + \log \sigma_d + \frac12 \log 2 \pi

    The sum is over the valid coordinates of a target.

    Args:
        hypotheses: Means, [..., hypotheses, dim], or [..., hypotheses, steps, dim] with `event_dims=2`.
        targets: Targets, [..., targets, dim] or [..., targets, steps, dim]; masked steps are ignored, even NaN.
        scale: Standard deviations, > 0, in a shape that broadcasts to that of `hypotheses`. A scale of 0 or below gives
            NaN or infinity, and an error inside `debug_checks`.
        mask: Valid steps, [..., targets, steps]; None if all are valid.
        event_dims: Number of axes of one hypothesis; supplied by `mcl_step`.
        per_step: Whether to divide by the number of valid steps, so that long and short sequences count alike.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in all three inputs; 0 without a valid step.

    Example:
        >>> import torch
        >>> means, scale = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [2.0]])
        >>> pairwise_gaussian_nll(hypotheses=means, targets=torch.tensor([[1.0]]), scale=scale)
        tensor([[1.4189, 2.1121]])
    """
    return _nll("pairwise_gaussian_nll", GAUSSIAN, hypotheses, targets, scale, mask, event_dims, per_step)


@declare_cost(event_dims=...)
def pairwise_laplace_nll(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    scale: Tensor,
    mask: Tensor | None = None,
    event_dims: int = 1,
    per_step: bool = False,
) -> Tensor:
    r"""Return the negative log-density of every target under the Laplace distribution of every hypothesis.

    .. math:: \sum_d \frac{|y_d - \mu_d|}{b_d} + \log 2 b_d

    Args:
        hypotheses: Locations, [..., hypotheses, dim], or [..., hypotheses, steps, dim] with `event_dims=2`.
        targets: Targets, [..., targets, dim] or [..., targets, steps, dim]; masked steps are ignored, even NaN.
        scale: Mean absolute deviations, > 0, in a shape that broadcasts to that of `hypotheses`.
        mask: Valid steps, [..., targets, steps]; None if all are valid.
        event_dims: Number of axes of one hypothesis; supplied by `mcl_step`.
        per_step: Whether to divide by the number of valid steps, so that long and short sequences count alike.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in all three inputs; 0 without a valid step.

    Example:
        >>> import torch
        >>> location, scale = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [2.0]])
        >>> pairwise_laplace_nll(hypotheses=location, targets=torch.tensor([[1.0]]), scale=scale)
        tensor([[1.6931, 2.3863]])
    """
    return _nll("pairwise_laplace_nll", LAPLACE, hypotheses, targets, scale, mask, event_dims, per_step)


@dataclass(frozen=True)
class MixtureNLL:
    """Negative log-likelihood of a mixture component, -log(score_k p_k(y)), as a cost.

    With this cost, `AnnealedWTA(1.0)` trains a mixture density network: the weights are the posterior probabilities of
    the components, and the gradient of the loss is the gradient of the negative log-likelihood of the mixture. A
    temperature that falls from above 1 to 1 is deterministic annealing of the mixture; at 0 the rule is
    winner-takes-all. Scores are the softmax of the logits and are trained by the cost, so use `score_weight=0`.

    Args:
        nll: Negative log-likelihood, `pairwise_gaussian_nll` or `pairwise_laplace_nll` for example.

    Example:
        >>> import torch, torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3, scales=True)
        >>> batch = mcl.Batch(torch.randn(8, 2), torch.randn(8, 1, 1))
        >>> cost_fn = mcl.MixtureNLL(mcl.pairwise_gaussian_nll)
        >>> mcl.mcl_step(model, batch, mcl.AnnealedWTA(1.0), cost_fn=cost_fn, score_weight=0).matching.cost.shape
        torch.Size([8, 1, 3])
    """

    nll: Callable[..., Tensor]

    def __post_init__(self) -> None:
        """Check the field."""
        check_callable("MixtureNLL", "nll", self.nll, "torchmcl.pairwise_gaussian_nll")

    @property
    def declaration(self) -> CostDeclaration:
        """Axes of `nll`."""
        inner = cost_declaration(self.nll)
        return CostDeclaration(inner.event_dims, inner.target_dims)

    def __call__(
        self,
        *,
        hypotheses: Tensor,
        targets: Tensor,
        score_logits: Tensor,
        scale: Tensor | None = None,
        mask: Tensor | None = None,
        event_dims: int = 1,
    ) -> Tensor:
        """Return the cost [..., targets, hypotheses]."""
        if mask is not None:
            check_takes_mask("MixtureNLL", "nll", self.nll)
        available: dict[str, Any] = {"scale": scale, "mask": mask, "event_dims": event_dims}
        extras = {name: available[name] for name in needs(self.nll) if name in available}
        cost = self.nll(hypotheses=hypotheses, targets=targets, **extras)
        return cost - score_logits.to(cost.dtype).log_softmax(dim=-1).unsqueeze(-2)


def _nll(
    owner: str,
    family: Family,
    hypotheses: Tensor,
    targets: Tensor,
    scale: Tensor,
    mask: Tensor | None,
    event_dims: int,
    per_step: bool,
) -> Tensor:
    """Compute the sum of a negative log-density over the valid coordinates of a target."""
    _check_scale(owner, scale, hypotheses)
    scale = scale.expand(hypotheses.shape)
    hypotheses, targets, mask = aligned_events(owner, hypotheses, targets, mask, event_dims)
    scale = scale.to(hypotheses.dtype).expand(hypotheses.shape)
    n_steps = n_valid_steps(mask, targets, event_dims) if per_step else 1
    # Events as rows of coordinates: the sum over steps and coordinates is one.
    real = None
    if mask is not None:
        real = mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim)).expand(targets.shape).flatten(-event_dims)
    hypotheses, targets, scale = (part.flatten(-event_dims) for part in (hypotheses, targets, scale))
    cost = flattened(functools.partial(summed_nll, family), (hypotheses, 2), (targets, 2), (scale, 2), (real, 2))
    return cost / n_steps if per_step else cost


def _check_scale(owner: str, scale: Tensor, hypotheses: Tensor) -> None:
    if scale is None:
        advice = "A head with scales=True gives them: Distributions(hypotheses, score_logits, scale)."
        raise ValueError(f"{owner}: `scale` is required. {advice}")
    check_tensor(owner, "scale", scale)
    check_tensor(owner, "hypotheses", hypotheses)
    try:
        fits = broadcast_shapes(scale.shape, hypotheses.shape) == hypotheses.shape
    except RuntimeError:
        fits = False
    if not fits:
        rule = f"broadcast to the shape of `hypotheses`, {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "scale", rule, tuple(scale.shape)))
    if debug_checks_enabled() and scale.numel() and not bool((scale > 0).all()):
        advice = "torch.nn.functional.softplus(x) + 1e-3 is one way to make it so."
        raise ValueError(bad_value(owner, "scale", "be > 0", float(scale.min()), advice))


@dataclass(frozen=True)
class MixtureNLLWithCRPS:
    """Negative log-likelihood of the mixture of all hypotheses, plus a multiple of its CRPS.

    The hypotheses are normal distributions, and their scores (the softmax of the logits) are the probabilities of a
    mixture. The likelihood rewards certainty without bound where targets repeat, and is insensitive to distances where
    it is low. The continuous ranked probability score (CRPS), E|X - y| - E|X - X'| / 2, behaves in the opposite way.
    Their sum gave better densities on tables than either one.

    There is one cost per target, [..., targets, 1], so that every rule gives it the weight 1. The cost trains the
    scores, so use `score_weight=0`. For targets with several coordinates, the CRPS is summed over the coordinates.

    Args:
        crps: Weight of the CRPS, which has the units of the targets.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3, scales=True)
        >>> batch = mcl.Batch(torch.randn(8, 2), torch.randn(8, 1, 1))
        >>> step = mcl.mcl_step(model, batch, mcl.WTA(), cost_fn=MixtureNLLWithCRPS(3.0), score_weight=0)
        >>> step.matching.cost.shape
        torch.Size([8, 1, 1])
    """

    crps: float = 0.0

    def __post_init__(self) -> None:
        """Check the field."""
        check_non_negative("MixtureNLLWithCRPS", "crps", self.crps)

    @property
    def declaration(self) -> CostDeclaration:
        """Axes of a vector, and the closed form of the cost."""
        return CostDeclaration(event_dims=1, formula=NormalMixtureFormula(self.crps))

    def __call__(self, *, hypotheses: Tensor, targets: Tensor, scale: Tensor, score_logits: Tensor) -> Tensor:
        """Return the cost [..., targets, 1].

        Args:
            hypotheses: Means, [..., hypotheses, dim].
            targets: Targets, [..., targets, dim].
            scale: Standard deviations, in a shape that broadcasts to that of `hypotheses`.
            score_logits: Score logits, [..., hypotheses].
        """
        cost = pairwise_gaussian_nll(hypotheses=hypotheses, targets=targets, scale=scale)
        log_probabilities = score_logits.to(cost.dtype).log_softmax(dim=-1).unsqueeze(-2)  # [..., 1, hypotheses]
        likelihood = (log_probabilities - cost).logsumexp(dim=-1, keepdim=True)
        if self.crps == 0:
            return -likelihood
        scale = scale.to(cost.dtype).expand(hypotheses.shape)
        crps = _crps(hypotheses.to(cost.dtype), targets.to(cost.dtype), scale, log_probabilities.exp())
        return self.crps * crps - likelihood


def _crps(hypotheses: Tensor, targets: Tensor, scale: Tensor, probabilities: Tensor) -> Tensor:
    """Compute the CRPS for probabilities [..., 1, hypotheses], summed over coordinates, [..., targets, 1]."""
    offsets = targets.unsqueeze(-2) - hypotheses.unsqueeze(-3)  # [..., targets, hypotheses, dim]
    near = (probabilities * mean_distance(offsets, scale.unsqueeze(-3)).sum(dim=-1)).sum(dim=-1, keepdim=True)
    apart = hypotheses.unsqueeze(-2) - hypotheses.unsqueeze(-3)  # [..., hypotheses, hypotheses, dim]
    both = (scale.square().unsqueeze(-2) + scale.square().unsqueeze(-3)).sqrt()
    spread = mean_distance(apart, both).sum(dim=-1)
    with without_autocast(spread):
        return near - (probabilities @ spread * probabilities).sum(dim=-1, keepdim=True) / 2


def mean_distance(offset: Tensor, scale: Tensor) -> Tensor:
    """Compute the mean of |offset + scale z| for a standard normal z."""
    z = offset / scale
    bell = torch.exp(-z.square() / 2)
    return offset * torch.erf(z / math.sqrt(2)) + scale * bell * math.sqrt(2 / math.pi)
