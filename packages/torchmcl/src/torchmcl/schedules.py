"""Schedules: immutable functions of the step, and `annealed`, which applies them to the fields of a rule.

The paper's schedules, t counted in epochs:

- linear, T0 (1 - t / n): `Linear(T0, 0.0, n)`
- exponential with the cut-off of its UCI study: `Exponential(0.5, 0.95, cutoff=5e-4)`
- chunked linear, Eq. (43): `CutoffAt(Linear(T0, 0.0, t_max), t_max)`
- chunked exponential, Eq. (44): `CutoffAt(Exponential(T0, 0.9), t_max)`
"""

import math
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

from torchmcl.checks import check_callable, check_interval, check_non_negative, check_positive_int, check_real
from torchmcl.errors import bad_value
from torchmcl.rules.winners import AssignmentRule

__all__ = [
    "AnnealedRule",
    "Constant",
    "Cosine",
    "CutoffAt",
    "Exponential",
    "JoinedSchedule",
    "Linear",
    "Schedule",
    "annealed",
]

# A larger integer may not fit in a float; all schedules have ended by then.
_LARGEST_STEP = 2**63 - 1


@runtime_checkable
class Schedule(Protocol):
    """Any function from a step (0, 1, 2, ..., fractions allowed) to a value."""

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        ...


@dataclass(frozen=True)
class Constant:
    """Constant schedule.

    Example:
        >>> Constant(0.3)(0), Constant(0.3)(1000)
        (0.3, 0.3)
    """

    value: float

    def __post_init__(self) -> None:
        """Check the field."""
        check_real("Constant", "value", self.value)

    def __call__(self, step: float) -> float:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Linear:
    """Linear schedule from `start` to `end` in `n_steps` steps, constant afterwards.

    Example:
        >>> schedule = Linear(start=1.0, end=0.0, n_steps=4)
        >>> [schedule(step) for step in (0, 1, 3, 4, 5)]
        [1.0, 0.75, 0.25, 0.0, 0.0]
    """

    start: float
    end: float
    n_steps: int

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_ramp("Linear", self.start, self.end, self.n_steps)

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        return _between(self.start, self.end, _fraction(step, self.n_steps))


@dataclass(frozen=True)
class Cosine:
    """Cosine schedule from `start` to `end` in `n_steps` steps, flat at both ends and constant afterwards.

    Example:
        >>> schedule = Cosine(start=1.0, end=0.0, n_steps=4)
        >>> [round(schedule(step), 3) for step in (0, 1, 2, 3, 4, 5)]
        [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    start: float
    end: float
    n_steps: int

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_ramp("Cosine", self.start, self.end, self.n_steps)

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        return _between(self.start, self.end, (1 - math.cos(math.pi * _fraction(step, self.n_steps))) / 2)


@dataclass(frozen=True)
class Exponential:
    """Exponential schedule `start * decay ** step`, and 0 as soon as that is below `cutoff`.

    Example:
        >>> schedule = Exponential(start=0.5, decay=0.95, cutoff=5e-4)
        >>> [round(schedule(step), 6) for step in (0, 1, 134, 135)]
        [0.5, 0.475, 0.000518, 0.0]

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, T(t) = T0 rho^t of the
        UCI study, in which annealing ends below 5e-4.
    """

    start: float
    decay: float
    cutoff: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_non_negative("Exponential", "start", self.start)
        check_non_negative("Exponential", "cutoff", self.cutoff)
        if self.cutoff > self.start > 0:
            raise ValueError(bad_value("Exponential", "cutoff", f"be at most start = {self.start}", str(self.cutoff)))
        check_interval("Exponential", "decay", self.decay, "(0, 1]", "0.95 cools by 5 % a step.")

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        step = _checked(step)
        value = float(self.start * self.decay**step) if step > 0 else float(self.start)
        return value if value >= self.cutoff else 0.0


@dataclass(frozen=True)
class CutoffAt:
    """Schedule that equals another one before `step`, and 0 from then on.

    Example:
        >>> schedule = CutoffAt(Exponential(start=5.0, decay=0.9), step=2)
        >>> [schedule(step) for step in (0, 1, 2, 3)]
        [5.0, 4.5, 0.0, 0.0]

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, the indicator in
        Equations (43) and (44).
    """

    schedule: Schedule
    step: float

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("CutoffAt", "schedule", self.schedule, "CutoffAt(Linear(1.0, 0.0, 100), step=100)")
        check_non_negative("CutoffAt", "step", self.step)

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        return self.schedule(step) if _checked(step) < self.step else 0.0


@dataclass(frozen=True)
class JoinedSchedule:
    """Sequence of schedules, each of which counts its steps from its own beginning.

    Args:
        schedules: Schedules, one more than there are boundaries.
        boundaries: Steps at which the next schedule begins, in increasing order.

    Example:
        >>> schedule = JoinedSchedule((Constant(1.0), Linear(1.0, 0.0, 2)), boundaries=(10,))
        >>> [schedule(step) for step in (0, 9, 10, 11, 12)]
        [1.0, 1.0, 1.0, 0.5, 0.0]
    """

    schedules: tuple[Schedule, ...]
    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "schedules", tuple(self.schedules))
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        for schedule in self.schedules:
            check_callable(
                "JoinedSchedule", "schedules", schedule, "JoinedSchedule((Constant(1.0), Linear(1.0, 0.0, 9)), (10,))"
            )
        for boundary in self.boundaries:
            check_non_negative("JoinedSchedule", "boundaries", boundary)
            if math.isinf(boundary):
                raise ValueError(bad_value("JoinedSchedule", "boundaries", "be finite", repr(self.boundaries)))
        if len(self.schedules) != len(self.boundaries) + 1:
            rule = f"be one fewer than the {len(self.schedules)} schedules"
            raise ValueError(bad_value("JoinedSchedule", "boundaries", rule, repr(self.boundaries)))
        if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ValueError(bad_value("JoinedSchedule", "boundaries", "increase", repr(self.boundaries)))

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        step = _checked(step)
        begun = [0.0, *(boundary for boundary in self.boundaries if step >= boundary)]
        return self.schedules[len(begun) - 1](step - begun[-1])


@dataclass(frozen=True)
class AnnealedRule:
    """Function step -> rule whose fields follow schedules, created by `annealed`.

    It can be called inside a compiled function, which is then compiled once for each part of the schedule. Pass the
    step as an integer there: `torch.compile` may recompile for each new value of a float.

    Attributes:
        rule: Rule at step 0.
        schedules: Pairs of a field name and its schedule.
    """

    rule: AssignmentRule
    schedules: tuple[tuple[str, Schedule], ...]

    def __call__(self, step: float) -> AssignmentRule:
        """Return the rule at `step`."""
        return replace(self.rule, **self.values(step))

    def values(self, step: float) -> dict[str, float]:
        """Return the scheduled fields at `step`, to log or plot them."""
        return {name: schedule(step) for name, schedule in self.schedules}


def annealed(rule: type[AssignmentRule] | AssignmentRule, **values: Schedule | Any) -> AnnealedRule:
    """Return `step -> rule`, with the named fields of the rule taken from schedules.

    Args:
        rule: Class of rules, or a rule whose other fields are kept.
        **values: Schedules by field name, at least one; constant fields are given by their values.

    Raises:
        ValueError: If the rule has no such field, or none is scheduled.
        TypeError: If `rule` is not a rule, or a field without a default is missing.

    Example:
        >>> from torchmcl import AnnealedWTA, Sinkhorn, TopK
        >>> rule = annealed(AnnealedWTA, temperature=Exponential(0.5, 0.95, cutoff=5e-4))
        >>> rule(1)
        AnnealedWTA(temperature=0.475)
        >>> annealed(TopK, k=Linear(8, 1, 7))(3)
        TopK(k=5.0)
        >>> annealed(Sinkhorn, temperature=Linear(1.0, 0.0, 4), n_iters=20)(2)
        Sinkhorn(temperature=0.5, n_iters=20)
    """
    kind = rule if isinstance(rule, type) else type(rule)
    if not (is_dataclass(kind) and issubclass(kind, AssignmentRule)):
        advice = "For example annealed(AnnealedWTA, temperature=Linear(1.0, 0.0, 100))."
        raise TypeError(bad_value("annealed", "rule", "be an assignment rule or its class", repr(rule), advice))
    known = [field.name for field in fields(kind)]
    if unknown := sorted(values.keys() - set(known)):
        raise ValueError(f"annealed: {kind.__name__} has no field {unknown}; its fields are {known}.")
    schedules = {name: value for name, value in sorted(values.items()) if callable(value)}
    if not schedules:
        got = ", ".join(f"{name}={value!r}" for name, value in values.items()) or "none"
        advice = f"Give at least one of {known} a schedule, such as Linear(1.0, 0.0, 100)."
        raise ValueError(bad_value("annealed", "values", "contain a schedule", got, advice))
    first = values | {name: schedule(0) for name, schedule in schedules.items()}
    if not isinstance(rule, type):
        return AnnealedRule(replace(rule, **first), tuple(schedules.items()))
    required = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        example = f"annealed({kind.__name__}, {missing[0]}=...)"
        raise TypeError(f"annealed: {kind.__name__} needs a schedule or a value for {missing}, as in {example}.")
    return AnnealedRule(kind(**first), tuple(schedules.items()))


def _between(start: float, end: float, done: float) -> float:
    if done in (0.0, 1.0):  # exact at the ends, including infinite ones
        return end if done else start
    return (1 - done) * start + done * end


def _fraction(step: float, n_steps: int) -> float:
    # Comparisons, not min and max: torch.compile supports arithmetic on a step, and branches, but not those.
    step = _checked(step)
    if step <= 0:
        return 0.0
    return 1.0 if step >= n_steps else step / n_steps


def _checked(step: float) -> float:
    """Return a valid step; NaN, which passes comparisons, is an error."""
    if step != step:
        raise ValueError(bad_value("schedule", "step", "be a number", repr(step)))
    if isinstance(step, int) and abs(step) > _LARGEST_STEP:
        return math.inf if step > 0 else -math.inf
    return step


def _check_ramp(owner: str, start: Any, end: Any, n_steps: Any) -> None:
    check_real(owner, "start", start)
    check_real(owner, "end", end)
    if math.isinf(start) and math.isinf(end) and start != end:
        raise ValueError(bad_value(owner, "end", f"be reached from {start!r}", repr(end)))
    check_positive_int(owner, "n_steps", n_steps, "Use Constant for a value that does not change.")
