"""Plan of a training run: what happens to each model in each epoch.

Rules, temperatures, learning rates and weight decays have a value per epoch and model. The plan also contains the
evaluations on held-out rows, the checkpoints and the batch size.
"""

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from torchmcl import WTA, AnnealedWTA, AssignmentRule, AutoAnnealing, Distributions, RelaxedWTA, StepOutput, checks
from torchmcl.errors import bad_value
from torchmcl.rules.winners import softmin, winner_weights
from torchmcl.schedules import AnnealedRule, Schedule
from torchmcl_fleet.problem import FleetData, StepSpec

__all__ = [
    "Checkpointing",
    "HeldOutCost",
    "MixedRule",
    "MixtureLogLoss",
    "RuleAt",
    "RulePlan",
    "StackedRule",
    "TrainingPlan",
    "Validation",
    "WeightedDistortion",
    "batch_rows",
    "check_data",
    "check_unweighted",
    "current_loss",
    "default_batch_size",
    "even_batch_size",
    "hard_distortion",
    "moments_of",
    "per_model",
    "plain_number",
    "rates_of",
    "seeds_of",
]

RuleAt = Callable[[float], AssignmentRule]
# Rules that treat each target separately and differ only in a temperature and an epsilon.
_PER_TARGET = (WTA, RelaxedWTA, AnnealedWTA)


@dataclass(frozen=True, eq=False)
class StackedRule(AssignmentRule):
    """Assignment rules for separate slices of the leading model axis.

    Attributes:
        parts: (models, rule) pairs that cover the axis in order.
    """

    parts: tuple[tuple[slice, AssignmentRule], ...]

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of each slice with its rule."""
        weights = torch.empty_like(cost)  # in the memory order of the cost, which torch.cat would not keep
        for models, rule in self.parts:
            weights[models] = rule.weights(cost[models], None if mask is None else mask[models])
        return weights


@dataclass(frozen=True, eq=False)
class MixedRule(AssignmentRule):
    """WTA, Relaxed-WTA and annealed WTA side by side, one per model of the leading axis.

    Attributes:
        values: Temperatures, 0 for hard weights, and epsilons of the hard weights, [2, models].
    """

    values: Tensor

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute hard, relaxed or soft weights for each model."""
        temperature, epsilon = self.values
        if cost.device.type == "cpu":  # where reading a value is cheaper than an unneeded softmax
            if not bool((temperature > 0).any()):
                return _hard_weights(cost, _per_model(epsilon, cost))
            if bool((temperature > 0).all()):
                return softmin(cost, _per_model(temperature, cost))
        temperature = _per_model(temperature, cost)
        cold = temperature <= 0
        soft = softmin(cost, temperature.masked_fill(cold, 1))
        return torch.where(cold, _hard_weights(cost, _per_model(epsilon, cost)), soft)


def _per_model(values: Tensor, cost: Tensor) -> Tensor:
    """Return values [models] with the dtype and the number of axes of a cost [models, ...]."""
    return values.to(cost.dtype).view(-1, *[1] * (cost.ndim - 1))


def _hard_weights(cost: Tensor, epsilon: Tensor) -> Tensor:
    if cost.shape[-1] == 1:  # a single hypothesis has all the weight, as under `RelaxedWTA`
        return torch.ones_like(cost)
    return winner_weights(cost, 1 - epsilon, epsilon / (cost.shape[-1] - 1))


@dataclass(frozen=True)
class Columns:
    """Values per epoch and model, stored as distinct columns and the column index of each model.

    A thousand models often share a handful of schedules. The full matrix is built on the device that needs it; building
    it on the host would take half as long as the training.
    """

    distinct: Tensor  # [epochs, columns]
    column_of_model: Tensor  # [models]

    @classmethod
    def of(cls, columns: dict[int, Tensor], keys: Sequence[int]) -> "Columns":
        """Return the values of models from one column per key and the key of each model."""
        positions = {key: position for position, key in enumerate(columns)}
        return cls(torch.stack(list(columns.values()), dim=1), torch.tensor([positions[key] for key in keys]))

    def full(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the values [epochs, models]."""
        return self.distinct.to(device, dtype)[:, self.column_of_model.to(device)]

    def of_models(self, models: slice) -> "Columns":
        """Return the values of a slice of the models."""
        return Columns(self.distinct, self.column_of_model[models])


class _Group(NamedTuple):
    """Consecutive models with the same kind of rule, and the values of the fields of that rule."""

    models: slice
    first: AssignmentRule
    values: dict[str, Columns]


class RulePlan:
    """The rules of all models at all epochs.

    The values of an epoch are a row of one table on the device, and the rules read them from one buffer. A captured
    epoch therefore needs no data from the host, and a hundred temperatures cost as little as one.

    Args:
        rules: Rule, function epoch -> rule, or `AutoAnnealing` of each model.
        n_epochs: Number of epochs of the training run.
        device: Device that stores the models.
        dtype: Data type of the models.
    """

    def __init__(
        self,
        rules: Sequence[Any],
        n_epochs: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.n_models, self.n_epochs = len(rules), n_epochs
        self.groups = _groups_of(rules, n_epochs)
        #: Whether `MixedRule` supports all rules.
        self.per_target = all(type(group.first) in _PER_TARGET for group in self.groups)
        self._device, self._dtype = device, dtype

    def on(self, device: torch.device, dtype: torch.dtype) -> "RulePlan":
        """Return a copy of the plan on a device, in a dtype, with separate current values."""
        moved = copy.copy(self)
        moved._device, moved._dtype = device, dtype
        for name in ("table", "_current"):
            vars(moved).pop(name, None)
        return moved

    @cached_property
    def temperatures(self) -> Tensor:
        """Temperatures, [epochs, models], in double precision on the CPU; 0 for rules without a temperature."""
        return self._column("temperature", "cpu", torch.float64)

    @cached_property
    def table(self) -> Tensor:
        """Rule values, a row per epoch; if all rules are `per_target`, the temperatures and then the epsilons."""
        if self.per_target:
            both = [self._column(name, self._device, self._dtype) for name in ("temperature", "epsilon")]
            return torch.stack(both, dim=1).flatten(1)
        columns = [values.full(self._device, self._dtype) for group in self.groups for values in group.values.values()]
        if not columns:
            return torch.zeros(self.n_epochs, 0, dtype=self._dtype, device=self._device)
        return torch.cat(columns, dim=1)

    @cached_property
    def _current(self) -> Tensor:
        return self.table[0].clone()

    def read(self, epoch: Tensor) -> None:
        """Load the values of an epoch, a tensor [1]."""
        torch.index_select(self.table, 0, epoch, out=self._current.unsqueeze(0))

    def set_temperatures(self, chosen: Tensor, temperatures: Tensor) -> None:
        """Replace the temperatures of the models in `chosen`; both [models]."""
        for models, values in self._views("temperature"):
            values.copy_(torch.where(chosen[models], temperatures[models].to(values), values))

    @property
    def mixed_values(self) -> Tensor:
        """Current temperatures and epsilons of rules that are all `per_target`, [2, models]."""
        return self._current.view(2, self.n_models)

    def rule(self, models: slice | None = None) -> AssignmentRule:
        """Return the rule of all models or a slice of them; it reads the current values when it is called."""
        models = models or slice(0, self.n_models)
        if self.per_target:
            return MixedRule(self.mixed_values[:, models])
        parts, start = [], 0
        for group, views in zip(self.groups, self._group_views(), strict=True):
            low, high = max(group.models.start, models.start), min(group.models.stop, models.stop)
            if low < high:
                inside = slice(low - group.models.start, high - group.models.start)
                values: dict[str, Any] = {name: view[inside].view(-1, 1, 1, 1) for name, view in views.items()}
                parts.append((slice(start, start + high - low), replace(group.first, **values)))
                start += high - low
        return StackedRule(tuple(parts))

    def by_group(self) -> list[tuple[slice, AssignmentRule, dict[str, Tensor]]]:
        """Return the models of each group, their first rule, and the values of its fields [epochs, models]."""
        full = [{name: values.full() for name, values in group.values.items()} for group in self.groups]
        return [(group.models, group.first, values) for group, values in zip(self.groups, full, strict=True)]

    def check_hypotheses(self, n_hypotheses: int) -> None:
        """Check that the largest `k` of each rule is valid for the number of hypotheses, before training."""
        for group in self.groups:
            if "k" in group.values:
                largest: dict[str, Any] = {"k": float(group.values["k"].distinct.max())}
                replace(group.first, **largest).weights(torch.zeros(1, n_hypotheses), None)

    def _column(self, name: str, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Return the values of a field [epochs, models], 0 for rules without it."""
        column = torch.zeros(self.n_epochs, self.n_models, dtype=dtype, device=device)
        for group in self.groups:
            if name in group.values:
                column[:, group.models] = group.values[name].full(device, dtype)
        return column

    def _group_views(self) -> list[dict[str, Tensor]]:
        """Return views of the current values, a dictionary per group."""
        views, start = [], 0
        for group in self.groups:
            size = group.models.stop - group.models.start
            views.append({name: self._current[start + i * size :][:size] for i, name in enumerate(group.values)})
            start += size * len(group.values)
        return views

    def _views(self, name: str) -> list[tuple[slice, Tensor]]:
        if self.per_target:
            return [(slice(0, self.n_models), self.mixed_values[0])]
        pairs = zip(self.groups, self._group_views(), strict=True)
        return [(group.models, views[name]) for group, views in pairs if name in views]


def _groups_of(rules: Sequence[Any], n_epochs: int) -> list[_Group]:
    by_identity = {id(rule): rule for rule in rules}
    columns_of = {key: _values_of(rule, n_epochs) for key, rule in by_identity.items()}
    kinds = {key: _kind(first) for key, (first, _) in columns_of.items()}
    groups: list[_Group] = []
    start = 0
    of_model = [kinds[id(rule)] for rule in rules]
    for stop in range(1, len(rules) + 1):
        if stop == len(rules) or of_model[stop] != of_model[start]:
            ids = [id(rule) for rule in rules[start:stop]]
            first, columns = columns_of[ids[0]]
            keys = dict.fromkeys(ids)
            values = {name: Columns.of({key: columns_of[key][1][name] for key in keys}, ids) for name in columns}
            groups.append(_Group(slice(start, stop), first, values))
            start = stop
    return groups


def _values_of(rule: Any, n_epochs: int) -> tuple[AssignmentRule, dict[str, Tensor]]:
    """Return a rule at the first epoch, and the value of each numeric field at every epoch."""
    first = _rule_at(rule, 0)
    names = _numeric_fields(type(first))
    if isinstance(rule, AssignmentRule | AutoAnnealing):
        values = {name: [float(getattr(first, name))] * n_epochs for name in names}
    elif isinstance(rule, AnnealedRule) and {name for name, _ in rule.schedules} <= set(names):
        # Only the values are computed; building the rules with the extreme values checks all of them.
        values = {name: [float(getattr(first, name))] * n_epochs for name in names}
        for name, schedule in rule.schedules:
            values[name] = [float(schedule(epoch)) for epoch in range(n_epochs)]
            for extreme in (min(values[name]), max(values[name])):
                replace(first, **{name: extreme})
    else:
        by_epoch = [_rule_at(rule, epoch) for epoch in range(n_epochs)]
        for epoch, current in enumerate(by_epoch):
            if _kind(current) != _kind(first):
                demand = "keep its type, and change only fields annotated as `float | Tensor`, during a training run"
                got = f"{first!r} at epoch 0 and {current!r} at epoch {epoch}"
                raise ValueError(bad_value("Fleet", "rule", demand, got, "Each model of a fleet has its own value."))
        values = {name: [float(getattr(current, name)) for current in by_epoch] for name in names}
    return first, {name: torch.tensor(column, dtype=torch.float64) for name, column in values.items()}


def _rule_at(rule: Any, epoch: int) -> AssignmentRule:
    if isinstance(rule, AssignmentRule):
        return rule
    if isinstance(rule, AutoAnnealing):
        return AnnealedWTA(1.0)  # the temperature is set during training
    at_epoch = rule(epoch) if callable(rule) else rule
    if not isinstance(at_epoch, AssignmentRule):
        advice = "For example annealed(AnnealedWTA, temperature=Linear(1.0, 0.0, 100))."
        expected = "be a rule, a function epoch -> rule or AutoAnnealing()"
        raise TypeError(bad_value("Fleet", "rule", expected, repr(at_epoch), advice))
    return at_epoch


@functools.cache
def _numeric_fields(kind: type[AssignmentRule]) -> list[str]:
    """Return the names of the fields that may be tensors, with a value per model."""
    types = get_type_hints(kind)
    return [field.name for field in fields(kind) if Tensor in (types[field.name], *get_args(types[field.name]))]


def _kind(rule: AssignmentRule) -> tuple[Any, ...]:
    """Return the key by which rules are stacked: the type and the non-numeric fields."""
    names = _numeric_fields(type(rule))
    return (type(rule), *(getattr(rule, field.name) for field in fields(rule) if field.name not in names))


def rates_of(rates: Sequence[float | Schedule], n_epochs: int) -> Columns:
    """Return the learning rates of models in each epoch."""
    columns: dict[int, Tensor] = {}
    for rate in rates:
        if id(rate) not in columns:
            values = [plain_number(rate(epoch)) for epoch in range(n_epochs)] if callable(rate) else [rate] * n_epochs
            for value in set(values):
                checks.check_non_negative("Fleet", "learning_rate", value)
            columns[id(rate)] = torch.tensor(values, dtype=torch.float64)
    return Columns.of(columns, [id(rate) for rate in rates])


@dataclass(frozen=True)
class TrainingPlan:
    """Training options of models; sequences and tensors have an entry per model."""

    n_epochs: int
    rules: Sequence[Any]
    learning_rates: Columns
    weight_decays: Tensor
    seeds: Tensor
    spec: StepSpec
    validate_every: Sequence[int]
    patience: int | None

    def of_models(self, models: slice) -> "TrainingPlan":
        """Return the plan of a slice of the models."""
        if (models.start, models.stop) == (0, len(self.rules)):
            return self  # with its cached rules
        return replace(
            self,
            rules=self.rules[models],
            learning_rates=self.learning_rates.of_models(models),
            weight_decays=self.weight_decays[models],
            seeds=self.seeds[models],
            validate_every=self.validate_every[models],
        )

    @cached_property
    def rule_plan(self) -> RulePlan:
        """The rules at all epochs, on the CPU."""
        return RulePlan(self.rules, self.n_epochs)

    @property
    def policies(self) -> list[AutoAnnealing]:
        """The rules that set the temperature during training."""
        return [rule for rule in self.rules if isinstance(rule, AutoAnnealing)]


def hard_distortion(output: StepOutput) -> Tensor:
    """Return the distortion (mean cost of the best hypothesis) of each model, [models]."""
    cost, _, mask = output.matching
    costs = cost.amin(dim=-1).masked_fill(~mask, 0).flatten(1)
    return costs.sum(dim=1) / mask.flatten(1).sum(dim=1).clamp_min(1)


def current_loss(output: StepOutput) -> Tensor:
    """Return the training loss of each model under its current rule, scores included, [models]."""
    return torch.as_tensor(output.loss)


class _RowWeights:
    """Weights of held-out rows, copied to each device once because captured epochs cannot copy from the host."""

    weights: Tensor | None

    @cached_property
    def _copies(self) -> dict[tuple[torch.device, torch.dtype], Tensor]:
        return {}

    def weights_like(self, costs: Tensor) -> Tensor:
        """Return the weights on the device and in the dtype of costs."""
        assert self.weights is not None
        place = (costs.device, costs.dtype)
        if place not in self._copies:
            self._copies[place] = self.weights.to(costs)
        return self._copies[place]

    def sums(self, costs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of costs [models, rows, targets], and of the weights, over the valid targets."""
        weights = mask.to(costs) if self.weights is None else mask * self.weights_like(costs).unsqueeze(-1)
        return (costs.masked_fill(~mask, 0) * weights).sum(dim=(1, 2)), weights.sum(dim=(1, 2))


@dataclass(frozen=True, eq=False)
class WeightedDistortion(_RowWeights):
    """Monitor that computes the distortion of each model on weighted rows, which all models share.

    Args:
        weights: Weights of the held-out rows, [rows].
    """

    weights: Tensor

    def __call__(self, output: StepOutput) -> Tensor:
        """Return the distortions, [models], from a cost [models, rows, targets, hypotheses]."""
        total, weight = self.sums(output.matching.cost.amin(dim=-1), output.matching.mask)
        return total / weight


@dataclass(frozen=True, eq=False)
class HeldOutCost(_RowWeights):
    """Monitor that evaluates a different cost on held-out rows than the training cost.

    Args:
        cost_fn: Cost of predicted distributions with one value per target, such as `MixtureNLLWithCRPS`.
        weights: Weights of the held-out rows, [rows]; equal by default.

    Example:
        >>> from torchmcl import Batch, Distributions, Matching
        >>> from torchmcl.costs import MixtureNLLWithCRPS
        >>> means, logits, scale = torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 1), torch.ones(1, 2, 1, 1)
        >>> targets = torch.tensor([[[[0.0]], [[1.0]]]])
        >>> matching = Matching(targets, targets, torch.ones(1, 2, 1, dtype=torch.bool))
        >>> output = StepOutput(means, means, None, matching, Distributions(means, logits, scale), Batch(None, targets))
        >>> HeldOutCost(MixtureNLLWithCRPS(0.0))(output)  # the mean of 0.919 and 1.419
        tensor([1.1689])
    """

    cost_fn: Callable[..., Tensor]
    weights: Tensor | None = None

    def __call__(self, output: StepOutput) -> Tensor:
        """Return the mean costs, [models], for targets [models, rows, targets, ...]; padded targets do not count."""
        predictions, targets, mask = output.predictions, output.batch.targets, output.matching.mask
        if not isinstance(predictions, Distributions):
            kind, advice = type(predictions).__name__, "Train networks with scales, or use hard_distortion."
            raise TypeError(bad_value("HeldOutCost", "predictions", "be Distributions", kind, advice))
        if output.batch.mask is not None and output.batch.mask.ndim > mask.ndim:
            rule, advice = "be a mask of whole targets", "Use current_loss for sequences of different length."
            raise ValueError(bad_value("HeldOutCost", "mask", rule, "a mask of steps", advice))
        costs = self.cost_fn(
            hypotheses=predictions.hypotheses,
            targets=targets,
            scale=predictions.scale,
            score_logits=predictions.score_logits,
        )
        costs = costs.flatten(3).mean(dim=-1)  # [models, rows, targets]
        total, weight = self.sums(costs, mask)
        return total / weight.clamp_min(torch.finfo(costs.dtype).tiny)


@dataclass(frozen=True, eq=False)
class MixtureLogLoss(_RowWeights):
    """Monitor for `MixtureNLL`: log-loss of the mixtures on held-out rows.

    Args:
        weights: Weights of the held-out rows, [rows] or [models, rows]. Equal by default.
        together: Whether every model is assigned the mean over all models, so that all keep the weights of the same
            epoch: on few rows the best epoch of a single model is random. The models must be trained in one chunk.
    """

    weights: Tensor | None = None
    together: bool = field(default=False, kw_only=True)

    def __call__(self, output: StepOutput) -> Tensor:
        """Return the log-losses, [models], from a cost [models, rows, targets, hypotheses]."""
        return self.of_costs(output.matching.cost, output.matching.mask)

    def of_costs(self, cost: Tensor, mask: Tensor) -> Tensor:
        """Return the log-losses, [models], from a cost and its valid targets, [models, rows, targets]."""
        total, weight = self.sums(-torch.logsumexp(-cost, dim=-1), mask)
        return (total.sum() / weight.sum()).expand(len(cost)) if self.together else total / weight


@dataclass(frozen=True)
class Validation:
    """Options of the evaluation of a fleet during training; the best weights of each model are kept.

    Args:
        rows: Held-out rows for each model.
        monitor: Function that computes the monitored values, [models], from the output of a step; lower is better.
            For example `hard_distortion` or `current_loss`.
        every: Number of epochs between evaluations, a single value or one per model; the last epoch is always
            evaluated.
        patience: Number of epochs without improvement after which a model stops; None trains all models to the end.
    """

    rows: FleetData
    monitor: Callable[[StepOutput], Tensor] = hard_distortion
    every: int | Sequence[int] = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_rows("Validation", "rows", self.rows)
        check_unweighted("Validation", "rows", self.rows, "Pass them to the monitor: WeightedDistortion(weights).")
        checks.check_callable("Validation", "monitor", self.monitor, "torchmcl_fleet.hard_distortion")
        for every in set(per_model("every", self.every, self.rows.n_models, owner="Validation")):
            checks.check_positive_int("Validation", "every", every)
        if self.patience is not None:
            checks.check_positive_int("Validation", "patience", self.patience)


@dataclass(frozen=True)
class Checkpointing:
    """Options of checkpoints, from which the same training run resumes.

    Args:
        folder: Folder that stores the checkpoints of the training run.
        every: Number of epochs between saves; `torchmcl.io.stop_on_signals` saves at once.
        keep: Number of checkpoints to keep; if the newest is damaged, the previous one is used.
        key: Name of the training run, required if a cost, a monitor, a source of rows or a module contains a lambda, a
            nested function or a partial: another process cannot recognize them. Change the key with the function.
    """

    folder: str | Path
    every: int = 100
    keep: int = 2
    key: str | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if not isinstance(self.folder, str | Path):
            raise TypeError(bad_value("Checkpointing", "folder", "be a path", repr(self.folder)))
        checks.check_positive_int("Checkpointing", "every", self.every)
        checks.check_positive_int("Checkpointing", "keep", self.keep)
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(bad_value("Checkpointing", "key", "be a string", repr(self.key)))


def per_model(name: str, value: Any, n_models: int, owner: str = "Fleet") -> list[Any]:
    """Return one value per model, from a single value, a sequence, an array or a tensor.

    Raises:
        TypeError: For a string.
        ValueError: For a sequence of the wrong length, or an array of several axes.
    """
    if isinstance(value, str | bytes):
        raise TypeError(bad_value(owner, name, "be a single value or one per model", repr(value)))
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim > 1:
            raise ValueError(bad_value(owner, name, "have a single axis of models", f"shape {tuple(value.shape)}"))
        value = value.tolist()
    if not isinstance(value, Sequence):
        return [plain_number(value)] * n_models
    if len(value) != n_models:
        rule = f"have one entry for each of the {n_models} models"
        raise ValueError(bad_value(owner, name, rule, f"{len(value)} entries"))
    return [plain_number(entry) for entry in value]


def plain_number(value: Any) -> Any:
    """Return a NumPy or torch number as a Python number, other values unchanged."""
    return value.item() if isinstance(value, np.generic | Tensor) and value.ndim == 0 else value


def seeds_of(seeds: Sequence[int] | None, n_models: int) -> list[int]:
    """Return one seed per model: 0, 1, 2, ... by default.

    Raises:
        TypeError: For a seed that is not an integer.
        ValueError: For a seed that does not fit into 64 bits.
    """
    values = per_model("seeds", range(n_models) if seeds is None else seeds, n_models)
    for seed in values:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(bad_value("Fleet", "seeds", "be integers", repr(seed)))
        if not -(2**63) <= seed < 2**63:
            raise ValueError(bad_value("Fleet", "seeds", "lie between -2**63 and 2**63 - 1", repr(seed)))
    return values


def moments_of(state: Mapping[str, Tensor] | None, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Check and return the initial state of the optimizer; empty if there is none.

    Args:
        state: State to start from; None for a new one.
        like: State of the optimizer before its first step.

    Raises:
        ValueError: If the names or shapes of the states differ.
    """
    moments = dict(state or {})
    shapes, expected = ({name: tuple(v.shape) for name, v in tensors.items()} for tensors in (moments, like))
    if moments and shapes != expected:
        rule = f"be used with an `optimizer_state` of the shapes {expected}"
        raise ValueError(bad_value("Fleet.fit", "continued", rule, shapes, "Set it to None to start anew."))
    return moments


def check_rows(owner: str, name: str, rows: object) -> None:
    """Check that rows are `FleetData`."""
    if not isinstance(rows, FleetData):
        advice = "Create it with FleetData.shared(inputs, targets, n_models)."
        raise TypeError(bad_value(owner, name, "be FleetData", type(rows).__name__, advice))


def check_unweighted(owner: str, name: str, rows: FleetData, advice: str) -> None:
    """Check that rows have no weights, where these would not count."""
    if rows.weights is not None:
        raise ValueError(bad_value(owner, name, "have no weights", tuple(rows.weights.shape), advice))


def check_data(owner: str, name: str, data: object, n_models: int) -> None:
    """Check that data is `FleetData` for `n_models` models."""
    check_rows(owner, name, data)
    assert isinstance(data, FleetData)
    if data.n_models != n_models:
        raise ValueError(bad_value(owner, name, f"be for {n_models} models", data.n_models))


_MIN_BATCH, _MAX_BATCH, _BATCH_PER_ROOT = 64, 1024, 3


def default_batch_size(n_rows: int) -> int:
    """Return 3 sqrt(n_rows), clipped to [64, 1024]: small tables need more steps, large ones need speed.

    Example:
        >>> [default_batch_size(n_rows) for n_rows in (100, 10_000, 1_000_000)]
        [64, 300, 1024]
    """
    return max(_MIN_BATCH, min(_MAX_BATCH, round(_BATCH_PER_ROOT * math.sqrt(n_rows))))


def batch_rows(owner: str, batch_size: int | Literal["all"] | None, n_rows: int) -> int:
    """Return the batch size: about `default_batch_size` by default, and at most the number of rows."""
    if batch_size is None:
        return _even(n_rows, default_batch_size(n_rows))
    if isinstance(batch_size, str) and batch_size == "all":
        return n_rows
    checks.check_positive_int(owner, "batch_size", batch_size, "Use 'all' for all rows.")
    return min(batch_size, n_rows)


def even_batch_size(n_rows: int, at_most: int) -> int:
    """Return a batch size without a small remainder: the last batch has at least 3/4 of the size of the others.

    A last batch of a few rows has a gradient far larger than the optimizer expects.

    Args:
        n_rows: Number of rows.
        at_most: Largest number of rows per batch.

    Example:
        >>> even_batch_size(1027, 256)  # instead of four times 256 and then 3
        206
    """
    checks.check_positive_int("even_batch_size", "n_rows", n_rows)
    checks.check_positive_int("even_batch_size", "at_most", at_most)
    return _even(n_rows, at_most)


def _even(n_rows: int, at_most: int) -> int:
    evenly = math.ceil(n_rows / math.ceil(n_rows / at_most))
    return next(size for size in range(evenly, 0, -1) if n_rows % size == 0 or 4 * (n_rows % size) >= 3 * size)
