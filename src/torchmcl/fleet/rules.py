"""One assignment rule for each model of a fleet, applied in a few batched operations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.assignment import AssignmentRule

__all__ = ["RuleTable", "StackedRule"]

RuleAt = Callable[[float], AssignmentRule]


@dataclass(frozen=True, eq=False)
class StackedRule(AssignmentRule):
    """Several rules, each for its own rows of the leading model axis.

    Attributes:
        parts: (models, rule) pairs that cover the axis in order.
    """

    parts: tuple[tuple[slice, AssignmentRule], ...]

    def _assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0][1]._assign(cost, mask)
        weights = [rule._assign(cost[rows], None if mask is None else mask[rows]) for rows, rule in self.parts]
        return torch.cat(weights)


class RuleTable:
    """The rules of all models at all epochs.

    Neighbouring models with the same kind of rule form a group; the fields of a group become one
    tensor with a value for each model, so that a hundred temperatures cost as much as one.
    """

    def __init__(self, rules: Sequence[AssignmentRule | RuleAt], n_epochs: int) -> None:
        cache: dict[int, list[AssignmentRule]] = {}
        by_model = []
        for rule in rules:
            if id(rule) not in cache:
                cache[id(rule)] = [_rule_at(rule, epoch) for epoch in range(n_epochs)]
            by_model.append(cache[id(rule)])
        self.groups: list[tuple[slice, AssignmentRule, dict[str, Tensor]]] = []
        start = 0
        for stop in range(1, len(by_model) + 1):
            if stop == len(by_model) or _kind(by_model[stop][0]) != _kind(by_model[start][0]):
                group = by_model[start:stop]
                names = _stackable(group[0][0])
                columns: dict[str, Tensor] = {}
                for name in names:
                    unique = {id(r): torch.tensor([float(getattr(x, name)) for x in r]) for r in group}
                    columns[name] = torch.stack([unique[id(r)] for r in group], dim=1)  # [epochs, models]
                self.groups.append((slice(start, stop), group[0][0], columns))
                start = stop

    def pattern(self, epoch: int) -> tuple[bool, ...]:
        """Return for each group whether it is cold: all its temperatures 0, so that hard WTA serves."""
        return tuple(
            "temperature" in columns and not columns["temperature"][epoch].any() for _, _, columns in self.groups
        )

    def buffers(self, device: torch.device) -> list[dict[str, Tensor]]:
        """Return tensors that `fill` writes an epoch's values into, one dictionary for each group."""
        return [{name: column[0].to(device).clone() for name, column in columns.items()} for _, _, columns in self.groups]

    def fill(self, buffers: list[dict[str, Tensor]], epoch: int) -> None:
        """Write the values of an epoch."""
        for (_, _, columns), group in zip(self.groups, buffers, strict=True):
            for name, buffer in group.items():
                buffer.copy_(columns[name][epoch], non_blocking=True)

    def rule(self, buffers: list[dict[str, Tensor]], pattern: tuple[bool, ...], models: slice | None = None) -> StackedRule:
        """Return the rule that reads `buffers`, for all models or a slice of them."""
        parts = []
        start = 0
        for (rows, rule, _), group, cold in zip(self.groups, buffers, pattern, strict=True):
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


def _overlap(left: slice, right: slice) -> tuple[int, int]:
    return max(left.start, right.start), min(left.stop, right.stop)


def _rule_at(rule: AssignmentRule | RuleAt, epoch: int) -> AssignmentRule:
    if isinstance(rule, AssignmentRule):
        return rule
    made = rule(epoch)
    if not isinstance(made, AssignmentRule):
        advice = "For example annealed(AnnealedWTA(1.0), temperature=Linear(1.0, 0.0, 100))."
        raise TypeError(bad_value("Fleet", "rules", "be rules or functions step -> rule", repr(made), advice))
    return made


def _stackable(rule: AssignmentRule) -> list[str]:
    return [field.name for field in fields(rule) if "Tensor" in str(field.type)]


def _kind(rule: AssignmentRule) -> tuple[Any, ...]:
    names = _stackable(rule)
    fixed = tuple(getattr(rule, field.name) for field in fields(rule) if field.name not in names)
    return (type(rule), *fixed)
