"""Checks of user-supplied tensors and numbers, and their error messages.

Shapes, types and Python numbers are always checked. The contents of a tensor cannot be read without waiting for the
device, so they are checked only inside `with debug_checks():`, or if the caller waits anyway (`always=True`).
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, get_args

import torch
from torch import Tensor

from torchmcl.dispatch import count_debug_checks, debug_checks_enabled
from torchmcl.errors import bad_value

__all__ = [
    "Bounds",
    "Fraction",
    "NonNegative",
    "OneOf",
    "Positive",
    "Value",
    "available_device",
    "check_boolean",
    "check_callable",
    "check_choice",
    "check_class_ids",
    "check_cost",
    "check_event_pair",
    "check_finite",
    "check_fraction",
    "check_interval",
    "check_leading_axes",
    "check_mask",
    "check_non_negative",
    "check_non_negative_int",
    "check_positive",
    "check_positive_int",
    "check_real",
    "check_sample_weights",
    "check_shape",
    "check_tensor",
    "debug_checks",
    "device_of",
]

# The largest integer that a tensor can hold.
_LARGEST_INT = 2**63 - 1


@contextmanager
def debug_checks() -> Iterator[None]:
    """Also check the contents of tensors, at the price of device synchronization.

    Without it a NaN or infinite cost gives a NaN loss; inside it, an error names the first invalid index. It applies
    to the whole process, and has no effect inside `torch.compile` and `torch.vmap`, where values cannot be read.

    Example:
        >>> import torchmcl as mcl
        >>> with debug_checks():
        ...     mcl.assign(torch.tensor([[0.5, float("nan")]]), mcl.WTA())
        Traceback (most recent call last):
        ValueError: assign: `cost` must be finite, got nan at index (0, 1). Look at the step that made it.
    """
    count_debug_checks(1)
    try:
        yield
    finally:
        count_debug_checks(-1)


@dataclass(frozen=True)
class Bounds:
    """Interval of a number, or of the numbers in a tensor; declared with a field, ``Annotated[float, Bounds(0)]``.

    Attributes:
        low: Smallest allowed value.
        high: Largest allowed value.
        open_low: Whether `low` itself is excluded.
        open_high: Whether `high` itself is excluded.
        integer: Whether the number must be an integer.
        advice: Sentence that is added to the message.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    integer: bool = False
    advice: str = ""

    def __call__(self, owner: str, name: str, value: Any, advice: str = "", *, always: bool = False) -> None:
        """Check a number, or a tensor of numbers.

        Args:
            owner: Function named in messages.
            name: Name of the argument.
            value: Number or tensor. The values of a tensor are read inside `debug_checks` only.
            advice: Sentence that is added to the message, by default the one of the interval.
            always: Whether to read the values of a tensor in any case.

        Raises:
            TypeError: If it is not a number, or not an integer where one is required.
            ValueError: If it lies outside of the interval.
        """
        advice = advice or self.advice
        if isinstance(value, Tensor) and not self.integer:
            if debug_checks_enabled(always=always):
                _raise_at_first(owner, name, value, ~self._holds(value), self._rule(), advice)
            return
        if self.integer:
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(bad_value(owner, name, "be an integer", repr(value), advice))
        elif type(value) is not float or value != value:
            _check_number(owner, name, value)
        if not self._holds(value):
            raise ValueError(bad_value(owner, name, self._rule(), repr(value), advice))
        if self.integer and value > _LARGEST_INT:
            raise ValueError(bad_value(owner, name, f"be at most {_LARGEST_INT}", "a longer number", advice))

    def _holds(self, value: Any) -> Any:
        above = value > self.low if self.open_low else value >= self.low
        return above & (value < self.high if self.open_high else value <= self.high)

    def _rule(self) -> str:
        if self.low == -math.inf and self.high == math.inf:
            return "be a number"
        if self.high == math.inf:
            return f"be {'>' if self.open_low else '>='} {self.low:g}{' and finite' if self.open_high else ''}"
        return f"lie in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"


check_real = Bounds()
check_positive = Bounds(low=0, open_low=True)
check_non_negative = Bounds(low=0)
check_fraction = Bounds(low=0, high=1)
check_positive_int = Bounds(low=1, integer=True)
check_non_negative_int = Bounds(low=0, integer=True)


@dataclass(frozen=True, init=False)
class OneOf:
    """Choice among texts; declared with a field, ``Annotated[str, OneOf("mean", "sum")]``."""

    choices: tuple[str, ...]

    def __init__(self, *choices: str) -> None:
        object.__setattr__(self, "choices", choices)

    def __call__(self, owner: str, name: str, value: Any) -> None:
        """Check that the value is one of the choices."""
        check_choice(owner, name, value, self.choices)


NonNegative = Annotated[float | Tensor, Bounds(low=0)]
Positive = Annotated[float | Tensor, Bounds(low=0, open_low=True)]
Fraction = Annotated[float | Tensor, Bounds(low=0, high=1)]


class Value:
    """Base class of frozen dataclasses whose fields are checked by the `Bounds` or `OneOf` in their annotations.

    Example:
        >>> @dataclass(frozen=True)
        ... class Noise(Value):
        ...     scale: Positive
        >>> Noise(scale=-1.0)
        Traceback (most recent call last):
        ...
        ValueError: Noise: `scale` must be > 0, got -1.0.
    """

    #: Name in messages, by default that of the class.
    _owner: ClassVar[str] = ""
    _checks: ClassVar[Mapping[str, tuple[Callable[[str, str, Any], None], bool]]] = MappingProxyType({})

    def __init_subclass__(cls, **options: Any) -> None:
        """Collect the checks of the fields; a field whose type includes None may be None."""
        super().__init_subclass__(**options)
        own = {
            name: (check, type(None) in get_args(hint.__origin__))
            for name, hint in inspect.get_annotations(cls).items()
            for check in getattr(hint, "__metadata__", ())
        }
        cls._checks = MappingProxyType({**cls._checks, **own})

    def __post_init__(self) -> None:
        """Check every field."""
        for name, (check, is_optional) in self._checks.items():
            value = getattr(self, name)
            if value is not None or not is_optional:
                check(self._owner or type(self).__name__, name, value)


def check_tensor(owner: str, argument: str, value: Any, *, floating: bool = True) -> None:
    """Check that `value` is a tensor, by default a floating-point one."""
    if not isinstance(value, Tensor):
        raise TypeError(bad_value(owner, argument, "be a torch.Tensor", type(value).__name__))
    if floating and not value.is_floating_point():
        advice = f"Convert it first: {argument}.float()."
        raise TypeError(bad_value(owner, argument, "be a floating tensor", value.dtype, advice))


def check_cost(owner: str, cost: Any) -> None:
    """Check the type and the axes of a pairwise cost [..., targets, hypotheses]."""
    check_tensor(owner, "cost", cost)
    if cost.ndim < 2 or cost.shape[-1] < 1:
        advice = "Any function torchmcl.pairwise_* gives this shape."
        rule = "have shape [..., targets, hypotheses] with at least one hypothesis"
        raise ValueError(bad_value(owner, "cost", rule, tuple(cost.shape), advice))


def check_mask(owner: str, mask: Any, shape: torch.Size) -> None:
    """Check that `mask` is boolean, True for a valid target, and broadcasts to `shape`."""
    check_boolean(owner, "mask", mask)
    if not _broadcasts_to(mask.shape, shape):
        rule = f"have shape {tuple(shape)} ([..., targets]) or broadcast to it"
        raise ValueError(bad_value(owner, "mask", rule, tuple(mask.shape)))


def check_sample_weights(owner: str, weights: Any, shape: torch.Size) -> None:
    """Check that `weights` is a tensor of numbers that broadcasts to the samples."""
    check_tensor(owner, "sample_weights", weights, floating=False)
    if weights.dtype == torch.bool or weights.is_complex():
        rule = "be a tensor of numbers"
        raise TypeError(bad_value(owner, "sample_weights", rule, weights.dtype, "Convert it first: .float()."))
    if not _broadcasts_to(weights.shape, shape):
        rule = f"have shape {tuple(shape)}, one weight for each sample, or broadcast to it"
        raise ValueError(bad_value(owner, "sample_weights", rule, tuple(weights.shape)))


def check_boolean(owner: str, argument: str, value: Any) -> None:
    """Check that `value` is a boolean tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(bad_value(owner, argument, "be a torch.Tensor", type(value).__name__))
    if value.dtype != torch.bool:
        advice = f"True marks a valid target; convert it first: {argument}.bool()."
        raise TypeError(bad_value(owner, argument, "be a boolean tensor", value.dtype, advice))


def check_event_pair(owner: str, hypotheses: Any, targets: Any) -> None:
    """Check hypotheses [..., hypotheses, dim] against targets [..., targets, dim]."""
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets)
    for argument, value in (("hypotheses", hypotheses), ("targets", targets)):
        if value.ndim < 2:
            rule = f"have shape [..., {argument}, dim]"
            advice = f"Add the missing axis: {argument}.unsqueeze(-1) for scalars."
            raise ValueError(bad_value(owner, argument, rule, tuple(value.shape), advice))
    if hypotheses.shape[-1] != targets.shape[-1]:
        rule = f"have the same last axis as `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    check_leading_axes(owner, hypotheses, targets, hypotheses.shape[:-2], targets.shape[:-2])


def check_leading_axes(owner: str, hypotheses: Tensor, targets: Tensor, left: torch.Size, right: torch.Size) -> None:
    """Check that the leading axes `left` of the hypotheses and `right` of the targets broadcast."""
    for a, b in zip(reversed(left), reversed(right), strict=False):
        if a != b and a != 1 and b != 1:
            rule = f"have leading axes that broadcast with those of `hypotheses` {tuple(hypotheses.shape)}"
            advice = "A batch of single targets is [batch, 1, dim]: targets.unsqueeze(-2)."
            raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape), advice))


def check_shape(owner: str, argument: str, value: Tensor, shape: tuple[int, ...], axes: str) -> None:
    """Check the shape of a tensor whose axes are named `axes`."""
    if tuple(value.shape) != tuple(shape):
        raise ValueError(bad_value(owner, argument, f"have shape {tuple(shape)} ({axes})", tuple(value.shape)))


def _check_number(owner: str, argument: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(bad_value(owner, argument, "be a number", repr(value)))
    if value != value:
        raise ValueError(bad_value(owner, argument, "be a number", repr(value)))
    try:
        float(value)
    except OverflowError:
        raise ValueError(bad_value(owner, argument, "be a number below 1.8e308", "a longer one")) from None


def check_interval(owner: str, argument: str, value: Any, interval: str, advice: str = "") -> None:
    """Check that a number lies in an interval from 0 to 1: "[0, 1)", "(0, 1)" or "(0, 1]"."""
    Bounds(0, 1, open_low=interval[0] == "(", open_high=interval[-1] == ")")(owner, argument, value, advice)


def check_choice(owner: str, argument: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(bad_value(owner, argument, f"be one of {', '.join(map(repr, choices))}", repr(value)))


def device_of(owner: str, value: Any) -> torch.device:
    """Return the device with the given name, whether or not it is available."""
    try:
        return torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        rule = "name a device, 'cpu' or 'cuda' for example"
        raise ValueError(bad_value(owner, "device", rule, repr(value))) from error


def available_device(owner: str, value: Any) -> torch.device:
    """Return the device with the given name; it must be available."""
    device = device_of(owner, value)
    n_devices = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= n_devices:
        advice = f"This machine has {n_devices} CUDA devices." if n_devices else "This machine has no CUDA device."
        raise ValueError(bad_value(owner, "device", "be available", repr(value), advice))
    return device


def check_class_ids(owner: str, ids: Tensor, n_classes: int) -> None:
    """Check that targets are integers, and inside `debug_checks` that they are ids of classes."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        rule = "contain integer class ids"
        raise TypeError(bad_value(owner, "targets", rule, ids.dtype, "Convert them first: targets.long()."))
    if debug_checks_enabled():
        _raise_at_first(owner, "targets", ids, (ids < 0) | (ids >= n_classes), f"lie between 0 and {n_classes - 1}", "")


def check_callable(owner: str, argument: str, value: Any, example: str) -> None:
    """Check that `value` is callable."""
    if not callable(value):
        advice = f"For example {example}."
        raise TypeError(bad_value(owner, argument, "be callable", repr(value), advice))


def check_finite(
    owner: str,
    argument: str,
    value: Tensor,
    real: Tensor | None = None,
    *,
    always: bool = False,
    advice: str = "Look at the step that made it.",
) -> None:
    """Raise an error at the first NaN or infinity; by default, only inside `debug_checks`.

    Args:
        owner: Name of the caller in messages.
        argument: Name of the tensor in messages.
        value: Floating-point tensor.
        real: Valid entries, in a shape that broadcasts to that of `value`.
        always: Whether to read the values outside of `debug_checks` too.
        advice: Sentence that is added to the message.
    """
    if not debug_checks_enabled(always=always):
        return
    offends = ~value.detach().isfinite()
    rule = "be finite"
    if real is not None:
        offends, rule = offends & real, "be finite for valid targets"
    _raise_at_first(owner, argument, value, offends, rule, advice)


def _raise_at_first(owner: str, argument: str, value: Tensor, offends: Tensor, rule: str, advice: str) -> None:
    if offends.any():
        index = tuple(offends.nonzero()[0].tolist())
        raise ValueError(bad_value(owner, argument, rule, f"{value[index].item()} at index {index}", advice))


def _broadcasts_to(shape: torch.Size, goal: torch.Size) -> bool:
    if len(shape) > len(goal):
        return False
    return all(s in (g, 1) for s, g in zip(reversed(shape), reversed(goal), strict=False))
