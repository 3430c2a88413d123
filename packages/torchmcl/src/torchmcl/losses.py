"""From a cost to a loss: `assign` computes weights by a rule, `mcl_loss` weights the cost with them."""

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_choice, check_cost, check_finite, check_mask, check_sample_weights
from torchmcl.dispatch import is_plain_eager
from torchmcl.rules.winners import AssignmentRule
from torchmcl.types import Matching


def assign(cost: Tensor, rule: AssignmentRule, mask: Tensor | None = None) -> Matching:
    """Assign hypotheses to targets under `rule`.

    Args:
        cost: [..., targets, hypotheses], lower is better.
        rule: an assignment rule.
        mask: [..., targets], True where a target is real; None when all are.

    Returns:
        Matching with the cost (padded rows set to 0), the detached weights and the full mask.

    Raises:
        TypeError: if `rule` is not an assignment rule or the mask is not boolean.

    Example:
        >>> from torchmcl import WTA
        >>> assign(torch.tensor([[0.3, 0.1], [9.0, 9.0]]), WTA(), mask=torch.tensor([True, False])).weights
        tensor([[0., 1.],
                [0., 0.]])
    """
    if not isinstance(rule, AssignmentRule):
        advice = "An annealed rule is called with the step first: rule(step); AutoAnnealing goes into a RuleScheduler."
        raise TypeError(bad_value("assign", "rule", "be an assignment rule", repr(rule), advice))
    check_cost("assign", cost)
    if mask is None:
        check_finite("assign", "cost", cost)
        real = torch.ones(cost.shape[:-1], dtype=torch.bool, device=cost.device)
        return Matching(cost, rule(cost), real)
    check_mask("assign", mask, cost.shape[:-1])
    mask = mask.expand(cost.shape[:-1])
    check_finite("assign", "cost", cost, mask.unsqueeze(-1))
    return Matching(cost.masked_fill(~mask.unsqueeze(-1), 0), rule(cost, mask), mask)


def mcl_loss(
    matching: Matching,
    reduction: str = "mean",
    *,
    trained_cost: Tensor | None = None,
    model_axes: int = 0,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """Return the loss `sum(weights * cost)` of a matching.

    A NaN or infinite cost of a real target gives NaN, for any weight. With a `trained_cost`, the matched cost may
    be infinite where the weight is 0: a forbidden pair.

    Args:
        matching: from `assign`.
        reduction: "mean" over all real targets; "sample_mean", the mean over samples of the mean
            over each sample's real targets (samples without any are left out); or "none".
        trained_cost: [..., targets, hypotheses], the cost that the weights multiply, if not the matched cost; for
            example, a likelihood where the winner is selected by distance.
        model_axes: how many leading axes are independent models, whose losses are kept apart.
        sample_weights: [...] (the axes before the targets), how much each sample counts: its loss is multiplied
            by its weight and the number of samples stays the divisor, so weights of mean 1 keep the scale.

    Returns:
        A scalar, or [models] with a model axis; for "none" the loss of each target [..., targets],
        0 where padded. Without any real target the scalar is 0.

    Example:
        >>> from torchmcl import RelaxedWTA
        >>> mcl_loss(assign(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), RelaxedWTA(0.5)))
        tensor(2.5000)

    Reference:
        Eq. (3) with `WTA`, Eq. (6) with `AnnealedWTA`; "sample_mean" is Eq. (39) to (41).
    """
    check_choice("mcl_loss", "reduction", reduction, ("mean", "sample_mean", "none"))
    cost, weights, mask = matching
    if trained_cost is not None:
        check_cost("mcl_loss", trained_cost)
        if trained_cost.shape != cost.shape:
            rule = f"have the shape of the matched cost, {tuple(cost.shape)}"
            raise ValueError(bad_value("mcl_loss", "trained_cost", rule, tuple(trained_cost.shape)))
        cost = trained_cost.masked_fill(~mask.unsqueeze(-1), 0)
    per_target = (weights * cost).sum(dim=-1)
    if trained_cost is not None:
        per_target = per_target + _nan_unless_matched(matching)
    if sample_weights is not None:
        check_sample_weights("mcl_loss", sample_weights, mask.shape[:-1])
        per_target = per_target * sample_weights.unsqueeze(-1)
    axes = tuple(range(model_axes, mask.ndim))
    if reduction == "mean":
        loss = per_target.sum(dim=axes) / mask.sum(dim=axes).clamp_min(1)
    elif reduction == "sample_mean":
        n_real = mask.sum(dim=-1)
        per_sample = per_target.sum(dim=-1) / n_real.clamp_min(1)
        samples = axes[:-1]
        loss = per_sample.sum(dim=samples) / (n_real > 0).sum(dim=samples).clamp_min(1) if samples else per_sample
    else:
        loss = per_target
    return _nan_unless_finite(loss)


def _nan_unless_matched(matching: Matching) -> Tensor:
    """Return 0 for each target, or NaN if its matched cost is NaN or an infinite cost has positive weight.

    The winner of such a row is arbitrary, and the trained cost does not show it.
    """
    forbidden = (matching.cost == torch.inf) & (matching.weights == 0)
    return matching.cost.detach().masked_fill(forbidden, 0).mul(0).sum(dim=-1)


def _nan_unless_finite(loss: Tensor) -> Tensor:
    """Return NaN for infinity: an overflowed cost must not appear as a plausible loss."""
    if is_plain_eager():
        return torch.sub(loss, loss.detach(), alpha=0)  # 0 * infinity is NaN, in one operation instead of six
    return loss + torch.where(loss.isfinite(), 0.0, torch.nan).to(loss.dtype)
