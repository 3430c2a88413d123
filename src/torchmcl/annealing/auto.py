"""Annealing without a temperature to choose: when to cool, from where, and how fast, decided by measurements.

A training has three phases, at a pace that each model sets:

1. *Hold*: the temperature stays above the first critical temperature, 2 lambda_max of the conditional covariance
   (Eq. (14)), so that all hypotheses learn one answer together from all the data. It follows the residuals down.
2. *Cool*: from the critical temperature to a thousandth of it, evenly in its logarithm; hypotheses split. A cost
   without a natural zero starts from the spread that `cost_scale` measures.
3. *Tail*: hard winner-takes-all, while the learning rate falls to 0 along a cosine.

How long to hold is decided by what holding gains. After the first tenth of the training, which is left to slow
starters, a single answer that has divided its distortion by e^g so far may use the share g^2 / (g^2 + hold_gain^2) of
95 % of the training. Where the noise is large the answer soon stops improving and cooling begins early; where it keeps
improving, cooling waits for it. A cost without a natural zero (decibels) does not show what was gained, and cooling
begins at once, from the temperature at which a softmin begins to distinguish the untrained hypotheses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_non_negative, check_real
from torchmcl.types import Matching

__all__ = ["POLICY_CONSTANTS", "AutoAnnealing", "AutoValues", "CostScale", "cost_scale"]


class PolicyConstants(NamedTuple):
    """The numbers of the policy that nobody has to choose.

    Attributes:
        hold: the temperature while holding, of the critical one.
        begin: where cooling begins, of the critical temperature.
        longest: share of the training that the hold may take, whatever it gains: cooling and the tail need their time.
        warm_up: share of the training in which nothing is concluded and no weight decay is used: before anything is
            learnt, ignorance cannot be told from noise, and the decay it asks for would keep the network from learning.
        strongest: the largest weight decay: far above it, networks trained on few rows die.
        settling: share of what the hold leaves after which the learning rate begins to fall.
    """

    hold: float = 2.0
    begin: float = 1.05
    longest: float = 0.95
    warm_up: float = 0.1
    strongest: float = 3.0
    settling: float = 0.4


POLICY_CONSTANTS = PolicyConstants()
# The smallest difference between hypotheses that counts, relative to how far samples deviate.
_SMALLEST_SPREAD = 1e-3
# A distance may come out below 0 by rounding, relative to the size of distances.
_ROUNDING = 1e-5
_TINY = torch.finfo(torch.float32).tiny


class AutoValues(NamedTuple):
    """What a step uses: the temperature (0 is hard), a factor on the learning rate, and the weight decay."""

    temperature: Tensor
    rate: Tensor
    weight_decay: Tensor


class CostScale(NamedTuple):
    """How large costs are, one entry per model.

    Attributes:
        mean: over hypotheses, samples and real targets.
        spread: how far hypotheses are above the best one of their sample, on average.
        has_zero: whether the costs have a natural zero: none of them was negative.
    """

    mean: Tensor
    spread: Tensor
    has_zero: Tensor

    @property
    def scale(self) -> Tensor:
        """What temperatures are measured in: the mean, or the spread of costs without a natural zero."""
        return torch.where(self.has_zero, self.mean, self.spread)


@dataclass(frozen=True)
class AutoAnnealing:
    """Decide in training when to cool, from where and how fast.

    Give it wherever a rule goes: to `RuleScheduler` for a loop of your own, `Fleet`, `MCLModule`, the estimators. This
    is the policy; the state of a training is a dictionary of tensors, one entry per model trained side by side.

    Nothing here reads a value on the host, so a captured CUDA graph can run it.

    Args:
        hold_gain: the gain that pays for a hold of about half the training, as a logarithm: 0.5 is a distortion divided
            by e^0.5. Larger values hold for a shorter time.
        cooling: share of what is left after the hold that the cooling takes; the rest is the tail.
        end: where cooling ends and hard winner-takes-all begins, relative to the critical temperature.
        noise_decay: weight decay per unit of noise per row: `noise_decay * u * (1 - u) / rows`, at most 3, where u is
            the lowest distortion so far relative to the first one, after a tenth of the training. Less noise and more
            rows need less decay; as long as nothing is learnt, nothing is known of the noise. 0 for none.
        full_rate_steps: a training of more optimizer steps than these has its learning rate lowered, by the square root
            of the ratio.

    Example:
        >>> policy = AutoAnnealing()
        >>> state = policy.init(torch.tensor([1.0]))  # the scale of the costs before training
        >>> policy.value(state, epoch=0, n_epochs=100, n_rows=1000).temperature
        tensor([4.])
        >>> policy.update(state, torch.tensor([0.9]), epoch=18, n_epochs=100)  # flat: cooling begins
        >>> [round(float(policy.value(state, t, 100, 1000).temperature), 3) for t in (18, 30, 40, 50)]
        [1.89, 0.063, 0.004, 0.0]

    Reference:
        Prop. 4 (ii), Eq. (14), for the critical temperature.
    """

    hold_gain: float | Tensor = 0.5
    cooling: float | Tensor = 0.3
    end: float | Tensor = 1e-3
    noise_decay: float | Tensor = 5000.0
    full_rate_steps: float | Tensor = 1000.0

    def __post_init__(self) -> None:
        """Check the fields; tensors come from `stacked`, whose policies are checked already."""
        numbers = {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}
        for name, value in numbers.items():
            check_real("AutoAnnealing", name, value)
        for name in numbers.keys() & {"hold_gain", "end", "full_rate_steps"}:
            if not numbers[name] > 0:
                raise ValueError(bad_value("AutoAnnealing", name, "be > 0", numbers[name]))
        if not 0 < numbers.get("cooling", 0.5) < 1:
            raise ValueError(bad_value("AutoAnnealing", "cooling", "lie between 0 and 1", self.cooling))
        if "noise_decay" in numbers:
            check_non_negative("AutoAnnealing", "noise_decay", self.noise_decay)

    @classmethod
    def stacked(cls, policies: Sequence["AutoAnnealing"], device: torch.device | str = "cpu") -> "AutoAnnealing":
        """Return one policy for models trained side by side, with the numbers of each."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.tensor([float(getattr(p, name)) for p in policies], device=device) for name in names})

    def init(self, scale: Tensor) -> dict[str, Tensor]:
        """Return the state before training.

        Args:
            scale: `cost_scale` of the untrained models, of any shape: one entry per model.
        """
        begun = torch.full(scale.shape, -1.0, dtype=torch.float32, device=scale.device)
        return {**{name: scale.clone().float() for name in ("first", "scale", "lowest")}, "begun": begun}

    def release(self, state: Mapping[str, Tensor], measured: "CostScale", epoch: float | Tensor) -> None:
        """Start cooling models whose costs have no natural zero, which nothing is held for. Changes the state."""
        released = (state["begun"] < 0) & ~measured.has_zero
        state["scale"].copy_(torch.where(released, measured.scale.float(), state["scale"]))
        state["begun"].copy_(torch.where(released, epoch, state["begun"]))

    def update(self, state: Mapping[str, Tensor], scale: Tensor, epoch: float | Tensor, n_epochs: float) -> None:
        """Take in what was measured after `epoch` epochs: lower the scale, or begin to cool. Changes the state."""
        holds = state["begun"] < 0
        state["scale"].copy_(torch.where(holds & scale.isfinite(), scale.float(), state["scale"]))
        state["lowest"].copy_(torch.minimum(state["lowest"], state["scale"]))
        gained = (state["first"] / state["scale"].clamp_min(_TINY)).log().clamp_min(0)
        share = POLICY_CONSTANTS.longest / (1 + (self.hold_gain / gained) ** 2)
        # With few epochs, at least one is left for the tail.
        latest = n_epochs - 1 - 1 / (1 - self.cooling)
        begins = holds & (epoch >= (share.clamp_min(POLICY_CONSTANTS.warm_up) * n_epochs).clamp(max=latest))
        state["begun"].copy_(torch.where(begins, epoch, state["begun"]))

    def value(
        self,
        state: Mapping[str, Tensor],
        epoch: float | Tensor,
        n_epochs: float,
        n_rows: float | Tensor,
        n_steps: float | Tensor | None = None,
    ) -> AutoValues:
        """Return what to use in an epoch.

        Args:
            state: from `init`, changed by `update`.
            epoch: counted from 0; fractions are fine.
            n_epochs: of the whole training.
            n_rows: of the training data, for the weight decay.
            n_steps: of the optimizer in the whole training, for the learning rate; None leaves it as given.
        """
        scale, begun = state["scale"], state["begun"]
        holds = begun < 0
        after = ((epoch - begun) / (n_epochs - begun).clamp_min(1)).clamp(0, 1)  # share of what the hold left
        cooled = after / self.cooling
        falling = 2 * POLICY_CONSTANTS.begin * scale * (self.end / POLICY_CONSTANTS.begin) ** cooled.clamp(max=1)
        temperature = torch.where(holds, 2 * POLICY_CONSTANTS.hold * scale, torch.where(cooled < 1, falling, 0.0))
        settled = ((after - POLICY_CONSTANTS.settling) * (math.pi / (1 - POLICY_CONSTANTS.settling))).clamp(min=0)
        rate = torch.where(holds, 1.0, (1 + torch.cos(settled)) / 2)
        if n_steps is not None:
            share = torch.as_tensor(self.full_rate_steps / n_steps, dtype=rate.dtype, device=rate.device)
            rate = rate * share.clamp(max=1).sqrt()
        # The lowest: a decay that makes the answer worse must not look like noise and ask for more decay.
        unknown = state["lowest"] / state["first"].clamp_min(_TINY)
        noise = unknown * (1 - unknown)  # as long as nothing is learnt, nothing is known of the noise either
        decay = self.noise_decay * noise / n_rows
        warms_up = epoch < POLICY_CONSTANTS.warm_up * n_epochs
        if isinstance(warms_up, Tensor):
            decay = torch.where(warms_up, 0.0, decay)
        elif warms_up:
            decay = torch.zeros_like(decay)
        return AutoValues(temperature, rate, decay.clamp(max=POLICY_CONSTANTS.strongest))


def cost_scale(matching: Matching, *, stacked: bool = False) -> CostScale:
    """Return how large the costs are, in their own units.

    For costs that are never negative the scale is their mean over hypotheses, samples and real targets, half of the
    critical temperature or a little more: while the hypotheses are together it is the trace of the conditional
    covariance, which is lambda_max in one dimension and above it in several.

    For a cost without a natural zero, such as the SI-SDR in decibels, the mean says nothing. Its scale is how far
    hypotheses are above the best one of their sample, which is what a softmin acts on: at that temperature it just
    begins to distinguish untrained hypotheses, and when they part it is cold. It is at least a thousandth of the mean
    deviation of samples, so that rounding errors do not count as differences.

    Costs that are not finite are left out; if none is, everything is NaN.

    Args:
        matching: of a step.
        stacked: the leading axis is models; one number per model.

    Example:
        >>> from torchmcl import AnnealedWTA, match
        >>> costs = cost_scale(match(torch.tensor([[[1.0, 1.0]], [[3.0, 3.0]]]), AnnealedWTA(9.0)))
        >>> costs.scale, costs.has_zero
        (tensor(2.), tensor(True))
    """
    costs = matching.cost.detach().float()
    cost = costs.mean(dim=-1)  # over hypotheses
    known = matching.mask & cost.isfinite()
    axes = tuple(range(1 if stacked else 0, cost.ndim))
    n_known = known.to(cost.dtype).sum(dim=axes, keepdim=True)  # 0 makes NaN of what follows

    def mean(values: Tensor) -> Tensor:
        return torch.where(known, values, 0.0).sum(dim=axes, keepdim=True) / n_known

    def each(values: Tensor) -> Tensor:
        return values.flatten(1 if stacked else 0).squeeze(-1)

    middle, lowest = mean(cost), costs.amin(dim=-1)
    excess, deviation = mean(cost - lowest), mean((cost - middle).abs())
    negative = known & (lowest < -_ROUNDING * mean(cost.abs()))
    return CostScale(
        each(middle),
        each(torch.maximum(excess, _SMALLEST_SPREAD * deviation)),
        ~negative.flatten(1 if stacked else 0).any(dim=-1),
    )
