"""Automatic annealing: the hold, and the start and speed of the cooling, are set from measured costs.

A training run has up to four phases, whose lengths depend on the model:

1. *Probe*: for the first twentieth of the training the temperature is far above the first critical temperature,
   2 lambda_max of the conditional covariance (Equation (14)), and all hypotheses learn the same prediction. If this
   does not reduce the distortion by a factor of e, the spread of the targets is not due to an untrained model. The
   model is then reset to its initial weights and cools at once.
2. *Hold*: otherwise the temperature is held as long as doubling the time still lowers the distortion enough.
3. *Cool*: from half of the distortion per coordinate, the paper's 0.5 for standardized targets, to a 500th of it,
   exponentially. Cooling begins below the critical temperature, so that different hypotheses stay apart.
   Before that, each hypothesis is set to the mean of all plus a random constant: equal hypotheses would never separate,
   and if their differences depended on the input, hypotheses would swap modes between two inputs, where the network
   would have to jump. Weight decay keeps the network smooth until the modes are found.
4. *Tail*: hard winner-takes-all, while the learning rate falls to 0 along a cosine. In its first half, redundant
   hypotheses are moved to where one hypothesis covers two modes, see `torchmcl.annealing.moves`.

All settings are relative to the costs and the length of the training. For a cost without a natural zero (decibels) the
gain is undefined; cooling begins with the first batch, from the temperature at which a softmin begins to distinguish
the untrained hypotheses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing.records import CostScale
from torchmcl.checks import check_interval, check_non_negative, check_positive

__all__ = [
    "POLICY_CONSTANTS",
    "AutoAnnealing",
    "AutoDecision",
    "AutoValues",
    "PolicyConstants",
]


class PolicyConstants(NamedTuple):
    """Constants of the policy that need no tuning.

    Attributes:
        hold: Temperature of the hold, relative to the mean cost.
        begin: Temperature at which cooling begins, relative to the mean cost of a coordinate.
        begin_spread: Like `begin`, for costs without a natural zero, relative to their spread.
        probe: Fraction of the training after which the gain of the hold is evaluated, at the end of an epoch. If it is
            less than half an epoch, there is no hold.
        probe_gain: Smallest decrease of the logarithm of the distortion up to `probe` for which the hold continues.
        shortest: Minimum length of a hold, as a fraction of the training, because some models start slowly.
        longest: Maximum length of a hold, as a fraction of the training, because cooling and tail need time too.
        fan: Size of the constants that separate hypotheses, relative to the initial biases of the head and to the
            square root of the remaining distortion.
        stiffness: Weight decay while cooling, relative to the remaining fraction of the distortion: the less a hold has
            learned, the less the decay can undo.
        least_cooling: Minimum number of epochs of the cooling.
        settling: Fraction of the time after the hold at which the learning rate begins to fall.
        n_moves: Number of times in a training run that hypotheses may be moved.
        last_move: Fraction of the time after the hold at which the last hypotheses may be moved.
        gap: Excess of the logarithm of the held-out distortion over that of the training distortion at which weight
            decay begins, and further excess at which it reaches its full strength.
        warm_up: Fraction of the training without weight decay, because the error of an untrained model looks like
            noise.
        strongest: Largest weight decay; far above it, networks trained on few rows collapse.
    """

    hold: float = 4.0
    begin: float = 0.5
    begin_spread: float = 2.1
    probe: float = 0.05
    probe_gain: float = 1.0
    shortest: float = 0.1
    longest: float = 0.75
    fan: float = 1.4
    stiffness: float = 0.1
    least_cooling: float = 2.0
    settling: float = 0.5
    n_moves: int = 12
    last_move: float = 0.7
    gap: tuple[float, float] = (0.2, 0.4)
    warm_up: float = 0.1
    strongest: float = 3.0


POLICY_CONSTANTS = PolicyConstants()
_TINY = torch.finfo(torch.float32).tiny
# Exponent of the elapsed time by which the slow mean of the distortion discounts the past.
_MEMORY = 2


class AutoValues(NamedTuple):
    """Settings of a step: the temperature (0 is hard), a factor on the learning rate, and the weight decay."""

    temperature: Tensor
    rate: Tensor
    weight_decay: Tensor


class AutoDecision(NamedTuple):
    """Changes to the models requested by an update, one entry per model.

    Attributes:
        rewinds: Models to reset to their initial weights and to fresh optimizer moments, [models].
        separations: Factors of the random constants that separate the hypotheses of a model, [models]. The constants
            are drawn like initial biases; a factor of 0 leaves the model unchanged.
        moves: Models whose hypotheses are moved where that lowers the distortion, [models].
    """

    rewinds: Tensor
    separations: Tensor
    moves: Tensor


@dataclass(frozen=True)
class AutoAnnealing:
    """Set the temperature, the learning rate and the moves of hypotheses from costs measured during training.

    Pass it as the rule to `RuleScheduler` (in your own loop), `Fleet`, `MCLModule` or the estimators. This is the
    policy; the state of a training run is a dictionary of tensors, one entry per model.

    No value is read on the host, so it can run inside a CUDA graph.

    Args:
        hold_gain: Decrease of the logarithm of the distortion per doubling of time below which the hold ends. Larger
            values give a shorter hold.
        cooling: Fraction of the time after the hold that the cooling takes; the rest is the tail.
        end: Temperature at which hard winner-takes-all begins, relative to the mean cost of a coordinate.
        noise_decay: Weight decay per unit of noise per row: `noise_decay * u * (1 - u) / rows`, at most 3, where u is
            the noise relative to the first distortion. It is used where held-out rows show that the network overfits. 0
            disables it.
        full_rate_steps: Number of optimizer steps above which the learning rate is divided by the square root of the
            excess ratio.

    Example:
        >>> policy = AutoAnnealing()
        >>> costs = CostScale(*torch.tensor([[1.0], [0.8], [0.2]]), has_zero=torch.tensor([True]))  # before training
        >>> state = policy.init(costs, n_epochs=100)
        >>> policy.value(state, epoch=0, n_epochs=100).temperature
        tensor([4.])
        >>> decision = policy.update(state, costs, epoch=5, n_epochs=100)  # no gain: rewind and cool
        >>> decision.rewinds, [round(float(policy.value(state, t, 100).temperature), 3) for t in (5, 20, 33, 34)]
        (tensor([True]), [0.5, 0.027, 0.002, 0.0])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Proposition 4 (ii),
        Equation (14), for the critical temperature.
    """

    hold_gain: float | Tensor = 0.05
    cooling: float | Tensor = 0.3
    end: float | Tensor = 2e-3
    noise_decay: float | Tensor = 5000.0
    full_rate_steps: float | Tensor = 2000.0

    def __post_init__(self) -> None:
        """Check the fields; tensors come from `stacked`, whose policies have been checked."""
        numbers = {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}
        for name, value in numbers.items():
            if name == "cooling":
                check_interval("AutoAnnealing", name, value, "(0, 1)")
            else:
                (check_non_negative if name == "noise_decay" else check_positive)("AutoAnnealing", name, value)

    @classmethod
    def stacked(cls, policies: Sequence["AutoAnnealing"], device: torch.device | str = "cpu") -> "AutoAnnealing":
        """Combine the policies of several models into one, with one entry per model in each field."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.tensor([float(getattr(p, name)) for p in policies], device=device) for name in names})

    def init(
        self, measured: CostScale, n_epochs: float, *, n_coordinates: int = 1, may_hold: bool = True
    ) -> dict[str, Tensor]:
        """Return the state before training.

        Args:
            measured: Costs of the untrained models, one entry per model, in any shape.
            n_epochs: Number of epochs of the whole training.
            n_coordinates: Number of coordinates of a hypothesis.
            may_hold: Whether hypotheses can be separated after a hold.
        """
        scale = measured.scale.float()  # NaN, which means no hold, where no cost is finite
        holds = measured.has_zero & (scale > 0)
        if not may_hold or POLICY_CONSTANTS.probe * n_epochs < 0.5:
            holds = torch.zeros_like(holds)
        start, unit = _temperatures(scale, measured.has_zero, n_coordinates)
        zeros = torch.zeros_like(scale)
        return {
            **{name: scale.clone() for name in ("first", "scale", "lowest", "best")},
            "slow": scale.clamp_min(_TINY).log(),
            "begun": torch.where(holds, -1.0, zeros),
            "start": start,
            "unit": unit,
            "seen": zeros.clone(),  # epochs before the last measurement
            "overfit": zeros.clone(),
            "has_zero": measured.has_zero.float(),
        }

    def first_separations(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the initial `AutoDecision.separations`, for models that cool from the start."""
        cools = (state["begun"] == 0) & (state["has_zero"] > 0) & (state["first"] > 0)
        return torch.where(cools, POLICY_CONSTANTS.fan, torch.zeros_like(state["begun"]))

    def update(
        self,
        state: Mapping[str, Tensor],
        measured: CostScale,
        epoch: float | Tensor,
        n_epochs: float,
        *,
        n_coordinates: int = 1,
        trained: CostScale | None = None,
    ) -> AutoDecision:
        """Update the state with the costs after `epoch` epochs: continue the hold, or begin to cool.

        Args:
            state: State returned by `init`.
            measured: Current costs.
            epoch: Number of epochs that have ended.
            n_epochs: Number of epochs of the whole training.
            n_coordinates: Number of coordinates of a hypothesis.
            trained: Costs of training rows, if `measured` are costs of held-out rows.
        """
        self.release(state, measured, epoch)
        moves = self.moves(state, epoch, n_epochs)
        numbers, begun = POLICY_CONSTANTS, state["begun"]
        holds, known = begun < 0, measured.mean.isfinite()
        scale = torch.where(holds & known, measured.mean.float(), state["scale"])
        lowest = torch.minimum(state["lowest"], scale)
        # `slow` is the mean of the logarithm over about the last half of the time before the last measurement. If the
        # distortion falls as t^-p, `slow` exceeds the logarithm at the last measurement by p / 2, and the current
        # logarithm by p / 2 + p log(t / t_last); doubling the time gains p log(2). The lowest distortion so far is used
        # because single measurements are noisy.
        level = lowest.clamp_min(_TINY).log()
        earlier = state["seen"] / epoch
        doubling = math.log(2) * (state["slow"] - level) / (1 / _MEMORY - earlier.log())
        slow = level + earlier**_MEMORY * (state["slow"] - level)
        probe = numbers.probe * n_epochs
        gained = (state["first"] / scale.clamp_min(_TINY)).log()
        rewinds = holds & (state["seen"] < probe) & (epoch >= probe) & (gained < numbers.probe_gain)
        # At least one epoch remains for the tail.
        latest = torch.as_tensor(n_epochs - 1 - 1 / (1 - self.cooling)).clamp(max=numbers.longest * n_epochs)
        ends = (epoch >= latest) | ((doubling < self.hold_gain) & (epoch >= numbers.shortest * n_epochs))
        ends = holds & ends & ~rewinds
        begins = rewinds | ends
        start, unit = _temperatures(lowest, torch.ones_like(begins), n_coordinates)
        begun = torch.where(begins, epoch, begun)
        best = torch.where(known, measured.best.float(), state["best"])
        overfit = state["overfit"]
        if trained is not None:
            gap = torch.where(holds, measured.mean / trained.mean, measured.best / trained.best).log()
            overfit = torch.maximum(overfit, ((gap - numbers.gap[0]) / numbers.gap[1]).clamp(0, 1).nan_to_num(0.0))
        new = {
            "scale": scale,
            "lowest": lowest,
            "slow": slow,
            "best": best,
            "overfit": overfit,
            "begun": begun,
            "start": torch.where(begins, start, state["start"]),
            "unit": torch.where(begins, unit, state["unit"]),
            "seen": torch.zeros_like(begun) + epoch,
        }
        for name, value in new.items():
            state[name].copy_(value)
        fan = numbers.fan * (scale / state["first"].clamp_min(_TINY)).sqrt().clamp(max=1)
        return AutoDecision(rewinds, torch.where(begins, fan, 0.0), moves)

    def release(self, state: Mapping[str, Tensor], measured: CostScale, epoch: float | Tensor) -> None:
        """Start cooling models with negative costs, which have no natural zero, at a temperature set by their spread.

        Changes the state.
        """
        released = (state["has_zero"] > 0) & measured.mean.isfinite() & ~measured.has_zero
        start, unit = _temperatures(measured.spread.float(), ~released, 1)
        new = {
            "start": start,
            "unit": unit,
            "begun": torch.zeros_like(start) + epoch,
            "has_zero": torch.zeros_like(start),
        }
        for name, value in new.items():
            state[name].copy_(torch.where(released, value, state[name]))

    def moves(self, state: Mapping[str, Tensor], epoch: float | Tensor, n_epochs: float) -> Tensor:
        """Return whether hypotheses may be moved after `epoch` epochs: a few times after cooling, until `last_move`."""
        after = self._after_hold(state, epoch, n_epochs)
        every = max(1.0, n_epochs / POLICY_CONSTANTS.n_moves)
        is_time = torch.floor(torch.zeros_like(after) + epoch / every) > torch.floor(state["seen"] / every)
        may = (state["begun"] >= 0) & (state["has_zero"] > 0) & is_time
        return may & (after >= self._cooling(state, n_epochs)) & (after < POLICY_CONSTANTS.last_move)

    def value(
        self,
        state: Mapping[str, Tensor],
        epoch: float | Tensor,
        n_epochs: float,
        *,
        n_rows: float | Tensor | None = None,
        n_steps: float | Tensor | None = None,
        n_hypotheses: int = 1,
        n_coordinates: int = 1,
    ) -> AutoValues:
        """Return the settings of an epoch.

        Args:
            state: State returned by `init`, changed by `update`.
            epoch: Number of epochs since the beginning; may be fractional.
            n_epochs: Number of epochs of the whole training.
            n_rows: Number of training rows, for the weight decay against noise; None for no such decay.
            n_steps: Number of optimizer steps in the whole training, for the learning rate; None leaves the rate
                unchanged.
            n_hypotheses: Number of hypotheses of the model, for the weight decay.
            n_coordinates: Number of coordinates of a hypothesis, for the weight decay.
        """
        numbers, holds = POLICY_CONSTANTS, state["begun"] < 0
        after = self._after_hold(state, epoch, n_epochs)
        cooled = after / self._cooling(state, n_epochs)
        ratio = self.end * state["unit"] / state["start"].clamp_min(_TINY)
        falling = state["start"] * ratio ** cooled.clamp(max=1)
        temperature = torch.where(holds, numbers.hold * state["scale"], torch.where(cooled < 1, falling, 0.0))
        settled = ((after - numbers.settling) * (math.pi / (1 - numbers.settling))).clamp(min=0)
        rate = torch.where(holds, 1.0, (1 + torch.cos(settled)) / 2)
        if n_steps is not None:
            ratio = torch.as_tensor(self.full_rate_steps / n_steps, dtype=rate.dtype, device=rate.device)
            rate = rate * ratio.clamp(max=1).sqrt()
        first = state["first"].clamp_min(_TINY)
        left = (state["lowest"] / first).clamp(max=1)
        was_judged = (state["begun"] > 0) & (state["has_zero"] > 0)  # without a probe, the model may be untrained
        stiff = torch.where(was_judged & (temperature > 0), numbers.stiffness * left, 0.0)
        if n_rows is None:
            return AutoValues(temperature, rate, stiff + torch.zeros_like(rate))
        # The distance between modes is not noise: n hypotheses divide the distortion of noise by n^(2 / coordinates)
        # (times 1 to 2.7) and the distortion of modes by more. The lowest distortion so far is used, because weight
        # decay that harms the model must not increase itself.
        many = n_hypotheses ** (2 / n_coordinates) * state["best"]
        noise = torch.where(holds, state["lowest"], torch.minimum(state["lowest"], many)) / first
        decay = state["overfit"] * self.noise_decay * noise * (1 - noise) / n_rows  # 0 if nothing is learned
        warm = torch.as_tensor(epoch, device=decay.device) >= numbers.warm_up * n_epochs
        decay = torch.where(warm, decay, 0.0).clamp(max=numbers.strongest)
        return AutoValues(temperature, rate, torch.maximum(decay, stiff))

    def _cooling(self, state: Mapping[str, Tensor], n_epochs: float) -> Tensor:
        """Return the fraction of the time after the hold that the cooling takes."""
        least = POLICY_CONSTANTS.least_cooling / (n_epochs - state["begun"]).clamp_min(1)
        return torch.clamp(least.clamp(max=0.5), min=self.cooling)

    def _after_hold(self, state: Mapping[str, Tensor], epoch: float | Tensor, n_epochs: float) -> Tensor:
        """Return the fraction of the time after the hold that has passed, in [0, 1]."""
        begun = state["begun"]
        return ((epoch - begun) / (n_epochs - begun).clamp_min(1)).clamp(0, 1)


def _temperatures(scale: Tensor, has_zero: Tensor, n_coordinates: int) -> tuple[Tensor, Tensor]:
    """Return the temperature at which cooling begins, and the unit of the final temperature."""
    unit = torch.where(has_zero, scale / n_coordinates, scale)
    return torch.where(has_zero, POLICY_CONSTANTS.begin, POLICY_CONSTANTS.begin_spread) * unit, unit
