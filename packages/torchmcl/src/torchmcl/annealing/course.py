"""How a rule moves through a training: not at all, with the step, or as `AutoAnnealing` decides from its batches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value
from torchmcl.annealing.auto import AutoAnnealing, AutoValues, CostScale, cost_scale
from torchmcl.annealing.moves import HeadTensors, Samples, head_of, planned_moves
from torchmcl.rules.winners import AnnealedWTA, AssignmentRule
from torchmcl.types import Batch, Predictions, StepOutput

__all__ = ["AutoCourse", "RuleLike", "check_rule_like", "described_rule", "rule_at"]

RuleLike = AssignmentRule | Callable[[float], AssignmentRule] | AutoAnnealing
"""What is given as `rule` everywhere: an assignment rule, a function step -> rule, or `AutoAnnealing`."""

_HOTTEST = torch.finfo(torch.float32).max
# Moves are considered this often in a training, on at least so many samples, and so many for each hypothesis.
_N_MOVES, _N_MOVE_ROWS, _N_ROWS_OF_HYPOTHESIS = 50, 512, 32
# The most numbers that are kept for it.
_MOST_NUMBERS = 1 << 26


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

    It stays on the device of the costs; only `set_rates` and `end_epoch` read values on the host.

    Args:
        policy: decides.
        model: whose hypotheses are fanned out after a hold and moved in the tail. Without one, or one that does not end
            in a `MultiHypothesisHead`, cooling begins with the first batch and no hypothesis is moved.
    """

    def __init__(self, policy: AutoAnnealing, model: nn.Module | None = None) -> None:
        self.policy = policy
        self._named = None if model is None else head_of(model)
        nothing = torch.tensor(torch.nan)
        self.state = policy.init(CostScale(nothing, nothing, nothing, torch.tensor(True)), 1.0)
        # Over the batches of this epoch, in all processes: the sums of the mean, the lowest and the spread of their
        # costs, the number of batches, and the number of those with costs below 0.
        self.sums = torch.zeros(5)
        self.has_observed = False
        self._n_hypotheses = self._n_coordinates = 1
        self._initial: list[Tensor] | None = None  # weights, as long as the model may be set back to them
        self._collects = False  # whether hypotheses may be moved after this epoch
        self._collected: list[Samples] = []

    def observe(self, output: StepOutput, epoch: float, n_epochs: float) -> None:
        """Take in a batch; every process must call it equally often.

        Args:
            output: of a training step.
            epoch: counted from 0; fractions are fine.
            n_epochs: of the whole training.
        """
        costs = cost_scale(output.matching)
        known = ~costs.mean.isnan()  # a batch may have no real target, or no finite cost
        values = [torch.where(known, value, 0.0) for value in costs[:3]]
        batch = torch.stack([value.float() for value in (*values, known, ~costs.has_zero)])
        if _is_distributed():
            torch.distributed.all_reduce(batch)
        self.to(batch.device)
        self.sums += batch
        if not self.has_observed:
            shape = output.predictions.hypotheses.shape[output.matching.cost.ndim - 2 :]
            self._n_hypotheses, self._n_coordinates = shape[0], math.prod(shape[1:])
            self.has_observed = True
        if epoch < 1:
            # The first batches may have no finite cost, and later ones may show that there is no natural zero.
            self._init_if_unknown(n_epochs)
            self.policy.release(self.state, self._measured(), 0.0)
        if self._collects:
            self._collect(output)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the weights before the first step, to which a probe that gains nothing goes back."""
        if self._named is not None and not self.has_observed:
            self._initial = [parameter.detach().clone() for parameter in _parameters(optimizer)]

    def end_epoch(self, optimizer: torch.optim.Optimizer, epoch: float, n_epochs: float) -> None:
        """Decide, from the batches since the last call, whether to begin cooling, and change the model if needed.

        Args:
            optimizer: of the model.
            epoch: how many have ended.
            n_epochs: of the whole training.
        """
        n_coordinates = self._n_coordinates
        self._init_if_unknown(n_epochs)
        decision = self.policy.update(self.state, self._measured(), epoch, n_epochs, n_coordinates=n_coordinates)
        self.sums.zero_()
        collected, self._collected = self._collected, []
        if self._initial is None and not collected:
            return
        if self._initial is not None:
            rewinds, factor, begun = torch.stack([*map(torch.Tensor.float, decision[:2]), self.state["begun"]]).tolist()
            if rewinds:
                _set_back(optimizer, self._initial)
            elif factor and (head := self._head(optimizer)) is not None:
                head.fan_out(decision.fans_out.view(1), head.drawn([0]))
            if begun >= 0:
                self._initial = None
        if collected and (head := self._head(optimizer)) is not None:
            moves = planned_moves(
                Samples(*map(partial(torch.cat, dim=1), zip(*collected, strict=True))),
                torch.ones(1, dtype=torch.bool, device=self.sums.device),
            )
            if _is_distributed():  # all processes make the moves of the first one
                for part in moves:
                    torch.distributed.broadcast(part, src=0)
            head.move(moves)

    def rule(self, epoch: float, n_epochs: float) -> AnnealedWTA:
        """Return the rule; infinitely warm for the first batch, before which no cost is known."""
        if not self.has_observed:
            return AnnealedWTA(_HOTTEST)
        temperature = self.values(epoch, n_epochs).temperature
        return AnnealedWTA(torch.where(self.state["first"].isnan(), _HOTTEST, temperature))

    def values(self, epoch: float, n_epochs: float, n_steps: float | None = None) -> AutoValues:
        """Return temperature and factor on the learning rate, see `AutoAnnealing.value`."""
        return self.policy.value(self.state, epoch, n_epochs, n_steps=n_steps)

    def set_rates(
        self, optimizer: torch.optim.Optimizer, epoch: float, n_epochs: float, *, n_steps: float | None = None
    ) -> None:
        """Set the learning rate of every group of an optimizer, relative to the one it began with.

        Args:
            optimizer: any of `torch.optim`.
            epoch: that follows.
            n_epochs: of the whole training.
            n_steps: of the optimizer in the whole training. Where given, a long training has a lower rate.
        """
        rate = self.values(epoch, n_epochs, n_steps).rate
        moves = self.policy.moves(self.state, epoch + 1, n_epochs) & self.has_observed
        rate, moves = torch.stack([rate, moves.to(rate)]).tolist()  # one transfer
        is_due = int(epoch + 1) % max(1, int(n_epochs) // _N_MOVES) == 0
        self._collects = bool(moves) and is_due and self._named is not None
        for group in optimizer.param_groups:
            if "initial_lr" not in group:
                group["initial_lr"] = float(group["lr"])
            _set(group, "lr", rate * group["initial_lr"])

    def state_dict(self) -> dict[str, Any]:
        """Return everything that resuming needs, as tensors."""
        sizes = torch.tensor([self._n_hypotheses, self._n_coordinates, int(self.has_observed)])
        initial = {f"initial.{i}": value.clone() for i, value in enumerate(self._initial or ())}
        return {
            **{name: value.clone() for name, value in self.state.items()},
            "sums": self.sums.clone(),
            "sizes": sizes,
            **initial,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Raises:
            ValueError: if the state is of something else.
        """
        expected = {*self.state, "sums", "sizes"}
        initial = sorted(
            set(state) - expected,
            key=lambda name: int(name.removeprefix("initial.") or 0) if name.startswith("initial.") else -1,
        )
        if not expected <= set(state) or any(not name.startswith("initial.") for name in initial):
            raise ValueError(bad_value("AutoAnnealing", "state", f"have the keys {sorted(expected)}", sorted(state)))
        device = self.sums.device
        self.state = {name: torch.as_tensor(state[name]).to(device, copy=True) for name in self.state}
        self.sums = torch.as_tensor(state["sums"]).to(device, copy=True)
        self._n_hypotheses, self._n_coordinates, observed = map(int, torch.as_tensor(state["sizes"]).tolist())
        self.has_observed = bool(observed)
        self._initial = [torch.as_tensor(state[name]).clone() for name in initial] or None

    def to(self, device: torch.device) -> None:
        """Move the state to the device of the costs, if it is elsewhere."""
        if self.sums.device != device:
            self.sums = self.sums.to(device)
            self.state = {name: value.to(device) for name, value in self.state.items()}

    def _init_if_unknown(self, n_epochs: float) -> None:
        """Set the state from the batches so far, as long as none of them had a finite cost before."""
        n_coordinates, may_hold = self._n_coordinates, self._named is not None
        new = self.policy.init(self._measured(), n_epochs, n_coordinates=n_coordinates, may_hold=may_hold)
        unknown = self.state["first"].isnan()
        self.state = {name: torch.where(unknown, new[name], value) for name, value in self.state.items()}

    def _measured(self) -> CostScale:
        """Return the mean over the batches of this epoch; NaN where nothing is known."""
        mean, best, spread, number, signed = self.sums.unbind()
        return CostScale(mean / number, best / number, spread / number, signed == 0)

    def _collect(self, output: StepOutput) -> None:
        """Keep hypotheses and targets of a batch, until there are enough to plan moves on."""
        n_rows = sum(samples.real.shape[1] for samples in self._collected)
        wanted = max(_N_MOVE_ROWS, _N_ROWS_OF_HYPOTHESIS * self._n_hypotheses)
        if n_rows >= wanted or output.targets is None or output.matching.cost.ndim != 3:
            return
        mask = output.matching.mask
        stacked = Predictions(output.predictions.hypotheses.unsqueeze(0), None)
        samples = Samples.of(stacked, Batch(mask, output.targets.unsqueeze(0), mask.unsqueeze(0)))
        if samples is not None and samples.hypotheses.numel() * wanted <= _MOST_NUMBERS * samples.real.shape[1]:
            self._collected.append(samples)

    def _head(self, optimizer: torch.optim.Optimizer) -> HeadTensors | None:
        """Return the weights of the head and their moments; None where they are split across devices."""
        assert self._named is not None
        head = self._named[1]
        pair = (head.linear.weight, head.linear.bias)
        if any(type(parameter.data) is not Tensor for parameter in pair):
            return None
        values = [value for parameter in pair for value in optimizer.state.get(parameter, {}).values()]
        shapes = {parameter.shape for parameter in pair}
        moments = [value.unsqueeze(0) for value in values if isinstance(value, Tensor) and value.shape in shapes]
        weight, bias = (parameter.detach().unsqueeze(0) for parameter in pair)
        return HeadTensors(head, weight, bias, moments)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@torch.no_grad()
def _set_back(optimizer: torch.optim.Optimizer, weights: list[Tensor]) -> None:
    """Give the parameters of an optimizer their first weights, with fresh moments."""
    for parameter, weight in zip(_parameters(optimizer), weights, strict=True):
        parameter.copy_(weight)
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                value.zero_()
            elif isinstance(value, int | float):
                optimizer.state[parameter][name] = 0


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _set(group: dict[str, Any], name: str, value: float) -> None:
    if isinstance(group.get(name), Tensor):  # as captured optimizers have it
        group[name].fill_(value)
    else:
        group[name] = value
