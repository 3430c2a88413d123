"""Annealing of one model in a training loop: rules by step, `AutoAnnealing`, and changes of hypotheses."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.annealing.auto import UNIFORM, AutoAnnealing
from torchmcl.annealing.driver import CHANGES, AnnealingDriver, AnnealingEvent
from torchmcl.annealing.moves import HeadTensors, Moves, Samples, head_of, planned_moves
from torchmcl.annealing.records import CostScale, cost_scale
from torchmcl.checks import check_positive
from torchmcl.errors import bad_value
from torchmcl.nn import MultiHypothesisHead
from torchmcl.rules.winners import AnnealedWTA, AssignmentRule
from torchmcl.types import StepOutput

__all__ = [
    "ModelAnnealing",
    "OptimizerWeights",
    "RuleLike",
    "check_optimizer_of",
    "check_rule_like",
    "move_hypotheses",
    "rule_at",
    "rule_description",
    "separate_hypotheses",
]

RuleLike = AssignmentRule | Callable[[float], AssignmentRule] | AutoAnnealing
"""Type of the argument `rule`: an assignment rule, a function step -> rule, or `AutoAnnealing`."""

# Maximum number of entries of the samples for planning moves.
_MOST_NUMBERS = 1 << 26


def check_rule_like(owner: str, rule: Any) -> None:
    """Check that `rule` is a rule, a function step -> rule or `AutoAnnealing`."""
    if isinstance(rule, AssignmentRule | AutoAnnealing) or (callable(rule) and not isinstance(rule, type)):
        return
    kinds = "be an assignment rule, a function step -> rule or AutoAnnealing()"
    advice = "For example annealed(AnnealedWTA, temperature=Linear(1.0, 0.0, 100))."
    raise TypeError(bad_value(owner, "rule", kinds, repr(rule), advice))


def check_optimizer_of(owner: str, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Check that an optimizer has parameters of the model."""
    if {id(parameter) for parameter in model.parameters()}.isdisjoint(map(id, _parameters(optimizer))):
        advice = "Create it with `model.parameters()`."
        got = f"an {type(optimizer).__name__} of other parameters"
        raise ValueError(bad_value(owner, "optimizer", "train parameters of `model`", got, advice))


def rule_at(rule: AssignmentRule | Callable[[float], AssignmentRule], step: float) -> AssignmentRule:
    """Return the rule of a step."""
    return rule if isinstance(rule, AssignmentRule) else rule(step)


def rule_description(rule: RuleLike, step: float) -> dict[str, Any]:
    """Return the kind and the fields of the rule at a step, or of the policy, as values for records and comparison.

    Example:
        >>> rule_description(lambda step: AnnealedWTA(1.0 / (1 + step)), step=1)
        {'kind': 'AnnealedWTA', 'temperature': 0.5}
    """
    value = rule if isinstance(rule, AutoAnnealing) else rule_at(rule, step)
    entries = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else {}
    plain = {name: entry.tolist() if isinstance(entry, Tensor) else entry for name, entry in entries.items()}
    return {"kind": type(value).__name__, **plain}


class ModelAnnealing:
    """`AutoAnnealing` of one model in a loop over batches, which may run in several processes.

    The state stays on the device of the costs; only `set_rates` and `end_epoch` read values on the host.

    Args:
        policy: Annealing policy.
        model: Model whose hypotheses are separated before the cooling and moved in the tail. Without a model, or with
            one that does not end in a `MultiHypothesisHead`, cooling begins with the first batch and no hypothesis is
            moved. With an output activation, hypotheses are separated but not moved.
        n_steps: Number of optimizer steps in the whole training. If given, long training runs have a lower rate.

    Attributes:
        events: Changes of the model so far.
    """

    def __init__(self, policy: AutoAnnealing, model: nn.Module | None = None, *, n_steps: float = 0.0) -> None:
        self._driver, self._n_steps = AnnealingDriver(policy, model), n_steps
        self._buffers = [] if model is None else list(model.buffers())
        self.events: list[AnnealingEvent] = []
        # Sums over the batches of this epoch in all processes, of training and of held-out rows: mean, best and spread
        # of the costs, number of batches, and number of batches with costs below 0.
        self.sums = torch.zeros(2, 5)
        self.has_observed = self.has_held_out = False
        self._initial: list[Tensor] | None = None  # initial weights and buffers, while a rewind is possible
        self._rates: list[float] = []  # learning rates of the current epoch
        self._collects = False  # whether hypotheses may be moved after this epoch
        self._collected: list[Samples] = []

    @property
    def state(self) -> dict[str, Tensor]:
        """State of the policy."""
        return self._driver.state

    def observe(self, output: StepOutput, epoch: float, n_epochs: float, *, held_out: bool = False) -> None:
        """Add the measurements of a batch; all processes must call this the same number of times.

        Args:
            output: Result of a step.
            epoch: Number of epochs since the beginning; may be fractional.
            n_epochs: Number of epochs of the whole training.
            held_out: Whether the batch was held out. If one was, all decisions are based on held-out batches.
        """
        costs = cost_scale(output.matching)
        known = ~costs.mean.isnan()  # a batch may have no valid target, or no finite cost
        values = [torch.where(known, value, 0.0) for value in costs[:3]]
        batch = torch.stack([value.float() for value in (*values, known, ~costs.has_zero, output.matching.mask.sum())])
        if _is_distributed():
            torch.distributed.all_reduce(batch)
        self.to(batch.device)
        self.sums[int(held_out)] += batch[:5]
        if held_out:
            self.has_held_out = True
            return
        if not self.has_observed:
            shape = output.predictions.hypotheses.shape[output.matching.cost.ndim - 2 :]
            self._driver.n_hypotheses, self._driver.n_coordinates = shape[0], math.prod(shape[1:])
            self.has_observed = True
        if epoch < 1:
            # The first batches may have no finite cost, and later ones may show that there is no natural zero.
            self._init_if_unknown(n_epochs)
            self._driver.policy.release(self.state, self._measured(), 0.0)
            self.state["n_rows"] += batch[5]
        if self._collects:
            self._collect(output)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Store the initial weights, to which the model returns if the hold lowers the distortion too little."""
        self._rates = []
        if self._driver.head is not None and not self.has_observed:
            self._initial = [tensor.detach().clone() for tensor in (*_parameters(optimizer), *self._buffers)]

    def end_epoch(self, optimizer: torch.optim.Optimizer, epoch: int, n_epochs: float) -> None:
        """Update the policy with the batches since the last call, and change the model if the policy requests it.

        Args:
            optimizer: Optimizer of the model.
            epoch: Number of epochs that have ended.
            n_epochs: Number of epochs of the whole training.
        """
        self._init_if_unknown(n_epochs)
        if epoch == 1:
            self._driver.warn_without_head()
        measured, trained = self._measured(held_out=self.has_held_out), self._measured()
        self.sums.zero_()
        collected, self._collected = self._collected, []

        def samples() -> Samples | None:
            return Samples(*map(partial(torch.cat, dim=1), zip(*collected, strict=True))) if collected else None

        head = None if self._driver.head is None else self._driver.head[1]
        weights = OptimizerWeights(optimizer, head, self._initial, self._buffers)
        changes = self._driver.end_epoch(measured, epoch, n_epochs, weights, samples, trained=trained)
        self.events += [AnnealingEvent(epoch, change) for change in changes]
        if self._initial is not None and float(self.state["begun"]) >= 0:
            self._initial = None

    def rule(self, epoch: float, n_epochs: float) -> AnnealedWTA:
        """Return the rule; its weights are uniform for the first batch, when no cost is known yet."""
        temperature = self._driver.values(epoch, n_epochs).temperature
        return AnnealedWTA(torch.where(self.state["first"].isnan(), UNIFORM, temperature))

    def phase(self, epoch: float, n_epochs: float) -> str:
        """Return in words what happens in an epoch."""
        return self._driver.policy.phase(self.state, epoch, n_epochs)

    def set_rates(self, optimizer: torch.optim.Optimizer, epoch: float, n_epochs: float) -> None:
        """Set the learning rate of every parameter group of an optimizer, relative to its initial value.

        The weight decay of AdamW is raised to that of the policy in the groups where it is positive: if held-out
        batches show that the network overfits, and while the temperature falls after a hold or a rewind.

        Args:
            optimizer: Optimizer of `torch.optim`.
            epoch: Epoch that follows, counted from 0.
            n_epochs: Number of epochs of the whole training.

        Raises:
            ValueError: If something else has changed a learning rate since the last call.
        """
        for group, before in zip(optimizer.param_groups, self._rates, strict=False):
            if float(group["lr"]) != before:
                rule = "have learning rates that only AutoAnnealing changes"
                advice = "Remove the other learning-rate scheduler."
                got = f"{float(group['lr']):g} instead of {before:g}"
                raise ValueError(bad_value("AutoAnnealing", "optimizer", rule, got, advice))
        values = self._driver.values(epoch, n_epochs)
        moves = self._driver.policy.may_move(self.state, epoch + 1, n_epochs) & self.has_observed
        numbers = torch.stack([values.rate, values.weight_decay, moves.to(values.rate)])
        rate, decay, moves = numbers.tolist()  # one transfer
        self._collects = bool(moves) and self._driver.may_move
        for group in optimizer.param_groups:
            if "initial_lr" not in group:
                group["initial_lr"] = float(group["lr"])
            if self._driver.policy.rate:
                _set(group, "lr", rate * group["initial_lr"])
            if group.get("decoupled_weight_decay"):  # AdamW; elsewhere its strength depends on the gradients
                own = group.setdefault("initial_weight_decay", float(group["weight_decay"]))
                group["weight_decay"] = max(own, decay) if own > 0 else own
        if self._driver.policy.rate:
            self._rates = [float(group["lr"]) for group in optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume, as tensors."""
        sizes = [self._driver.n_hypotheses, self._driver.n_coordinates, self.has_observed, self.has_held_out]
        initial = {f"initial.{i}": value.clone() for i, value in enumerate(self._initial or ())}
        return {
            **{name: value.clone() for name, value in self.state.items()},
            "sums": self.sums.clone(),
            "sizes": torch.tensor(sizes, dtype=torch.long),
            "events": torch.tensor([(epoch, CHANGES.index(name)) for epoch, name in self.events]).view(-1, 2).long(),
            **initial,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Raises:
            ValueError: If the keys of the state are wrong.
        """
        expected = {*self.state, "sums", "sizes", "events"}
        initial = sorted(
            set(state) - expected,
            key=lambda name: int(name.removeprefix("initial.") or 0) if name.startswith("initial.") else -1,
        )
        if not expected <= set(state) or any(not name.startswith("initial.") for name in initial):
            raise ValueError(bad_value("AutoAnnealing", "state", f"have the keys {sorted(expected)}", sorted(state)))
        device = self.sums.device
        self._driver.state = {name: torch.as_tensor(state[name]).to(device, copy=True) for name in self.state}
        self.sums = torch.as_tensor(state["sums"]).to(device, copy=True)
        sizes = map(int, torch.as_tensor(state["sizes"]).tolist())
        self._driver.n_hypotheses, self._driver.n_coordinates, *observed = sizes
        self.has_observed, self.has_held_out = map(bool, observed)
        self._initial = [torch.as_tensor(state[name]).clone() for name in initial] or None
        self.events = [AnnealingEvent(epoch, CHANGES[i]) for epoch, i in torch.as_tensor(state["events"]).tolist()]
        self._rates = []

    def to(self, device: torch.device) -> None:
        """Move the state to the device of the costs, if it is elsewhere."""
        if self.sums.device != device:
            self.sums = self.sums.to(device)
            self._driver.state = {name: value.to(device) for name, value in self.state.items()}

    def _init_if_unknown(self, n_epochs: float) -> None:
        """Initialize the state from the batches so far, unless it already contains a known initial cost."""
        new = self._driver.initial(self._measured(), n_epochs, n_steps=self._n_steps)
        unknown = self.state["first"].isnan()
        self._driver.state = {name: torch.where(unknown, new[name], value) for name, value in self.state.items()}

    def _measured(self, held_out: bool = False) -> CostScale:
        """Return the mean statistics over the batches of this epoch; NaN without a batch."""
        mean, best, spread, number, signed = self.sums[int(held_out)].unbind()
        return CostScale(mean / number, best / number, spread / number, signed == 0)

    def _collect(self, output: StepOutput) -> None:
        """Store the hypotheses and targets of a batch until there are enough samples to plan moves."""
        n_rows = sum(samples.real.shape[1] for samples in self._collected)
        wanted = self._driver.n_samples
        if n_rows >= wanted:
            return
        samples = Samples.of_step(output)
        if samples is not None and samples.hypotheses.numel() * wanted <= _MOST_NUMBERS * samples.real.shape[1]:
            self._collected.append(samples)


class OptimizerWeights:
    """Weights of a model trained with a torch optimizer, see `TrainedWeights`.

    Args:
        optimizer: Optimizer of the model.
        head: Head of the model; None if it has no head.
        initial: Initial weights and buffers; None if they are no longer needed.
        buffers: Buffers of the model, such as the statistics of BatchNorm.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        head: MultiHypothesisHead | None,
        initial: list[Tensor] | None,
        buffers: Sequence[Tensor] = (),
    ) -> None:
        self._optimizer, self._head, self._initial, self._buffers = optimizer, head, initial, buffers

    @torch.no_grad()
    def rewind(self, models: Tensor) -> None:
        """Reset the model to its initial weights and buffers, and the optimizer to fresh moments."""
        # An empty state is created anew by the next step, except by Adagrad and in a CUDA graph.
        in_place = isinstance(self._optimizer, torch.optim.Adagrad) or self._optimizer.defaults.get("capturable")
        tensors = [*_parameters(self._optimizer), *self._buffers]
        if self._initial is not None and len(tensors) != len(self._initial):
            rule, advice = "have the same parameters during the hold", "Add the others first, or pass hold=False."
            raise ValueError(bad_value("AutoAnnealing", "optimizer", rule, "other parameters", advice))
        for tensor, before in zip(tensors, self._initial or (), strict=False):
            tensor.copy_(before)
            state = self._optimizer.state.get(tensor, {})
            for value in state.values() if in_place else ():
                value.zero_()
            if not in_place:
                state.clear()

    def separate(self, factors: Tensor) -> None:
        """Set the hypotheses to their mean plus random constants."""
        if (head := _head_tensors(self._head, self._optimizer)) is not None:
            head.separate(factors, head.random_constants([0]))

    def move(self, moves: Moves) -> None:
        """Copy weights between hypotheses; all processes apply the moves of the first process."""
        if (head := _head_tensors(self._head, self._optimizer)) is None:
            return
        if _is_distributed():
            for part in moves:
                torch.distributed.broadcast(part, src=0)
        head.move(moves)


def _head_tensors(head: MultiHypothesisHead | None, optimizer: torch.optim.Optimizer) -> HeadTensors | None:
    """Return the weights of a head and their optimizer moments; None if they are split across devices."""
    assert head is not None
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


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _set(group: dict[str, Any], name: str, value: float) -> None:
    if isinstance(group.get(name), Tensor):  # for capturable optimizers
        group[name].fill_(value)
    else:
        group[name] = value


# For training with a schedule: the changes that `AutoAnnealing` makes. Separate the hypotheses before the cooling if a
# high temperature has merged them, and move them a few times after the cooling, at a temperature near 0.


def move_hypotheses(model: nn.Module, optimizer: torch.optim.Optimizer, output: StepOutput) -> int:
    """Move redundant hypotheses to modes that share one hypothesis, and return the number of moves.

    A move is made only if the gain, measured on one half of the batch after it was planned on the other, exceeds the
    loss; see `torchmcl.annealing.moves`. Distances are squared Euclidean under every cost.

    Args:
        model: Trained model that ends in a `MultiHypothesisHead` without an output activation.
        optimizer: Optimizer of the model; the optimizer moments of a hypothesis move with it.
        output: Result of `mcl_step` on a batch of a few hundred samples, several for each hypothesis.

    Raises:
        ValueError: If the model has no such head, or the targets cannot be compared with the hypotheses.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=3, hidden=())
        >>> _ = model.head.linear.weight.data.zero_()
        >>> model.head.linear.bias.data[:3] = torch.tensor([0.0, 5.0, 5.01])  # the first covers two modes
        >>> batch = mcl.Batch(torch.zeros(300, 1), torch.tensor([-1.0, 1.0, 5.0]).repeat(100).view(300, 1, 1))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> move_hypotheses(model, optimizer, mcl.mcl_step(model, batch, mcl.WTA()))
        1
        >>> model.head.linear.bias.data[:3].sort().values
        tensor([-1.,  1.,  5.])
    """
    head = _head("move_hypotheses", model, optimizer)
    if head.output_activation is not None:
        rule, advice = "have no output activation", "Biases shift the outputs of the head only without one."
        raise ValueError(bad_value("move_hypotheses", "model", rule, repr(head.output_activation), advice))
    samples = Samples.of_step(output)
    if samples is None:
        advice = "Hypotheses cannot be moved under this cost."
        message = "`output` must have targets in the shape of one hypothesis, and no step mask."
        raise ValueError(f"move_hypotheses: {message} {advice}")
    moves = planned_moves(samples, torch.ones(1, dtype=torch.bool, device=samples.targets.device))
    OptimizerWeights(optimizer, head, None).move(moves)
    return moves.n_moves


def separate_hypotheses(model: nn.Module, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> None:
    """Separate merged hypotheses: set each one to the mean of all plus `factor` times a random constant.

    Hypotheses that a high temperature has merged have equal gradients and would never separate. The constants are drawn
    like initial biases. They do not depend on the input, so that no hypothesis has to jump from one mode to another
    between two inputs.

    Args:
        model: Model that ends in a `MultiHypothesisHead`.
        optimizer: Optimizer of the model.
        factor: Size of the constants relative to initial biases. After training at a high temperature, multiply it by
            the square root of the remaining fraction of the cost.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=2, hidden=(8,))
        >>> for parameter in model.head.linear.parameters():
        ...     _ = parameter.data.fill_(0.1)
        >>> separate_hypotheses(model, torch.optim.Adam(model.parameters()))
        >>> bool(model(torch.ones(1, 1)).hypotheses.std() > 0)
        True
    """
    check_positive("separate_hypotheses", "factor", factor)
    head = _head("separate_hypotheses", model, optimizer)
    OptimizerWeights(optimizer, head, None).separate(torch.full((1,), float(factor), device=head.linear.weight.device))


def _head(owner: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> MultiHypothesisHead:
    check_optimizer_of(owner, optimizer, model)
    found = head_of(model)
    if found is None:
        rule, got = "have one MultiHypothesisHead with trained weights", type(model).__name__
        raise ValueError(bad_value(owner, "model", rule, got, "Replace its last layer by `MultiHypothesisHead`."))
    return found[1]
