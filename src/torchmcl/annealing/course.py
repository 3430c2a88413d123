"""How a rule moves through a training: not at all, with the step, or as `AutoAnnealing` decides from its batches."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.annealing.auto import AutoAnnealing, AutoValues, CostScale, cost_scale
from torchmcl.assignment import AnnealedWTA, AssignmentRule
from torchmcl.types import Matching

__all__ = ["AutoCourse", "RuleLike", "check_rule_like", "described_rule", "rule_at"]

RuleLike = AssignmentRule | Callable[[float], AssignmentRule] | AutoAnnealing
"""What is given as `rule` everywhere: an assignment rule, a function step -> rule, or `AutoAnnealing`."""

_HOTTEST = torch.finfo(torch.float32).max
# The learning rate and weight decay that a group of an optimizer began with; the first name is that of torch.
_INITIAL = {"lr": "initial_lr", "weight_decay": "initial_weight_decay"}


def check_rule_like(owner: str, rule: Any) -> None:
    """Check that `rule` is a rule, a function step -> rule or `AutoAnnealing`."""
    if isinstance(rule, AssignmentRule | AutoAnnealing) or (callable(rule) and not isinstance(rule, type)):
        return
    kinds = "be an assignment rule, a function step -> rule or AutoAnnealing()"
    advice = "For example annealed(AnnealedWTA, temperature=Linear(1.0, 0.0, 100))."
    raise TypeError(bad_value(owner, "rule", kinds, repr(rule), advice))


def rule_at(rule: AssignmentRule | Callable[[float], AssignmentRule], step: float) -> AssignmentRule:
    """Return the rule of a step."""
    return rule if isinstance(rule, AssignmentRule) else rule(step)


def described_rule(rule: RuleLike, step: float) -> dict[str, Any]:
    """Return kind and fields of the rule of a step, or of the policy, as plain values: to save and compare them.

    Example:
        >>> described_rule(lambda step: AnnealedWTA(1.0 / (1 + step)), step=1)
        {'kind': 'AnnealedWTA', 'temperature': 0.5}
    """
    value = rule if isinstance(rule, AutoAnnealing) else rule_at(rule, step)
    entries = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}
    plain = {name: entry.tolist() if isinstance(entry, Tensor) else entry for name, entry in entries.items()}
    return {"kind": type(value).__name__, **plain}


class AutoCourse:
    """The state of `AutoAnnealing` in one training, which may run in several processes.

    It stays on the device of the costs; only `set_rates` reads values on the host.

    Args:
        policy: what decides.
    """

    def __init__(self, policy: AutoAnnealing) -> None:
        self.policy = policy
        self.state = policy.init(torch.tensor(torch.nan))
        # Over the batches of this epoch, in all processes: the sums of the mean and of the spread of their costs, the
        # number of batches, and the number of those with costs below 0.
        self.sums = torch.zeros(4)
        self.has_observed = False

    def observe(self, matching: Matching, epoch: float) -> None:
        """Take in the costs of a batch; every process must call it equally often.

        Args:
            matching: of a training step.
            epoch: in the first one a batch may already show that there is nothing to hold for.
        """
        costs = cost_scale(matching)
        known = ~costs.mean.isnan()  # a batch may have no real target, or no finite cost
        values = (torch.where(known, costs.mean, 0.0), torch.where(known, costs.spread, 0.0), known, ~costs.has_zero)
        batch = torch.stack([value.float() for value in values])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(batch)
        self.to(batch.device)
        self.sums += batch
        self.has_observed = True
        if epoch < 1:
            self.policy.release(self.state, self._measured(), 0.0)

    def end_epoch(self, epoch: float, n_epochs: float) -> None:
        """Decide, from the batches since the last call, whether to begin cooling.

        Args:
            epoch: how many have ended.
            n_epochs: of the whole training.
        """
        measured = self._measured()
        self.policy.release(self.state, measured, epoch)
        self.policy.update(self.state, measured.scale, epoch, n_epochs)
        self.sums.zero_()

    def rule(self, epoch: float, n_epochs: float) -> AnnealedWTA:
        """Return the rule; infinitely warm before anything is known."""
        if not self.has_observed:
            return AnnealedWTA(_HOTTEST)
        temperature = self.values(epoch, n_epochs).temperature
        return AnnealedWTA(torch.where(temperature.isnan(), _HOTTEST, temperature))

    def values(
        self, epoch: float, n_epochs: float, n_rows: float | None = None, n_steps: float | None = None
    ) -> AutoValues:
        """Return temperature, factor on the learning rate and weight decay, see `AutoAnnealing.value`."""
        return self.policy.value(self.state, epoch, n_epochs, 1 if n_rows is None else n_rows, n_steps)

    def set_rates(
        self,
        optimizer: torch.optim.Optimizer,
        epoch: float,
        n_epochs: float,
        *,
        n_rows: float | None = None,
        n_steps: float | None = None,
    ) -> None:
        """Set the learning rate of every group of an optimizer, relative to the one it began with.

        Args:
            optimizer: any of `torch.optim`.
            epoch: that follows.
            n_epochs: of the whole training.
            n_rows: of the training data. Where given, the weight decay is set too: at least the one that a group began
                with. Groups without any keep none, if others have some.
            n_steps: of the optimizer in the whole training. Where given, a long training has a lower rate.
        """
        values = self.values(epoch, n_epochs, n_rows, n_steps)
        rate, weight_decay = torch.stack([values.rate, values.weight_decay.nan_to_num(0.0)]).tolist()  # one transfer
        for group in optimizer.param_groups:
            for name, initial in _INITIAL.items():
                if initial not in group and name in group:
                    group[initial] = float(group[name])
            _set(group, "lr", rate * group["initial_lr"])
        decays = [group.get("initial_weight_decay", 0.0) for group in optimizer.param_groups]
        for group, given in zip(optimizer.param_groups, decays, strict=True):
            if n_rows is not None and (given > 0 or not any(decays)):
                _set(group, "weight_decay", max(given, weight_decay))

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume, as tensors of one number each."""
        return {**{name: value.clone() for name, value in self.state.items()}, "sums": self.sums.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Raises:
            ValueError: if the state is of something else.
        """
        if set(state) != {*self.state, "sums"}:
            keys = sorted({*self.state, "sums"})
            raise ValueError(bad_value("AutoAnnealing", "state", f"have the keys {keys}", sorted(state)))
        device = self.sums.device
        self.state = {name: torch.as_tensor(state[name]).to(device, copy=True) for name in self.state}
        self.sums = torch.as_tensor(state["sums"]).to(device, copy=True)
        self.has_observed = not bool(self.state["first"].isnan())

    def to(self, device: torch.device) -> None:
        """Move the state to the device of the costs, if it is elsewhere."""
        if self.sums.device != device:
            self.sums = self.sums.to(device)
            self.state = {name: value.to(device) for name, value in self.state.items()}

    def _measured(self) -> CostScale:
        """Return the mean over the batches of this epoch; NaN where nothing is known, from which nothing follows."""
        mean, spread, number, signed = self.sums.unbind()
        measured = CostScale(mean / number, spread / number, signed == 0)
        for name in ("first", "scale", "lowest"):
            value = self.state[name]
            value.copy_(torch.where(value.isnan(), measured.scale, value))
        return measured


def _set(group: dict[str, Any], name: str, value: float) -> None:
    if isinstance(group.get(name), Tensor):  # as captured optimizers have it
        group[name].fill_(value)
    else:
        group[name] = value
