"""Declared properties of a cost, for parts of the package that need more than its values.

`declares` attaches them to a function, `declaration` looks them up for any cost. An undeclared cost works wherever only
its values are needed: `mcl_step` then infers the axes of a target from the shapes, `reduce` moves hypotheses to means
only where that helps, and no kernel replaces the function.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchmcl.checks import bad_value
from torchmcl.costs.distances import wide_dtype
from torchmcl.types import Batch

# Steps of Weiszfeld's algorithm; it runs inside several rounds of Lloyd's algorithm.
_WEISZFELD_STEPS = 8


@dataclass(frozen=True)
class Centre:
    """The center of a group under a cost.

    Args:
        from_means: a function of events [rows, hypotheses, ...], the weight of each in each group [rows, groups,
            hypotheses] and the means of the groups [rows, groups, ...], that returns better centers of the shape of
            the means. None where no center is better than the mean.
    """

    from_means: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None


def _median(events: Tensor, shares: Tensor, means: Tensor) -> Tensor:
    return _weiszfeld(events.flatten(2).unsqueeze(2), shares, means.flatten(2).unsqueeze(2)).view_as(means)


def _median_of_last_step(events: Tensor, shares: Tensor, means: Tensor) -> Tensor:
    last = _weiszfeld(events[..., -1:, :], shares, means[..., -1:, :])
    return torch.cat([means[..., :-1, :], last], dim=-2)


def _weiszfeld(events: Tensor, shares: Tensor, centres: Tensor) -> Tensor:
    """Return the geometric median of each group at each step by Weiszfeld's algorithm.

    Args:
        events: [rows, hypotheses, steps, dim]
        shares: [rows, groups, hypotheses]
        centres: [rows, groups, steps, dim], where to start.
    """
    wide = wide_dtype(events)
    points = events.transpose(1, 2).to(wide)  # [rows, steps, hypotheses, dim]
    shares, centres = shares.unsqueeze(1).to(wide), centres.transpose(1, 2).to(wide)
    # Separately for each row: its result must not depend on the size of other rows.
    tiny = torch.finfo(wide).eps * points.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    for _ in range(_WEISZFELD_STEPS):
        distances = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist")
        pulls = shares / distances.maximum(tiny)  # [rows, steps, groups, hypotheses]
        total = pulls.sum(dim=-1, keepdim=True)
        centres = torch.where(total > 0, pulls @ points / total.clamp_min(1e-30), centres)
    return centres.transpose(1, 2).to(events)


#: The mean, for squared distances.
MEAN = Centre()
#: The geometric median, for the distance over all axes of an event.
MEDIAN = Centre(_median)
#: The geometric median at each step, for the mean distance over steps.
MEDIAN_OF_STEPS = Centre(_weiszfeld)
#: The geometric median at the last step, means before it.
MEDIAN_OF_LAST_STEP = Centre(_median_of_last_step)


F = TypeVar("F", bound=Callable[..., Any])

# The optional parameters of a cost besides `hypotheses` and `targets`.
_EXTRAS = ("mask", "scale", "score_logits", "event_dims")


@dataclass(frozen=True)
class Norm:
    """A closed form: a power of the norm of hypothesis - target, over all axes of an event.

    Args:
        order: of the norm, 1 or 2.
        power: of the norm.
        mean_over_steps: divided by the length of the first axis of an event.
    """

    order: int
    power: int = 1
    mean_over_steps: bool = False

    @property
    def is_squared_distance(self) -> bool:
        """Whether the cost is the squared Euclidean distance or a multiple of it."""
        return self.order == self.power == 2


@dataclass(frozen=True)
class NormalMixture:
    """A closed form: the negative log-likelihood of a mixture of normal hypotheses plus a multiple of its CRPS.

    Args:
        crps: the weight of the CRPS.
    """

    crps: float


@dataclass(frozen=True)
class CostDeclaration:
    """The declared properties of a cost; the defaults mean unknown.

    Attributes:
        event_dims: axes of one hypothesis; `...` for any number.
        target_dims: axes of one target; those of a hypothesis by default, one fewer for class ids.
        centre: where a weighted group of hypotheses has the lowest cost.
        formula: its closed form, by which kernels are selected; they replace the function.
        needs: which of `mask`, `scale`, `score_logits` and `event_dims` it takes; by default those among the names of
            its parameters.
    """

    event_dims: int | EllipsisType | None = None
    target_dims: int | None = None
    centre: Centre | None = None
    formula: Norm | NormalMixture | None = None
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        for field in ("event_dims", "target_dims"):
            if getattr(self, field) not in (None, ..., *range(8)):
                rule = "be a small number of axes >= 0"
                raise ValueError(bad_value("CostDeclaration", field, rule, repr(getattr(self, field))))
        if unknown := set(self.needs) - set(_EXTRAS):
            raise ValueError(bad_value("CostDeclaration", "needs", f"be among {_EXTRAS}", sorted(unknown)))


def declares(
    *,
    event_dims: int | EllipsisType | None = None,
    target_dims: int | None = None,
    centre: Centre | None = None,
    formula: Norm | NormalMixture | None = None,
) -> Callable[[F], F]:
    """Return a decorator that attaches a `CostDeclaration` to a cost, as the attribute `declaration`.

    A class of costs has an attribute or a property of this name instead.

    Args:
        event_dims: axes of one hypothesis; `...` for any number.
        target_dims: axes of one target; those of a hypothesis by default, one fewer for class ids.
        centre: `MEAN`, `MEDIAN` or another `Centre`.
        formula: the closed form that the cost computes, if it has one; kernels for it then replace the function.

    Example:
        >>> import torch
        >>> @declares(event_dims=1, formula=Norm(order=1))
        ... def city_block(*, hypotheses, targets):
        ...     return (hypotheses.unsqueeze(-3) - targets.unsqueeze(-2)).abs().sum(dim=-1)
        >>> declaration(city_block).formula
        Norm(order=1, power=1, mean_over_steps=False)
    """

    def declare(function: F) -> F:
        function.declaration = CostDeclaration(event_dims, target_dims, centre, formula)  # type: ignore[attr-defined]
        return function

    return declare


def declaration(cost_fn: Callable[..., Tensor]) -> CostDeclaration:
    """Return the declaration of a cost, with `needs` filled in.

    A `functools.partial` and a wrapper keep the axes of their function; they may change the formula and the center.

    Example:
        >>> from torchmcl import pairwise_ade
        >>> declaration(pairwise_ade).event_dims, declaration(pairwise_ade).needs
        (2, ('mask',))
    """
    try:
        if cost_fn in _KNOWN:
            return _KNOWN[cost_fn]
    except TypeError:  # not hashable, or without weak references
        return _read(cost_fn)
    return _KNOWN.setdefault(cost_fn, _read(cost_fn))


def needs(cost_fn: Callable[..., Tensor]) -> tuple[str, ...]:
    """Return which of `mask`, `scale`, `score_logits` and `event_dims` a cost takes."""
    return declaration(cost_fn).needs


def axes_of_a_target(cost_fn: Callable[..., Tensor], event_dims: int) -> int | None:
    """Return the number of axes of a target, given that of the hypotheses; None if it is not declared."""
    declared = declaration(cost_fn)
    if declared.event_dims not in (..., event_dims):
        return None
    return event_dims if declared.target_dims is None else declared.target_dims


# The attribute set by `torch.compiler.assume_constant_result`, without the two seconds of importing the compiler: it
# follows plain values, not the methods of a declaration.
needs._dynamo_marked_constant = True  # type: ignore[attr-defined]
axes_of_a_target._dynamo_marked_constant = True  # type: ignore[attr-defined]


# Reading a signature takes as long as a small tensor operation, and every step needs it.
_KNOWN: WeakKeyDictionary[Callable[..., Tensor], CostDeclaration] = WeakKeyDictionary()


def _read(cost_fn: Callable[..., Tensor]) -> CostDeclaration:
    if isinstance(cost_fn, functools.partial):
        inner = declaration(cost_fn.func)
        left = tuple(name for name in inner.needs if name not in cost_fn.keywords)
        return replace(inner, centre=None, formula=None, needs=left)
    attached = getattr(cost_fn, "declaration", None)
    declared = attached if isinstance(attached, CostDeclaration) else CostDeclaration()
    wrapped = getattr(cost_fn, "__wrapped__", None)
    if wrapped is not None and attached is getattr(wrapped, "declaration", None):
        # Copied by `functools.wraps`: the wrapper may compute something else.
        declared = replace(declared, centre=None, formula=None)
    if declared.needs:
        return declared
    try:
        names = inspect.signature(cost_fn).parameters.keys()
    except (TypeError, ValueError):  # built-in functions have no readable signature
        return declared
    return replace(declared, needs=tuple(name for name in _EXTRAS if name in names))


def with_targets_axis(
    owner: str, batch: Batch, hypotheses: Tensor, cost_fn: Callable[..., Tensor], event_dims: int = 1
) -> tuple[Tensor, Tensor | None]:
    """Return targets and mask with an axis of targets, added if the batch has one target per sample.

    Args:
        owner: named in messages.
        batch: with targets [..., targets, *event] or [..., *event], or class ids [..., targets] or [...]; a mask may
            lack the axis where the targets do.
        hypotheses: [..., hypotheses, *event], with the same leading axes.
        cost_fn: declares how many axes a target has. Without a declaration, a target is an event; integer targets are
            the class ids of one.
        event_dims: axes of one hypothesis.

    Raises:
        ValueError: if the axis is missing and its position is ambiguous.
    """
    targets, mask, leading = batch.targets, batch.mask, hypotheses.shape[: -event_dims - 1]
    known = axes_of_a_target(cost_fn, event_dims)
    ids = not targets.is_floating_point() and targets.dtype != torch.bool
    n_axes = event_dims - ids if known is None else known
    if targets.ndim != len(leading) + n_axes:
        scalars = n_axes == 1 and targets.shape == leading and hypotheses.shape[-1] == 1
        return (targets[..., None, None], _with_axis(mask, leading, ())) if scalars else (targets, mask)
    if targets.shape[: len(leading)] != leading:
        return targets, mask  # the call of the cost reports the mismatched shape
    event = targets.shape[len(leading) :]
    if event != hypotheses.shape[-event_dims:][:n_axes]:
        if known is None:
            return targets, mask  # several targets, of fewer axes than a hypothesis
        if known == event_dims:
            raise ValueError(_unclear_axis(owner, targets, hypotheses, event_dims))
    return targets.unsqueeze(len(leading)), _with_axis(mask, leading, event)


def _unclear_axis(owner: str, targets: Tensor, hypotheses: Tensor, event_dims: int) -> str:
    names = "steps, dim" if event_dims > 1 else "dim"
    rule = f"have shape [batch, targets, {names}] or [batch, {names}] for `hypotheses` {tuple(hypotheses.shape)}"
    advice = "Add the missing axis: targets.unsqueeze(-1) for several targets of one dimension."
    return bad_value(owner, "targets", rule, tuple(targets.shape), advice)


def _with_axis(mask: Tensor | None, leading: Sequence[int], event: Sequence[int]) -> Tensor | None:
    """Return a mask with the axis of the targets, added if the mask fits targets without it."""
    if mask is None or tuple(mask.shape[len(leading) :]) != tuple(event[: mask.ndim - len(leading)]):
        return mask
    return mask.unsqueeze(len(leading))
