"""One assignment rule for each model of a fleet, applied in a few batched operations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import kernels
from torchmcl._checks import bad_value
from torchmcl.assignment import LOG2_E, WTA, AnnealedWTA, AssignmentRule, RelaxedWTA

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
        weights = [rule._assign(cost[rows], None if mask is None else mask[rows]) for rows, rule in self.parts]
        return torch.cat(weights)


_PER_TARGET = (WTA, RelaxedWTA, AnnealedWTA)


class RuleBuffers(NamedTuple):
    """What a captured epoch reads: the fields of each group, or all of them packed, with the table they come from."""

    groups: list[dict[str, Tensor]]
    packed: Tensor | None
    table: Tensor | None


class RuleTable:
    """The rules of all models at all epochs.

    Neighbouring models with the same kind of rule form a group; the fields of a group become one
    tensor with a value for each model, so that a hundred temperatures cost as much as one.
    """

    def __init__(self, rules: Sequence[AssignmentRule | RuleAt], n_epochs: int) -> None:
        self.n_epochs = n_epochs
        self._patterns: list[tuple[bool, ...]] | None = None
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
                for made in {id(r): r for r in group}.values():
                    _check_one_kind(made)
                names = _stackable(group[0][0])
                columns: dict[str, Tensor] = {}
                for name in names:
                    unique = {id(r): r for r in group}
                    values = {key: torch.tensor([float(getattr(x, name)) for x in r]) for key, r in unique.items()}
                    columns[name] = torch.stack([values[id(r)] for r in group], dim=1)  # [epochs, models]
                self.groups.append((slice(start, stop), group[0][0], columns))
                start = stop

    def check_hypotheses(self, n_hypotheses: int) -> None:
        """Check what a rule says of the number of hypotheses; afterwards its values are in tensors."""
        for _, rule, columns in self.groups:
            if "n" in columns:
                replace(rule, n=float(columns["n"].max()))._check_against(torch.empty(1, n_hypotheses))

    def pattern(self, epoch: int) -> tuple[bool, ...]:
        """Return for each group whether it is cold: all its temperatures 0, so that hard WTA serves."""
        if self._patterns is None:
            self._patterns = self._all_patterns()
        return self._patterns[epoch]

    def _all_patterns(self) -> list[tuple[bool, ...]]:
        cold = [
            ~columns["temperature"].any(dim=1) if "temperature" in columns else torch.zeros(self.n_epochs, dtype=torch.bool)
            for _, _, columns in self.groups
        ]
        return [tuple(row) for row in torch.stack(cold, dim=1).tolist()]

    def buffers(self, device: torch.device, dtype: torch.dtype = torch.float32) -> RuleBuffers:
        """Return tensors that `fill` writes an epoch's values into."""
        # What the kernels cannot serve (float64 models, say) reads the groups.
        if device.type == "cuda" and dtype == torch.float32 and all(type(rule) in _PER_TARGET for _, rule, _ in self.groups):
            table = self._packed().to(device)
            return RuleBuffers([{} for _ in self.groups], table[0].clone(), table)
        groups = [{name: column[0].to(device, copy=True) for name, column in columns.items()} for _, _, columns in self.groups]
        return RuleBuffers(groups, None, None)

    def fill(self, buffers: RuleBuffers, epoch: int) -> None:
        """Write the values of an epoch."""
        if buffers.packed is not None and buffers.table is not None:
            buffers.packed.copy_(buffers.table[epoch])
            return
        for (_, _, columns), group in zip(self.groups, buffers.groups, strict=True):
            for name, buffer in group.items():
                buffer.copy_(columns[name][epoch])

    def _packed(self) -> Tensor:
        """Return [epochs, 2, models]: exponent factors (0 for hard weights) and epsilons."""
        parts = []
        for rows, rule, columns in self.groups:
            zeros = torch.zeros(self.n_epochs, rows.stop - rows.start)
            temperature = columns.get("temperature", zeros) if isinstance(rule, AnnealedWTA) else zeros
            factor = (-LOG2_E / temperature).clamp(min=-torch.finfo(torch.float32).max)
            factor = torch.where(temperature > 0, factor, 0.0)
            parts.append(torch.stack([factor, columns.get("epsilon", zeros)], dim=1))
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


def _check_one_kind(rules: list[AssignmentRule]) -> None:
    for epoch, rule in enumerate(rules):
        if _kind(rule) != _kind(rules[0]):
            advice = "Let a field change, for example annealed(RelaxedWTA(0.5), epsilon=...)."
            got = f"{rules[0]!r} at epoch 0 and {rule!r} at epoch {epoch}"
            raise ValueError(bad_value("Fleet", "rules", "keep their kind during a training", got, advice))


def _stackable(rule: AssignmentRule) -> list[str]:
    return [field.name for field in fields(rule) if "Tensor" in str(field.type)]


def _kind(rule: AssignmentRule) -> tuple[Any, ...]:
    names = _stackable(rule)
    fixed = tuple(getattr(rule, field.name) for field in fields(rule) if field.name not in names)
    return (type(rule), *fixed)
