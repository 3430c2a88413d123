"""Rules on a subset of the hypotheses: small weights dropped, or hypotheses close to a target left out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.checks import Fraction, NonNegative
from torchmcl.rules.winners import AssignmentRule, check_rule, winner_weights


@dataclass(frozen=True, eq=False)
class Thresholded(AssignmentRule):
    """A rule whose small weights are dropped; the remaining weights of a row are rescaled to sum to 1.

    With `torchmcl.two_pass.TwoPass`, hypotheses without weight are not differentiated. If g is the largest norm of the
    gradient of one hypothesis' cost, the gradient of a target changes by at most `2 * (n_hypotheses - 1) * threshold *
    g`: half of the bound is for the dropped weights, half for rescaling the rest.

    Args:
        rule: any assignment rule.
        threshold: in [0, 1]; weights below it are dropped. The largest weight of a row is always kept.

    Example:
        >>> from torchmcl import AnnealedWTA
        >>> Thresholded(AnnealedWTA(0.1), threshold=0.1)(torch.tensor([[0.3, 0.1, 0.2]]))
        tensor([[0.0000, 0.7311, 0.2689]])
    """

    rule: AssignmentRule
    threshold: Fraction

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_rule("Thresholded", self.rule)

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of the rule without the small ones, rescaled."""
        weights = self.rule(cost, mask)
        largest = winner_weights(-weights)
        kept = torch.where((weights < self.threshold) & (largest == 0), 0, weights)
        return kept / kept.sum(dim=-1, keepdim=True).masked_fill(kept.sum(dim=-1, keepdim=True) == 0, 1)


@dataclass(frozen=True, eq=False)
class OutsideRadius(AssignmentRule):
    """A rule applied to the hypotheses that are not yet close to a target, as in rejection-sampling IMLE.

    A hypothesis whose cost is below the radius for any real target of its sample is left out: those targets are
    covered, and the rest is trained by hypotheses that are not. If all hypotheses of a sample are left out, the rule is
    applied to all of them. `EMD` does not support it.

    Args:
        rule: any assignment rule; `WTA()` gives IMLE's nearest sample.
        radius: >= 0, in the units of the cost; 0 leaves nothing out.

    Example:
        >>> from torchmcl import WTA
        >>> OutsideRadius(WTA(), radius=0.2)(torch.tensor([[0.3, 0.1, 0.2], [0.5, 0.9, 0.8]]))
        tensor([[0., 0., 1.],
                [1., 0., 0.]])

    Reference:
        Vashist, Peng and Li, Rejection Sampling IMLE, 2024.
    """

    rule: AssignmentRule
    radius: NonNegative

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_rule("OutsideRadius", self.rule)

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of the rule among the hypotheses outside of the radius."""
        close = cost < self.radius
        if mask is not None:
            close = close & mask.unsqueeze(-1)
        close = close.any(dim=-2, keepdim=True)
        close = close & ~close.all(dim=-1, keepdim=True)
        return self.rule(cost.masked_fill(close, torch.inf), mask)
