"""Schedules: small frozen values called with a step, and `annealed`, which applies them to a rule.

The paper's schedules, t counted in epochs:

- linear, T0 (1 - t / n): `Linear(T0, 0.0, n)`
- exponential with the cut-off of its UCI study: `Exponential(0.5, 0.95, floor=5e-4)`
- chunked linear, Eq. (43): `Until(Linear(T0, 0.0, t_max), t_max)`
- chunked exponential, Eq. (44): `Until(Exponential(T0, 0.9), t_max)`
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

from torchmcl._checks import bad_value, check_callable, check_non_negative, check_positive_int, check_real
from torchmcl.assignment import AssignmentRule

__all__ = [
    "AnnealedRule",
    "Constant",
    "Cosine",
    "Exponential",
    "Joined",
    "Linear",
    "Schedule",
    "TemperatureScheduler",
    "Until",
    "annealed",
]

# A longer integer may have no float; all schedules have ended by then.
_LARGEST_STEP = 2**63 - 1


@runtime_checkable
class Schedule(Protocol):
    """Anything that turns a step (0, 1, 2, ..., fractions allowed) into a value."""

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same value at every step.

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
    """From `start` to `end` in `n_steps` equal steps, then `end`.

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
        return _between(self.start, self.end, _share(step, self.n_steps))


@dataclass(frozen=True)
class Cosine:
    """From `start` to `end` along half a cosine in `n_steps`, flat at both ends, then `end`.

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
        return _between(self.start, self.end, (1 - math.cos(math.pi * _share(step, self.n_steps))) / 2)


@dataclass(frozen=True)
class Exponential:
    """`start * decay ** step`, and 0 once that is below `floor`.

    Example:
        >>> schedule = Exponential(start=0.5, decay=0.95, floor=5e-4)
        >>> [round(schedule(step), 6) for step in (0, 1, 134, 135)]
        [0.5, 0.475, 0.000518, 0.0]

    Reference:
        T(t) = T0 rho^t of the UCI study, which ends annealing below 5e-4.
    """

    start: float
    decay: float
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_non_negative("Exponential", "start", self.start)
        check_non_negative("Exponential", "floor", self.floor)
        check_real("Exponential", "decay", self.decay)
        if not 0 < self.decay <= 1:
            advice = "0.95 cools by 5 % a step."
            raise ValueError(bad_value("Exponential", "decay", "lie in (0, 1]", repr(self.decay), advice))

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        step = _checked(step)
        value = float(self.start * self.decay**step) if step > 0 else float(self.start)
        return value if value >= self.floor else 0.0


@dataclass(frozen=True)
class Until:
    """`schedule` before `step`, 0 from there on.

    Example:
        >>> schedule = Until(Exponential(start=5.0, decay=0.9), step=2)
        >>> [schedule(step) for step in (0, 1, 2, 3)]
        [5.0, 4.5, 0.0, 0.0]

    Reference:
        The indicator of Eq. (43) and (44).
    """

    schedule: Schedule
    step: float

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("Until", "schedule", self.schedule, "Until(Linear(1.0, 0.0, 100), step=100)")
        check_non_negative("Until", "step", self.step)

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        return self.schedule(step) if _checked(step) < self.step else 0.0


@dataclass(frozen=True)
class Joined:
    """Several schedules one after the other, each counting its steps from where it begins.

    Args:
        schedules: one more than there are boundaries.
        boundaries: increasing steps; at a boundary the next schedule has begun.

    Example:
        >>> schedule = Joined((Constant(1.0), Linear(1.0, 0.0, 2)), boundaries=(10,))
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
            check_callable("Joined", "schedules", schedule, "Joined((Constant(1.0), Linear(1.0, 0.0, 9)), (10,))")
        for boundary in self.boundaries:
            check_non_negative("Joined", "boundaries", boundary)
            if math.isinf(boundary):
                raise ValueError(bad_value("Joined", "boundaries", "be finite", repr(self.boundaries)))
        if len(self.schedules) != len(self.boundaries) + 1:
            rule = f"be one fewer than the {len(self.schedules)} schedules"
            raise ValueError(bad_value("Joined", "boundaries", rule, repr(self.boundaries)))
        if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ValueError(bad_value("Joined", "boundaries", "increase", repr(self.boundaries)))

    def __call__(self, step: float) -> float:
        """Return the value at `step`."""
        step = _checked(step)
        begun = [0.0, *(boundary for boundary in self.boundaries if step >= boundary)]
        return self.schedules[len(begun) - 1](step - begun[-1])


@dataclass(frozen=True)
class AnnealedRule:
    """A rule whose fields follow schedules; call it with a step. Made by `annealed`.

    It can be called inside a compiled function, which then serves all steps of a part of the schedule. Pass the step
    as an integer there: `torch.compile` may compile again for each new value of a float.
    """

    rule: AssignmentRule
    schedules: tuple[tuple[str, Schedule], ...]

    def __call__(self, step: float) -> AssignmentRule:
        """Return the rule at `step`."""
        return replace(self.rule, **{name: schedule(step) for name, schedule in self.schedules})

    def values(self, step: float) -> dict[str, float]:
        """Return the scheduled fields at `step`, to log or plot them."""
        return {name: schedule(step) for name, schedule in self.schedules}


def annealed(rule: AssignmentRule, **schedules: Schedule) -> AnnealedRule:
    """Return `step -> rule`, with the named fields of `rule` taken from schedules.

    Args:
        rule: any assignment rule; its scheduled fields are replaced.
        **schedules: field name = schedule, for any fields of the rule.

    Raises:
        ValueError: if the rule has no such field.
        TypeError: if `rule` is not a rule or a schedule cannot be called.

    Example:
        >>> from torchmcl import AnnealedWTA, TopN
        >>> rule_at = annealed(AnnealedWTA(0.5), temperature=Exponential(0.5, 0.95, floor=5e-4))
        >>> rule_at(1)
        AnnealedWTA(temperature=0.475)
        >>> annealed(TopN(8), n=Linear(8, 1, 7))(3)
        TopN(n=5.0)
    """
    if not is_dataclass(rule) or isinstance(rule, type) or not isinstance(rule, AssignmentRule):
        advice = "For example annealed(AnnealedWTA(1.0), temperature=Linear(1.0, 0.0, 100))."
        raise TypeError(bad_value("annealed", "rule", "be an assignment rule", repr(rule), advice))
    known = [field.name for field in fields(rule)]
    if unknown := sorted(schedules.keys() - set(known)):
        name = type(rule).__name__
        raise ValueError(f"annealed: {name} has no field {unknown}; its fields are {known}.")
    if not schedules:
        advice = f"Name at least one of {known}."
        raise ValueError(bad_value("annealed", "schedules", "not be empty", "none", advice))
    for name, schedule in schedules.items():
        check_callable("annealed", name, schedule, f"{name}=Linear(1.0, 0.0, 100)")
    return AnnealedRule(rule, tuple(sorted(schedules.items())))


class TemperatureScheduler:
    """Keep count of the steps of `rule_at`, as `torch.optim.lr_scheduler` does for learning rates.

    Args:
        rule_at: step -> rule, for example from `annealed`.

    Example:
        >>> from torchmcl import AnnealedWTA
        >>> scheduler = TemperatureScheduler(annealed(AnnealedWTA(1.0), temperature=Linear(1.0, 0.0, 2)))
        >>> for epoch in range(3):
        ...     print(scheduler.rule)
        ...     scheduler.step()
        AnnealedWTA(temperature=1.0)
        AnnealedWTA(temperature=0.5)
        AnnealedWTA(temperature=0.0)
    """

    def __init__(self, rule_at: Callable[[float], AssignmentRule]) -> None:
        check_callable("TemperatureScheduler", "rule_at", rule_at, "annealed(AnnealedWTA(1.0), temperature=...)")
        self.rule_at = rule_at
        self.n_steps = 0

    @property
    def rule(self) -> AssignmentRule:
        """The rule of the current step."""
        return self.rule_at(self.n_steps)

    def step(self) -> None:
        """Go on to the next step."""
        self.n_steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on later."""
        return {"n_steps": self.n_steps, "rule_at": repr(self.rule_at)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: if the state is not one of ours, or was saved under another schedule.
        """
        if set(state) != {"n_steps", "rule_at"}:
            rule = "have the keys ['n_steps', 'rule_at']"
            raise ValueError(bad_value("TemperatureScheduler", "state", rule, sorted(state)))
        if state["rule_at"] != repr(self.rule_at) and " at 0x" not in state["rule_at"]:
            rule = f"have been saved under the same schedule, {self.rule_at!r}"
            raise ValueError(bad_value("TemperatureScheduler", "state", rule, state["rule_at"]))
        if isinstance(state["n_steps"], bool) or not isinstance(state["n_steps"], int) or state["n_steps"] < 0:
            rule = "have a whole number n_steps >= 0"
            raise ValueError(bad_value("TemperatureScheduler", "state", rule, repr(state["n_steps"])))
        self.n_steps = state["n_steps"]


def _between(start: float, end: float, done: float) -> float:
    if done in (0.0, 1.0):  # the ends exactly, infinite ones too
        return end if done else start
    return (1 - done) * start + done * end


def _share(step: float, n_steps: int) -> float:
    # Comparisons, not min and max: torch.compile follows arithmetic on a step, and branches, but not those.
    step = _checked(step)
    if step <= 0:
        return 0.0
    return 1.0 if step >= n_steps else step / n_steps


def _checked(step: float) -> float:
    """Return a step that floats can follow; NaN, which comparisons let through, is refused."""
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
