"""Automatic annealing: the policy, and the state of a training run under it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing.records import CostScale
from torchmcl.checks import check_choice, check_interval, check_non_negative, check_positive

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
        probe: Fraction of the training after which the gain of the hold is evaluated, at the end of an epoch: the hold
            continues if it has lowered the distortion by a factor of e, at least until this time has doubled. Until
            then there is no weight decay either, because the error of an untrained model looks like noise. If `probe`
            is less than half an epoch, there is no hold.
        longest: Maximum length of a hold, as a fraction of the training, because cooling and tail need time too.
        settling: Fraction of the time after the hold at which the learning rate begins to fall, and measurements and
            moves end.
        n_checks: Number of intervals of the training, after each of which moves are planned and fleets measure costs,
            but at most once per epoch. Loops measure costs in every epoch.
        gap: Difference of the logarithms of the held-out and the training distortion at and above which the weight
            decay has its full strength; below, it is proportional to the square of the difference.
        strongest: Largest weight decay; far above it, networks trained on few rows collapse.
        stiffness: Smallest weight decay while the temperature falls after a hold or a rewind, relative to the fraction
            of the first distortion that the hold left: the less a hold has learned, the less there is to undo.
    """

    probe: float = 0.05
    longest: float = 0.75
    settling: float = 0.5
    n_checks: int = 50
    gap: float = 0.6
    strongest: float = 3.0
    stiffness: float = 0.1


POLICY_CONSTANTS = PolicyConstants()
_TINY = torch.finfo(torch.float32).tiny
# Temperature of uniform weights. It is finite, for kernels and records, and so is its product with an entropy.
UNIFORM = torch.finfo(torch.float32).max / 1024


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
    """Annealing whose temperatures, learning rate and moves of hypotheses depend on costs measured during training.

    Pass it as the rule to `RuleScheduler` (in your own loop), `Fleet`, `MCLModule` or the estimators. A training run
    has these phases, which `phase` names:

    1. *Hold.* The weights are uniform, the limit of Equation (5) for a high temperature: all hypotheses learn the same
       prediction, the conditional mean. If it does not lower the distortion by a factor of e in the first twentieth of
       the training, the spread of the targets is not due to an untrained model: the model is *rewound* to its initial
       weights, and the next phase begins. Otherwise the hold lasts as long as a doubling of the time pays off.
    2. *Separation.* Each hypothesis is set to the mean of all plus a random constant. Equal hypotheses would never
       separate. If their differences depended on the input, hypotheses would swap modes between two inputs, where the
       network would have to jump.
    3. *Cooling.* The temperature falls exponentially, from half of the distortion per coordinate, which is below the
       local critical temperature, Equation (14), so that the hypotheses stay apart.
    4. *Moves.* Under winner-takes-all, hypotheses that win little are moved to where one hypothesis covers two modes,
       see `torchmcl.annealing.moves`.
    5. *Settling.* The learning rate falls to 0 along a cosine.

    Where held-out rows show that the network overfits, weight decay is raised to match the noise per row. Fleets,
    estimators and Lightning measure their validation rows; in a loop, pass them to `RuleScheduler.observe`.

    Each part can be switched off, for example for a schedule of learning rates of your own. With neither hold nor
    cooling, the rule is winner-takes-all with moves.

    A cost without a natural zero, such as decibels, has no scale of its own: the unit of its temperatures is the mean
    excess of the hypotheses over the best one of their sample. Cooling begins with the first batch, and no hypothesis
    is moved. Choose `begin` for such a cost.

    All settings are relative to the costs and the length of the training. This is the policy; the state of a training
    run is a dictionary of tensors, one entry per model. No value is read on the host, except by `phase`, so that it can
    run inside a CUDA graph.

    Args:
        hold_gain: Decrease of the logarithm of the distortion per doubling of time below which the hold ends. Larger
            values give a shorter hold.
        cooling: Fraction of the time after the hold that the cooling takes; 0 for winner-takes-all at once.
        end: Temperature at which hard winner-takes-all begins, relative to the mean cost of a coordinate.
        noise_decay: Weight decay per unit of noise per row: `noise_decay * g * u * (1 - u) / rows`, at most 3, where u
            is the noise relative to the first distortion, and g grows from 0 to 1 with the largest overfitting that
            held-out rows have shown. 0 disables it, and the small weight decay while the temperature falls.
        full_rate_steps: Number of optimizer steps above which the learning rate is multiplied by the square root of
            `full_rate_steps / n_steps`.
        begin: Temperature at which cooling begins, relative to the mean cost of a coordinate.
        hold: Whether there may be a hold. Without a hold, hypotheses are not separated.
        rate: Whether the learning rate is set.
        moves: Whether hypotheses are moved.

    Example:
        >>> policy = AutoAnnealing()
        >>> costs = CostScale(*torch.tensor([[1.0], [0.8], [0.2]]), has_zero=torch.tensor([True]))  # before training
        >>> state = policy.init(costs, n_epochs=100)
        >>> policy.phase(state, epoch=0, n_epochs=100)
        'holding: its gain is measured after 5 % of the training'
        >>> decision = policy.update(state, costs, epoch=5, n_epochs=100)  # no gain: rewind and cool
        >>> decision.rewinds, [round(float(policy.value(state, t, 100).temperature), 3) for t in (5, 20, 33, 34)]
        (tensor([True]), [0.5, 0.027, 0.002, 0.0])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equations (5) and (14).
    """

    hold_gain: float | Tensor = 0.05
    cooling: float | Tensor = 0.3
    end: float | Tensor = 2e-3
    noise_decay: float | Tensor = 5000.0
    full_rate_steps: float | Tensor = 2000.0
    begin: float | Tensor = 0.5
    hold: bool | Tensor = True
    rate: bool | Tensor = True
    moves: bool | Tensor = True

    def __post_init__(self) -> None:
        """Check the fields; tensors come from `stacked`, whose policies have been checked."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                continue
            if name in ("hold", "rate", "moves"):
                check_choice("AutoAnnealing", name, str(value), ("True", "False"))
            elif name == "cooling":
                check_interval("AutoAnnealing", name, value, "[0, 1)")
            else:
                (check_non_negative if name == "noise_decay" else check_positive)("AutoAnnealing", name, value)

    @classmethod
    def stacked(cls, policies: Sequence["AutoAnnealing"], device: torch.device | str = "cpu") -> "AutoAnnealing":
        """Combine the policies of several models into one, with one entry per model in each field."""
        columns = {field.name: [getattr(policy, field.name) for policy in policies] for field in fields(cls)}
        dtypes = {name: torch.bool if isinstance(column[0], bool) else None for name, column in columns.items()}
        return cls(**{n: torch.tensor(c, dtype=dtypes[n], device=device) for n, c in columns.items()})

    def init(
        self,
        measured: CostScale,
        n_epochs: float,
        *,
        n_hypotheses: int = 1,
        n_coordinates: int = 1,
        n_rows: float | Tensor = 0.0,
        n_steps: float | Tensor = 0.0,
    ) -> dict[str, Tensor]:
        """Return the state before training.

        Args:
            measured: Costs of the untrained models, one entry per model, in any shape.
            n_epochs: Number of epochs of the whole training.
            n_hypotheses: Number of hypotheses of a model.
            n_coordinates: Number of coordinates of a hypothesis.
            n_rows: Number of training targets, for the weight decay; it may be added to the state later.
            n_steps: Number of optimizer steps in the whole training, for the learning rate; 0 if that does not matter.
        """
        scale = measured.scale.float()  # NaN, which means no hold, where no cost is finite
        holds = measured.has_zero & (scale > 0) & self.hold & (POLICY_CONSTANTS.probe * n_epochs >= 0.5)
        zeros = torch.zeros_like(scale)
        sizes = {"n_hypotheses": n_hypotheses, "n_coordinates": n_coordinates, "n_rows": n_rows, "n_steps": n_steps}
        return {
            **{name: scale.clone() for name in ("first", "lowest", "best")},
            "slow": scale.clamp_min(_TINY).log(),
            "gain": zeros.clone(),  # of a doubling of the time
            "begun": torch.where(holds, -1.0, zeros),
            "unit": torch.where(measured.has_zero, scale / n_coordinates, scale),
            "seen": zeros.clone(),  # epochs before the last measurement
            "overfit": zeros.clone(),
            "has_zero": measured.has_zero.float(),
            **{name: zeros + value for name, value in sizes.items()},
        }

    def update(
        self,
        state: Mapping[str, Tensor],
        measured: CostScale,
        epoch: float | Tensor,
        n_epochs: float,
        trained: CostScale | None = None,
    ) -> AutoDecision:
        """Update the state with the costs after `epoch` epochs: continue the hold, or begin to cool.

        Args:
            state: State returned by `init`.
            measured: Current costs.
            epoch: Number of epochs that have ended.
            n_epochs: Number of epochs of the whole training.
            trained: Costs of training rows, if `measured` are costs of held-out rows.
        """
        self.release(state, measured, epoch)
        moves = self.may_move(state, epoch, n_epochs)
        numbers, holds, known = POLICY_CONSTANTS, state["begun"] < 0, measured.mean.isfinite()
        # The lowest distortion so far is used because single measurements are noisy.
        cost = torch.where(holds & known, measured.mean.float(), state["lowest"])
        lowest = torch.minimum(state["lowest"], cost)
        # `slow` is the mean of the logarithm over the time before the last measurement. If the distortion falls as
        # t^-p, `slow` exceeds the logarithm at the last measurement by p, and the current logarithm by
        # p + p log(t / t_last); doubling the time gains p log(2).
        level = lowest.clamp_min(_TINY).log()
        earlier = state["seen"] / epoch
        gain = math.log(2) * (state["slow"] - level) / (1 - earlier.log())
        slow = level + earlier * (state["slow"] - level)
        probe = numbers.probe * n_epochs
        gained = state["first"].clamp_min(_TINY).log() - cost.clamp_min(_TINY).log()
        rewinds = holds & (state["seen"] < probe) & (epoch >= probe) & (gained < 1)
        # At least one epoch remains for the tail.
        latest = torch.as_tensor(n_epochs - 1 - 1 / (1 - self.cooling)).clamp(max=numbers.longest * n_epochs)
        pays = (gain >= self.hold_gain) | (epoch < 2 * probe)
        ends = holds & ~rewinds & (~pays | (epoch >= latest))
        begins = rewinds | ends
        # Once the rate falls, no measurement changes a model, so that a fleet need not measure it with the others.
        is_unsettled = holds | (self._after_hold(state, epoch - 1, n_epochs) < numbers.settling)
        best = torch.where(known & is_unsettled, measured.best.float(), state["best"])
        overfit = state["overfit"]
        if trained is not None:
            gap = torch.where(holds, measured.mean / trained.mean, measured.best / trained.best).log()
            gap = torch.where(is_unsettled, gap / numbers.gap, 0.0)
            overfit = torch.maximum(overfit, gap.clamp(0, 1).nan_to_num(0.0).square())
        separations = torch.where(begins, (cost / state["first"].clamp_min(_TINY)).sqrt().clamp(max=1), 0.0)
        new = {
            "lowest": lowest,
            "slow": slow,
            "gain": gain,
            "best": best,
            "overfit": overfit,
            "begun": torch.where(begins, epoch, state["begun"]),
            "unit": torch.where(begins, lowest / state["n_coordinates"], state["unit"]),
            "seen": torch.zeros_like(lowest) + epoch,
        }
        for name, value in new.items():
            state[name].copy_(value)
        return AutoDecision(rewinds, separations, moves)

    def release(self, state: Mapping[str, Tensor], measured: CostScale, epoch: float | Tensor) -> None:
        """Start cooling models with negative costs, which have no natural zero, at a temperature set by their spread.

        Changes the state.
        """
        released = (state["has_zero"] > 0) & measured.mean.isfinite() & ~measured.has_zero
        zeros = torch.zeros_like(state["unit"])
        for name, value in {"unit": measured.spread.float(), "begun": zeros + epoch, "has_zero": zeros}.items():
            state[name].copy_(torch.where(released, value, state[name]))

    def may_move(self, state: Mapping[str, Tensor], epoch: float | Tensor, n_epochs: float) -> Tensor:
        """Return whether hypotheses may be moved after `epoch` epochs: after cooling, before the rate falls."""
        after = self._after_hold(state, epoch, n_epochs)
        every = max(1.0, n_epochs / POLICY_CONSTANTS.n_checks)
        is_time = torch.floor(torch.zeros_like(after) + epoch / every) > torch.floor(state["seen"] / every)
        may = (state["begun"] >= 0) & (state["has_zero"] > 0) & is_time & self.moves
        start_of_epoch = self._after_hold(state, epoch - 1, n_epochs)  # of the epoch that has ended
        return may & (after >= self.cooling) & (start_of_epoch < POLICY_CONSTANTS.settling)

    def value(self, state: Mapping[str, Tensor], epoch: float | Tensor, n_epochs: float) -> AutoValues:
        """Return the settings of an epoch.

        Args:
            state: State returned by `init`, changed by `update`.
            epoch: Number of epochs since the beginning; may be fractional.
            n_epochs: Number of epochs of the whole training.
        """
        numbers, holds = POLICY_CONSTANTS, state["begun"] < 0
        after = self._after_hold(state, epoch, n_epochs)
        cooled = after / torch.as_tensor(self.cooling).clamp_min(_TINY)
        falling = self.begin * state["unit"] * (self.end / self.begin) ** cooled.clamp(max=1)
        temperature = torch.where(holds, UNIFORM, torch.where(after < self.cooling, falling, 0.0))
        settled = ((after - numbers.settling) * (math.pi / (1 - numbers.settling))).clamp(min=0)
        slower = (self.full_rate_steps / state["n_steps"].clamp_min(1)).clamp(max=1).sqrt()
        rate = torch.where(holds, 1.0, (1 + torch.cos(settled)) / 2) * slower
        rate = torch.where(torch.zeros_like(rate, dtype=torch.bool) | self.rate, rate, 1.0)  # without a transfer
        # The distance between modes is not noise: n hypotheses divide the distortion of noise by n^(2 / coordinates)
        # (times 1 to 2.7) and the distortion of modes by more. The lowest distortion so far is used, because weight
        # decay that harms the model must not increase itself.
        many = state["n_hypotheses"] ** (2 / state["n_coordinates"]) * state["best"]
        noise = torch.where(holds, state["lowest"], torch.minimum(state["lowest"], many))
        first = state["first"].clamp_min(_TINY)
        noise = noise / first
        per_row = noise * (1 - noise) / state["n_rows"].clamp_min(1)  # 0 if nothing is learned
        decay = state["overfit"] * self.noise_decay * per_row
        is_trained = torch.zeros_like(decay) + epoch >= 2 * numbers.probe * n_epochs
        decay = torch.where(is_trained, decay, 0.0).clamp(max=numbers.strongest)
        # Without a hold or a rewind, the model may still be untrained, and its distortion says nothing about noise.
        cools = (state["begun"] > 0) & (state["has_zero"] > 0) & (temperature > 0) & (self.noise_decay > 0)
        stiff = torch.where(cools, numbers.stiffness * (state["lowest"] / first).clamp(max=1), 0.0)
        return AutoValues(temperature, rate, torch.maximum(decay, stiff))

    def phase(self, state: Mapping[str, Tensor], epoch: float, n_epochs: float, model: int = 0) -> str:
        """Return in words what happens in an epoch to one of the models.

        Args:
            state: State returned by `init`, changed by `update`.
            epoch: Number of epochs since the beginning; may be fractional.
            n_epochs: Number of epochs of the whole training.
            model: Index of the model.
        """
        settings = self.value(state, epoch, n_epochs)
        temperature, rate = (float(value.expand_as(state["seen"]).reshape(-1)[model]) for value in settings[:2])
        first, begun, gain = (float(state[name].reshape(-1)[model]) for name in ("first", "begun", "gain"))
        if math.isnan(first):
            return "not begun: no cost is known"
        if begun < 0 and epoch < POLICY_CONSTANTS.probe * n_epochs:
            return f"holding: its gain is measured after {100 * POLICY_CONSTANTS.probe:.0f} % of the training"
        if begun < 0:
            return f"holding: a doubling of the time would gain {-100 * math.expm1(-gain):.0f} %"
        if temperature > 0:
            return f"cooling: the temperature is {temperature:.2g}"
        sets_rate = bool(torch.as_tensor(self.rate).expand_as(state["seen"]).reshape(-1)[model])
        return "winner-takes-all" + (f": the learning rate is at {100 * rate:.0f} %" if sets_rate else "")

    def _after_hold(self, state: Mapping[str, Tensor], epoch: float | Tensor, n_epochs: float) -> Tensor:
        """Return the fraction of the time after the hold that has passed, in [0, 1]."""
        begun = state["begun"]
        return ((epoch - begun) / (n_epochs - begun).clamp_min(1)).clamp(0, 1)
