"""One assignment rule for each model of a fleet, applied in a few batched operations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import kernels
from torchmcl._checks import bad_value
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.assignment import LOG2_E, WTA, AnnealedWTA, AssignmentRule, RelaxedWTA
from torchmcl.schedules import AnnealedRule

__all__ = ["RuleTable", "StackedRule"]

RuleAt = Callable[[float], AssignmentRule]


@dataclass(frozen=True, eq=False)
class StackedRule(AssignmentRule):
    """Several rules, each for its own rows of the leading model axis.

    Attributes:
        parts: (models, rule) pairs that cover the axis in order.
        packed: [2, models], exponent factor and epsilon of each model, where all rules are of the kind that one
            GPU kernel serves whatever their mixture.
    """

    parts: tuple[tuple[slice, AssignmentRule], ...]
    packed: Tensor | None = None

    def _assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        if self.packed is not None and kernels.usable(cost):
            from torchmcl.kernels.rows import mixed_rows

            return mixed_rows(cost, self.packed[0], self.packed[1])
        weights = torch.empty_like(cost)  # in the memory order of the cost, which torch.cat would not keep
        for rows, rule in self.parts:
            weights[rows] = rule._assign(cost[rows], None if mask is None else mask[rows])
        return weights


_PER_TARGET = (WTA, RelaxedWTA, AnnealedWTA)


class RuleBuffers(NamedTuple):
    """What a captured epoch reads: the fields of each group, or all of them packed, with the table they come from."""

    rows: list[slice]  # the models of each group
    groups: list[dict[str, Tensor]]
    packed: Tensor | None = None
    table: Tensor | None = None
    by_model: Tensor | None = None  # [2, models], temperatures and epsilons that the groups are views of

    def read(self, epoch: Tensor) -> None:
        """Take the packed values of an epoch, given as a tensor [1], from the table."""
        if self.packed is not None and self.table is not None:
            torch.index_select(self.table, 0, epoch, out=self.packed.unsqueeze(0))

    def set_temperatures(self, chosen: Tensor, temperature: Tensor) -> None:
        """Write the temperatures of those models that decide on them in training, both given for all models."""
        if self.packed is not None:
            self.packed[0].copy_(torch.where(chosen, _exponent_factor(temperature), self.packed[0]))
            return
        for own, group in zip(self.rows, self.groups, strict=True):
            if "temperature" in group:
                held = group["temperature"]
                held.copy_(torch.where(chosen[own], temperature[own].to(held), held))


class RuleTable:
    """The rules of all models at all epochs.

    Neighbouring models with the same kind of rule form a group; the fields of a group become one
    tensor with a value for each model, so that a hundred temperatures cost as much as one.
    """

    def __init__(self, rules: Sequence[AssignmentRule | RuleAt], n_epochs: int) -> None:
        self.n_epochs = n_epochs
        self._patterns: list[tuple[bool, ...]] | None = None
        unique = {id(rule): rule for rule in rules}
        courses_by_id = {key: _Course(rule, n_epochs) for key, rule in unique.items()}
        courses = [courses_by_id[id(rule)] for rule in rules]
        self.groups: list[tuple[slice, AssignmentRule, dict[str, Tensor]]] = []
        start = 0
        for stop in range(1, len(courses) + 1):
            if stop == len(courses) or courses[stop].kind != courses[start].kind:
                group = courses[start:stop]
                columns = {  # [epochs, models]
                    name: torch.stack([course.columns[name] for course in group], dim=1) for name in group[0].columns
                }
                self.groups.append((slice(start, stop), group[0].first, columns))
                start = stop

    @property
    def per_target(self) -> bool:
        """Whether every rule treats each target by itself and needs no sorting."""
        return all(type(rule) in _PER_TARGET for _, rule, _ in self.groups)

    def temperatures(self) -> Tensor:
        """Return the temperatures [epochs, models] that are known ahead; 0 for rules without."""
        columns = [
            columns.get("temperature", torch.zeros(self.n_epochs, rows.stop - rows.start, dtype=torch.float64))
            for rows, _, columns in self.groups
        ]
        return torch.cat(columns, dim=1)

    def check_hypotheses(self, n_hypotheses: int) -> None:
        """Check what a rule says of the number of hypotheses; afterwards its values are in tensors."""
        for _, rule, columns in self.groups:
            if "n" in columns:
                largest: dict[str, Any] = {"n": float(columns["n"].max())}
                replace(rule, **largest)._check_against(torch.empty(1, n_hypotheses))

    def pattern(self, buffers: RuleBuffers, epoch: int) -> tuple[bool, ...]:
        """Return for each group whether it is cold: all its temperatures 0, so that hard WTA serves."""
        if buffers.packed is not None:  # one kernel serves cold and warm alike
            return ()
        if self._patterns is None:
            self._patterns = self._all_patterns()
        return self._patterns[epoch]

    def _all_patterns(self) -> list[tuple[bool, ...]]:
        cold = [
            ~columns["temperature"].any(dim=1)
            if "temperature" in columns
            else torch.zeros(self.n_epochs, dtype=torch.bool)
            for _, _, columns in self.groups
        ]
        return [tuple(row) for row in torch.stack(cold, dim=1).tolist()]

    def buffers(self, device: torch.device, dtype: torch.dtype = torch.float32) -> RuleBuffers:
        """Return tensors that `fill` writes an epoch's values into."""
        models = [rows for rows, _, _ in self.groups]
        # What the kernels cannot serve (float64 models, say) reads the groups.
        if device.type == "cuda" and dtype == torch.float32 and self.per_target:
            table = self._packed().to(device)
            return RuleBuffers(models, [{} for _ in models], table[0].clone(), table)
        if self.per_target:
            by_model = torch.zeros(2, models[-1].stop, device=device, dtype=_precision(dtype))
            views = {"temperature": by_model[0], "epsilon": by_model[1]}
            groups = [{name: views[name][rows] for name in columns} for rows, _, columns in self.groups]
            return RuleBuffers(models, groups, by_model=by_model)
        groups = [
            {name: column[0].to(device, _precision(dtype), copy=True) for name, column in columns.items()}
            for _, _, columns in self.groups
        ]
        return RuleBuffers(models, groups)

    def fill(self, buffers: RuleBuffers, epoch: int) -> None:
        """Write the values of an epoch; packed ones are read from their table on the device."""
        for (_, _, columns), group in zip(self.groups, buffers.groups, strict=True):
            for name, buffer in group.items():
                buffer.copy_(columns[name][epoch])

    def _packed(self) -> Tensor:
        """Return [epochs, 2, models]: exponent factors (0 for hard weights) and epsilons."""
        parts = []
        for rows, rule, columns in self.groups:
            zeros = torch.zeros(self.n_epochs, rows.stop - rows.start)
            temperature = columns.get("temperature", zeros) if isinstance(rule, AnnealedWTA) else zeros
            epsilon = columns.get("epsilon", zeros).float()
            parts.append(torch.stack([_exponent_factor(temperature.float()), epsilon], dim=1))
        return torch.cat(parts, dim=-1)

    def rule(self, buffers: RuleBuffers, pattern: tuple[bool, ...], models: slice | None = None) -> StackedRule:
        """Return the rule that reads `buffers`, for all models or a slice of them."""
        if buffers.packed is not None:
            packed = buffers.packed if models is None else buffers.packed[:, models]
            return StackedRule((), packed)
        parts = []
        start = 0
        for (rows, rule, _), group, cold in zip(self.groups, buffers.groups, pattern, strict=True):
            low, high = (rows.start, rows.stop) if models is None else _overlap(rows, models)
            if low >= high:
                continue
            values: dict[str, Any] = {
                name: buffer[low - rows.start : high - rows.start].view(-1, 1, 1, 1) for name, buffer in group.items()
            }
            if cold:
                values["temperature"] = 0.0
            parts.append((slice(start, start + high - low), replace(rule, **values)))
            start += high - low
        return StackedRule(tuple(parts))


def _exponent_factor(temperature: Tensor) -> Tensor:
    """Return what a cost is multiplied by in an exponent of 2: below 0 for any positive temperature, else 0."""
    limits = torch.finfo(torch.float32)
    factor = (-LOG2_E / temperature).clamp(min=-limits.max, max=-limits.tiny)
    return torch.where(temperature > 0, factor, 0.0)


def _precision(dtype: torch.dtype) -> torch.dtype:
    """Return the type that values of rules are kept in: a half-precision temperature would round too much away."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _overlap(left: slice, right: slice) -> tuple[int, int]:
    return max(left.start, right.start), min(left.stop, right.stop)


def _rule_at(rule: AssignmentRule | RuleAt | AutoAnnealing, epoch: int) -> AssignmentRule:
    if isinstance(rule, AssignmentRule):
        return rule
    if isinstance(rule, AutoAnnealing):
        return AnnealedWTA(1.0)  # a place for the temperature, which the training decides
    made = rule(epoch)
    if not isinstance(made, AssignmentRule):
        advice = "For example annealed(AnnealedWTA(1.0), temperature=Linear(1.0, 0.0, 100))."
        raise TypeError(bad_value("Fleet", "rules", "be rules or functions step -> rule", repr(made), advice))
    return made


class _Course:
    """One rule through all epochs: its kind, and a column of values for each field that may change."""

    def __init__(self, rule: AssignmentRule | RuleAt, n_epochs: int) -> None:
        self.first = _rule_at(rule, 0)
        self.kind = _kind(self.first)
        names = _stackable(self.first)
        if isinstance(rule, AssignmentRule):
            values = {name: [float(getattr(rule, name))] * n_epochs for name in names}
        elif isinstance(rule, AnnealedRule) and {name for name, _ in rule.schedules} <= set(names):
            # The values without the rules around them; a rule of each extreme checks them all.
            values = {name: [float(getattr(self.first, name))] * n_epochs for name in names}
            for name, schedule in rule.schedules:
                values[name] = [float(schedule(epoch)) for epoch in range(n_epochs)]
                for extreme in (min(values[name]), max(values[name])):
                    replace(self.first, **{name: extreme})
        else:
            made = [_rule_at(rule, epoch) for epoch in range(n_epochs)]
            self._check_one_kind(made)
            values = {name: [float(getattr(one, name)) for one in made] for name in names}
        self.columns = {name: torch.tensor(column, dtype=torch.float64) for name, column in values.items()}

    def _check_one_kind(self, made: list[AssignmentRule]) -> None:
        for epoch, rule in enumerate(made):
            if _kind(rule) != self.kind:
                advice = "Let a field change, for example annealed(RelaxedWTA(0.5), epsilon=...)."
                got = f"{self.first!r} at epoch 0 and {rule!r} at epoch {epoch}"
                raise ValueError(bad_value("Fleet", "rules", "keep their kind during a training", got, advice))


def _stackable(rule: AssignmentRule) -> list[str]:
    return [field.name for field in fields(rule) if "Tensor" in str(field.type)]


def _kind(rule: AssignmentRule) -> tuple[Any, ...]:
    names = _stackable(rule)
    fixed = tuple(getattr(rule, field.name) for field in fields(rule) if field.name not in names)
    return (type(rule), *fixed)
