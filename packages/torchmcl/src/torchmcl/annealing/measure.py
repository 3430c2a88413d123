"""Measurements of a soft assignment from the results of a training step, and the scale of its costs."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl import theory
from torchmcl.types import Matching


class Measurement(NamedTuple):
    """The state of an assignment, as scalars on the device of the cost; nothing is read on the host.

    Attributes:
        distortion: mean cost of the cheapest hypothesis, Eq. (1).
        soft_distortion: mean weighted cost D(q, f), Eq. (7).
        entropy: H(q), of the weights given the target, in nats.
        free_energy: D - T H, Eq. (11); the soft distortion itself for rules without a temperature.
        rate: mutual information of targets and hypotheses, in bits, Eq. (10).
        usage: [hypotheses], the share of the weight of each.
    """

    distortion: Tensor
    soft_distortion: Tensor
    entropy: Tensor
    free_energy: Tensor
    rate: Tensor
    usage: Tensor


SCALARS = Measurement._fields[:-1]


def measure(matching: Matching, temperature: float | Tensor) -> Measurement:
    """Return the recorded quantities of a matching.

    If inputs have several targets, the rate is computed for each input and averaged. A batch with one target per input
    does not show the distribution of a single input; the rate is then computed over the whole batch, and includes the
    information that the choice carries about the input.

    Args:
        matching: cost, weights and mask [batch, targets, hypotheses] of one model (`torch.vmap` for more).
        temperature: of the rule that made the weights; 0 for rules without one.

    Example:
        >>> import torch, torchmcl as mcl
        >>> cost = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])
        >>> hot, cold = measure(mcl.assign(cost, mcl.AnnealedWTA(1e6)), 1e6), measure(mcl.assign(cost, mcl.WTA()), 0.0)
        >>> round(hot.rate.item(), 3), round(cold.rate.item(), 3), round(hot.soft_distortion.item(), 3)
        (0.0, 1.0, 0.5)
    """
    cost, weights, mask = matching.cost, matching.weights, matching.mask
    cost, n_axes = cost.detach(), mask.ndim
    soft = theory.soft_distortion(cost, weights, mask=mask, mean_axes=n_axes)
    entropy = theory.assignment_entropy(weights, mask=mask, mean_axes=n_axes)
    n_real = mask.sum()
    if mask.shape[-1] == 1:
        rate = theory.mutual_information(weights.flatten(0, -2), mask.flatten())
    else:
        counts = mask.any(dim=-1)  # inputs without any real target have no rate
        rate = (theory.mutual_information(weights, mask) * counts).sum() / counts.sum().clamp_min(1)
    return Measurement(
        distortion=torch.where(mask, cost.amin(dim=-1), 0.0).sum() / n_real,
        soft_distortion=soft,
        entropy=entropy,
        free_energy=soft - temperature * entropy,
        rate=rate,
        usage=weights.flatten(0, -2).sum(dim=0) / n_real,
    )


# The smallest difference between hypotheses that counts, relative to how far samples deviate.
_SMALLEST_SPREAD = 1e-3
# A distance may come out below 0 by rounding, relative to the size of distances.
_ROUNDING = 1e-5


class CostScale(NamedTuple):
    """Statistics of the costs, one entry per model.

    Attributes:
        mean: over hypotheses, samples and real targets.
        best: of the cheapest hypothesis, over samples and real targets: the distortion.
        spread: how far hypotheses are above the best one of their sample, on average.
        has_zero: whether the costs have a natural zero: none of them was negative.
    """

    mean: Tensor
    best: Tensor
    spread: Tensor
    has_zero: Tensor

    @property
    def scale(self) -> Tensor:
        """The unit of temperatures: the mean, or the spread of costs without a natural zero."""
        return torch.where(self.has_zero, self.mean, self.spread)


def cost_scale(matching: Matching, *, stacked: bool = False) -> CostScale:
    """Return the scale of the costs, in their units.

    For costs that are never negative the scale is their mean over hypotheses, samples and real targets. While the
    hypotheses are together it is the trace of the conditional covariance, half of the critical temperature in one
    dimension and above it in several.

    For a cost without a natural zero, such as the SI-SDR in decibels, the mean has no meaning. Its scale is how far
    hypotheses are above the best one of their sample, the quantity that a softmin acts on: at that temperature it just
    begins to distinguish untrained hypotheses, and once they separate, it is cold. It is at least a thousandth of the
    mean deviation of samples, so that rounding errors do not count as differences.

    Costs that are not finite are left out; if none is, everything is NaN.

    Args:
        matching: of a step.
        stacked: the leading axis is models; one number per model.

    Example:
        >>> from torchmcl import AnnealedWTA, assign
        >>> costs = cost_scale(assign(torch.tensor([[[1.0, 1.0]], [[3.0, 3.0]]]), AnnealedWTA(9.0)))
        >>> costs.scale, costs.has_zero
        (tensor(2.), tensor(True))
    """
    costs = matching.cost.detach().float()
    cost = costs.mean(dim=-1)  # over hypotheses
    known = matching.mask & cost.isfinite()
    axes = tuple(range(1 if stacked else 0, cost.ndim))
    n_known = known.to(cost.dtype).sum(dim=axes, keepdim=True)  # 0 makes the results NaN

    def mean(values: Tensor) -> Tensor:
        return torch.where(known, values, 0.0).sum(dim=axes, keepdim=True) / n_known

    def each(values: Tensor) -> Tensor:
        return values.flatten(1 if stacked else 0).squeeze(-1)

    middle, lowest = mean(cost), costs.amin(dim=-1)
    best, deviation = mean(lowest), mean((cost - middle).abs())
    negative = known & (lowest < -_ROUNDING * mean(cost.abs()))
    return CostScale(
        each(middle),
        each(best),
        each(torch.maximum(middle - best, _SMALLEST_SPREAD * deviation)),
        ~negative.flatten(1 if stacked else 0).any(dim=-1),
    )
