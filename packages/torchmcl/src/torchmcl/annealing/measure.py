"""Measurements of a soft assignment, from the results of a training step."""

from typing import NamedTuple

from torch import Tensor

from torchmcl import metrics, theory
from torchmcl.types import Matching


class Measurement(NamedTuple):
    """The state of an assignment; scalars on the device of the cost, nothing is read on the host.

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

    The rate is that of each input, averaged, where inputs have several targets. A batch with one target per input
    does not show the distribution of a single input; there it is the rate over the whole batch, which also counts the
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
    cost, weights, mask = matching
    cost, n_axes = cost.detach(), mask.ndim
    soft = theory.soft_distortion(cost, weights, mask=mask, mean_axes=n_axes)
    entropy = theory.assignment_entropy(weights, mask=mask, mean_axes=n_axes)
    if mask.shape[-1] == 1:
        rate = theory.mutual_information(weights.flatten(0, -2), mask.flatten())
    else:
        counts = mask.any(dim=-1)  # inputs without any real target have no rate
        rate = (theory.mutual_information(weights, mask) * counts).sum() / counts.sum().clamp_min(1)
    return Measurement(
        distortion=metrics.distortion(Matching(cost, weights, mask)),
        soft_distortion=soft,
        entropy=entropy,
        free_energy=soft - temperature * entropy,
        rate=rate,
        usage=metrics.hypothesis_usage(Matching(cost, weights, mask)),
    )
