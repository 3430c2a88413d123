"""The plan of a training run: rule, temperature, learning rate and weight decay of each model at every epoch."""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

from torchmcl import WTA, AnnealedWTA, AssignmentRule, AutoAnnealing, RelaxedWTA, checks
from torchmcl.errors import bad_value
from torchmcl.rules.winners import softmin, winner_weights
from torchmcl.schedules import AnnealedRule, Schedule
from torchmcl_fleet.options import StepSpec, plain_number

RuleAt = Callable[[float], AssignmentRule]
# Rules that treat each target separately and differ only in a temperature and an epsilon.
_PER_TARGET = (WTA, RelaxedWTA, AnnealedWTA)


@dataclass(frozen=True, eq=False)
class StackedRule(AssignmentRule):
    """Several rules, each for a separate slice of the leading model axis.

    Attributes:
        parts: (models, rule) pairs that cover the axis in order.
    """

    parts: tuple[tuple[slice, AssignmentRule], ...]

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of each slice by its own rule."""
        weights = torch.empty_like(cost)  # in the memory order of the cost, which torch.cat would not keep
        for models, rule in self.parts:
            weights[models] = rule.weights(cost[models], None if mask is None else mask[models])
        return weights


@dataclass(frozen=True, eq=False)
class MixedRule(AssignmentRule):
    """WTA, Relaxed-WTA and annealed WTA side by side, one per model of the leading axis.

    Attributes:
        values: [2, models]: the temperatures, 0 for hard weights, and the epsilons of those.
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
    """A value per epoch and model: a few columns, and which of them each model has.

    A thousand models often share a handful of schedules. All their values are put together on the device that needs
    them: on the host this would take half as long as the training.
    """

    distinct: Tensor  # [epochs, columns]
    places: Tensor  # [models]

    @classmethod
    def of(cls, columns: dict[int, Tensor], keys: Sequence[int]) -> "Columns":
        """Return the columns of models, given one per key and the key of each model."""
        places = {key: place for place, key in enumerate(columns)}
        return cls(torch.stack(list(columns.values()), dim=1), torch.tensor([places[key] for key in keys]))

    def full(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the values [epochs, models]."""
        return self.distinct.to(device, dtype)[:, self.places.to(device)]

    def of_models(self, models: slice) -> "Columns":
        """Return the values of a slice of the models."""
        return Columns(self.distinct, self.places[models])


class _Group(NamedTuple):
    """Consecutive models with the same kind of rule, and the values of each of its fields."""

    models: slice
    first: AssignmentRule
    values: dict[str, Columns]


class RuleCourses:
    """The rules of all models at all epochs.

    All values of an epoch are a row of one table on the device, and the rules read them from one buffer: a captured
    epoch needs no data from the host, and a hundred temperatures are as cheap as one.

    Args:
        rules: one per model: a rule, a function epoch -> rule, or `AutoAnnealing`.
        n_epochs: of the training.
        device: of the models.
        dtype: of the models; values have at least single precision.
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
        self._device, self._dtype = device, torch.promote_types(dtype, torch.float32)

    def on(self, device: torch.device, dtype: torch.dtype) -> "RuleCourses":
        """Return a copy of the courses on a device, in a dtype, with separate current values."""
        moved = copy.copy(self)
        moved._device, moved._dtype = device, torch.promote_types(dtype, torch.float32)
        for name in ("table", "_current"):
            vars(moved).pop(name, None)
        return moved

    @cached_property
    def temperatures(self) -> Tensor:
        """[epochs, models] in double precision on the CPU, 0 for rules without a temperature."""
        return self._column("temperature", "cpu", torch.float64)

    @cached_property
    def table(self) -> Tensor:
        """A row per epoch; if all rules are `per_target`, the temperatures and then the epsilons of the models."""
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
        """Load the values of an epoch, given as a tensor [1]."""
        torch.index_select(self.table, 0, epoch, out=self._current.unsqueeze(0))

    def set_temperatures(self, chosen: Tensor, temperatures: Tensor) -> None:
        """Replace the temperatures of the models in `chosen`; both [models]."""
        for models, values in self._views("temperature"):
            values.copy_(torch.where(chosen[models], temperatures[models].to(values), values))

    @property
    def mixed_values(self) -> Tensor:
        """[2, models]: current temperatures and epsilons of rules that are all `per_target`."""
        return self._current.view(2, self.n_models)

    def rule(self, models: slice | None = None) -> AssignmentRule:
        """Return the current rule of all models or a slice of them; it reads the current values when it is called."""
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
    courses = {key: _course_of(rule, n_epochs) for key, rule in by_identity.items()}
    kinds = {key: _kind(first) for key, (first, _) in courses.items()}
    groups: list[_Group] = []
    start = 0
    of_model = [kinds[id(rule)] for rule in rules]
    for stop in range(1, len(rules) + 1):
        if stop == len(rules) or of_model[stop] != of_model[start]:
            own = [id(rule) for rule in rules[start:stop]]
            first, columns = courses[own[0]]
            keys = dict.fromkeys(own)
            values = {name: Columns.of({key: courses[key][1][name] for key in keys}, own) for name in columns}
            groups.append(_Group(slice(start, stop), first, values))
            start = stop
    return groups


def _course_of(rule: Any, n_epochs: int) -> tuple[AssignmentRule, dict[str, Tensor]]:
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
        for epoch, each in enumerate(by_epoch):
            if _kind(each) != _kind(first):
                advice = "Let a field change, for example annealed(RelaxedWTA, epsilon=...)."
                got = f"{first!r} at epoch 0 and {each!r} at epoch {epoch}"
                raise ValueError(bad_value("Fleet", "rule", "keep its kind during a training", got, advice))
        values = {name: [float(getattr(each, name)) for each in by_epoch] for name in names}
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
    """Return the fields that may be tensors, and so have a value per model."""
    types = get_type_hints(kind)
    return [field.name for field in fields(kind) if Tensor in get_args(types[field.name])]


def _kind(rule: AssignmentRule) -> tuple[Any, ...]:
    """Return the key of rules that can be stacked: the type and the fields that are not numbers."""
    names = _numeric_fields(type(rule))
    return (type(rule), *(getattr(rule, field.name) for field in fields(rule) if field.name not in names))


def rates_of(rates: Sequence[float | Schedule], n_epochs: int) -> Columns:
    """Return the learning rates."""
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
    """The training options of models; sequences and tensors have an entry per model."""

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
            return self  # with its cached courses
        return replace(
            self,
            rules=self.rules[models],
            learning_rates=self.learning_rates.of_models(models),
            weight_decays=self.weight_decays[models],
            seeds=self.seeds[models],
            validate_every=self.validate_every[models],
        )

    @cached_property
    def courses(self) -> RuleCourses:
        """The rules at all epochs, on the CPU."""
        return RuleCourses(self.rules, self.n_epochs)

    @property
    def policies(self) -> list[AutoAnnealing]:
        """The rules that set the temperature during training."""
        return [rule for rule in self.rules if isinstance(rule, AutoAnnealing)]
