"""Loss of a cost matrix: `assign` computes the weights by a rule, `mcl_loss` multiplies the cost by them."""

import torch
from torch import Tensor

from torchmcl.checks import check_choice, check_cost, check_finite, check_mask, check_sample_weights
from torchmcl.errors import bad_value
from torchmcl.rules.winners import AssignmentRule, check_rule
from torchmcl.types import Matching

__all__ = [
    "assign",
    "matched",
    "mcl_loss",
    "mean_loss",
    "pair_losses",
]


def assign(cost: Tensor, rule: AssignmentRule, mask: Tensor | None = None) -> Matching:
    """Assign hypotheses to targets under `rule`.

    Args:
        cost: Pairwise cost, [..., targets, hypotheses]; lower is better.
        rule: Assignment rule.
        mask: Valid targets, [..., targets]; None if all are valid.

    Returns:
        Matching with the cost (0 in padded rows), the detached weights and the full mask.

    Raises:
        TypeError: If `rule` is not an assignment rule or the mask is not boolean.

    Example:
        >>> from torchmcl import WTA
        >>> assign(torch.tensor([[0.3, 0.1], [9.0, 9.0]]), WTA(), mask=torch.tensor([True, False])).weights
        tensor([[0., 1.],
                [0., 0.]])
    """
    check_rule("assign", rule)
    check_cost("assign", cost)
    if mask is not None:
        check_mask("assign", mask, cost.shape[:-1])
        mask = mask.expand(cost.shape[:-1])
    check_finite("assign", "cost", cost, None if mask is None else mask.unsqueeze(-1))
    return matched(cost, rule, mask)


def matched(cost: Tensor, rule: AssignmentRule, mask: Tensor | None) -> Matching:
    """Compute `assign` without checks of the arguments; the mask has all axes of the targets."""
    weights = rule.assign(cost, mask)
    if mask is None:
        return Matching(cost, weights, cost.new_ones(cost.shape[:-1], dtype=torch.bool))
    return Matching(cost.masked_fill(~mask.unsqueeze(-1), 0), weights, mask)


def mcl_loss(
    matching: Matching,
    reduction: str = "mean",
    *,
    trained_cost: Tensor | None = None,
    model_axes: int = 0,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """Return the loss `sum(weights * cost)` of a matching.

    A NaN or infinite cost of a valid target gives NaN or infinity, for any weight. With a `trained_cost`, the matched
    cost may be infinite where the weight is 0: a forbidden pair.

    Args:
        matching: Matching returned by `assign`.
        reduction: "mean" over all valid targets; "sample_mean", the mean over samples of the mean over the valid
            targets of a sample, without samples that have no valid target; or "none".
        trained_cost: Cost that the weights multiply, [..., targets, hypotheses]; the matched cost by default. For
            example, a likelihood if the winner is selected by distance.
        model_axes: Number of leading axes that are independent models, whose losses are kept apart.
        sample_weights: Weights of the samples, [...] (the axes before the targets). The loss of a sample is multiplied
            by its weight, and the divisor remains the number of samples, so that weights with mean 1 keep the scale.

    Returns:
        Scalar, or [models] with a model axis, 0 without a valid target; for "none", the loss of each target,
        [..., targets], 0 where padded.

    Example:
        >>> from torchmcl import RelaxedWTA
        >>> mcl_loss(assign(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), RelaxedWTA(0.5)))
        tensor(2.5000)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (3) with `WTA`,
        Equation (6) with `AnnealedWTA`; the reduction "sample_mean" is Equations (39) to (41).
    """
    check_choice("mcl_loss", "reduction", reduction, ("mean", "sample_mean", "none"))
    mask = matching.mask
    if trained_cost is not None:
        check_cost("mcl_loss", trained_cost)
        if trained_cost.shape != matching.cost.shape:
            rule = f"have the shape of the matched cost, {tuple(matching.cost.shape)}"
            raise ValueError(bad_value("mcl_loss", "trained_cost", rule, tuple(trained_cost.shape)))
    if sample_weights is not None:
        check_sample_weights("mcl_loss", sample_weights, mask.shape[:-1])
    losses = pair_losses(matching, trained_cost, sample_weights)
    if reduction == "mean":
        return mean_loss(losses, mask, model_axes)
    losses = losses.sum(dim=-1)
    if reduction == "none":
        return losses
    n_valid = mask.sum(dim=-1)
    losses = losses.sum(dim=-1) / n_valid.clamp_min(1)
    samples = tuple(range(model_axes, losses.ndim))
    return losses.sum(dim=samples) / (n_valid > 0).sum(dim=samples).clamp_min(1) if samples else losses


def pair_losses(matching: Matching, trained_cost: Tensor | None, sample_weights: Tensor | None) -> Tensor:
    """Compute the weighted cost of each pair, [..., targets, hypotheses], 0 where padded."""
    if trained_cost is None:
        losses = matching.weights * matching.cost
    else:
        losses = matching.weights * trained_cost.masked_fill(~matching.mask.unsqueeze(-1), 0)
        losses = losses + _nan_unless_matched(matching).unsqueeze(-1)
    return losses if sample_weights is None else losses * sample_weights[..., None, None]


def mean_loss(losses: Tensor, mask: Tensor | None, model_axes: int) -> Tensor:
    """Compute the mean over all valid targets of their summed losses; 0 without a valid target.

    Args:
        losses: Losses of the pairs, [..., targets, hypotheses], 0 where padded.
        mask: Valid targets, [..., targets]; None if all are valid.
        model_axes: Number of leading axes that are independent models.
    """
    if model_axes == 0:
        return losses.sum() / (max(losses.shape[:-1].numel(), 1) if mask is None else mask.sum().clamp_min(1))
    axes = tuple(range(model_axes, losses.ndim))
    if mask is None:
        return losses.sum(dim=axes) / max(losses.shape[model_axes:-1].numel(), 1)
    return losses.sum(dim=axes) / mask.sum(dim=axes[:-1]).clamp_min(1)


def _nan_unless_matched(matching: Matching) -> Tensor:
    """Return 0 for each target, or NaN if its matched cost is NaN or an infinite cost has positive weight.

    The winner of such a row is arbitrary, and the trained cost does not show it.
    """
    forbidden = (matching.cost == torch.inf) & (matching.weights == 0)
    return matching.cost.detach().masked_fill(forbidden, 0).mul(0).sum(dim=-1)
