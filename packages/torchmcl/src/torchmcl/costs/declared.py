"""Declarations of costs: properties that cannot be derived from the values of a cost.

`declare_cost` attaches them to a function, `cost_declaration` looks them up for any cost. An undeclared cost works
wherever only its values are needed: `mcl_step` then infers the axes of a target from the shapes, `reduce` moves
hypotheses to means only where that helps, and no kernel replaces the function.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchmcl.checks import check_boolean, check_event_pair, check_leading_axes, check_tensor
from torchmcl.costs.distances import wide_dtype
from torchmcl.dispatch import broadcast_shapes
from torchmcl.errors import bad_value
from torchmcl.types import Batch, Distributions, Predictions

__all__ = [
    "MEAN",
    "MEDIAN",
    "MEDIAN_OF_LAST_STEP",
    "MEDIAN_OF_STEPS",
    "Aligned",
    "Center",
    "CostDeclaration",
    "NormFormula",
    "NormalMixtureFormula",
    "aligned_events",
    "aligned_mask",
    "aligned_pair",
    "axes_of_a_target",
    "call_cost",
    "check_takes_mask",
    "cost_declaration",
    "declare_cost",
    "flattened",
    "needs",
    "step_weights",
    "with_targets_axis",
]

# Steps of Weiszfeld's algorithm; it runs inside several rounds of Lloyd's algorithm.
_WEISZFELD_STEPS = 8


@dataclass(frozen=True)
class Center:
    """Center of a group of points under a cost.

    Args:
        from_means: Function of the events [rows, hypotheses, ...], their weights in each group [rows, groups,
            hypotheses] and the means of the groups [rows, groups, ...] that returns better centers in the shape of the
            means. None if no center is better than the mean.
    """

    from_means: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None


def _median(events: Tensor, weights: Tensor, means: Tensor) -> Tensor:
    return _weiszfeld(events.flatten(2).unsqueeze(2), weights, means.flatten(2).unsqueeze(2)).view_as(means)


def _median_of_last_step(events: Tensor, weights: Tensor, means: Tensor) -> Tensor:
    last = _weiszfeld(events[..., -1:, :], weights, means[..., -1:, :])
    return torch.cat([means[..., :-1, :], last], dim=-2)


def _weiszfeld(events: Tensor, weights: Tensor, centers: Tensor) -> Tensor:
    """Return the geometric median of each group at each step by Weiszfeld's algorithm.

    Args:
        events: Points, [rows, hypotheses, steps, dim].
        weights: Weights of the points, [rows, groups, hypotheses].
        centers: Initial centers, [rows, groups, steps, dim].
    """
    wide = wide_dtype(events)
    points = events.transpose(1, 2).to(wide)  # [rows, steps, hypotheses, dim]
    weights, centers = weights.unsqueeze(1).to(wide), centers.transpose(1, 2).to(wide)
    # A tolerance per row, so that its result does not depend on the size of other rows.
    tiny = torch.finfo(wide).eps * points.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    for _ in range(_WEISZFELD_STEPS):
        distances = torch.cdist(centers, points, compute_mode="donot_use_mm_for_euclid_dist")
        pulls = weights / distances.maximum(tiny)  # [rows, steps, groups, hypotheses]
        total = pulls.sum(dim=-1, keepdim=True)
        centers = torch.where(total > 0, pulls @ points / total.clamp_min(1e-30), centers)
    return centers.transpose(1, 2).to(events)


#: Mean, for squared distances.
MEAN = Center()
#: Geometric median, for the distance over all axes of an event.
MEDIAN = Center(_median)
#: Geometric median at each step, for the mean distance over steps.
MEDIAN_OF_STEPS = Center(_weiszfeld)
#: Geometric median at the last step, means before it.
MEDIAN_OF_LAST_STEP = Center(_median_of_last_step)


F = TypeVar("F", bound=Callable[..., Any])

# Optional parameters of a cost besides `hypotheses` and `targets`.
_EXTRAS = ("mask", "scale", "score_logits", "event_dims")


@dataclass(frozen=True)
class NormFormula:
    """Closed form: power of the norm of hypothesis - target, over all axes of an event.

    Args:
        order: Order of the norm, 1 or 2.
        power: Power of the norm.
        mean_over_steps: Whether the cost is divided by the length of the first axis of an event.
    """

    order: int
    power: int = 1
    mean_over_steps: bool = False

    @property
    def is_squared_distance(self) -> bool:
        """Whether the cost is the squared Euclidean distance or a multiple of it."""
        return self.order == self.power == 2


@dataclass(frozen=True)
class NormalMixtureFormula:
    """Closed form: negative log-likelihood of a mixture of normal hypotheses plus a multiple of its CRPS.

    Args:
        crps: Weight of the CRPS.
    """

    crps: float


@dataclass(frozen=True)
class CostDeclaration:
    """Declared properties of a cost; the defaults mean unknown.

    Attributes:
        event_dims: Number of axes of one hypothesis; `...` for any number.
        target_dims: Number of axes of one target; by default that of a hypothesis, one fewer for class ids.
        center: Point of lowest cost of a weighted group of hypotheses.
        formula: Closed form of the cost, which selects kernels that replace the function.
        needs: Arguments of the cost among `mask`, `scale`, `score_logits` and `event_dims`; by default those among the
            names of its parameters.
        owner: Function that was declared; a wrapper may copy the attribute but compute something else.
    """

    event_dims: int | EllipsisType | None = None
    target_dims: int | None = None
    center: Center | None = None
    formula: NormFormula | NormalMixtureFormula | None = None
    needs: tuple[str, ...] = ()
    owner: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("event_dims", "target_dims"):
            if getattr(self, name) not in (None, ..., *range(8)):
                rule = "be a number of axes from 0 to 7"
                raise ValueError(bad_value("CostDeclaration", name, rule, repr(getattr(self, name))))
        if unknown := set(self.needs) - set(_EXTRAS):
            raise ValueError(bad_value("CostDeclaration", "needs", f"be among {_EXTRAS}", sorted(unknown)))


def declare_cost(
    *,
    event_dims: int | EllipsisType | None = None,
    target_dims: int | None = None,
    center: Center | None = None,
    formula: NormFormula | NormalMixtureFormula | None = None,
) -> Callable[[F], F]:
    """Return a decorator that attaches a `CostDeclaration` to a cost, as the attribute `declaration`.

    A class of costs defines an attribute or a property of this name instead.

    Args:
        event_dims: Number of axes of one hypothesis; `...` for any number.
        target_dims: Number of axes of one target; by default that of a hypothesis, one fewer for class ids.
        center: Center of a group, such as `MEAN` or `MEDIAN`.
        formula: Closed form of the cost, if it has one; kernels for it then replace the function.

    Example:
        >>> import torch
        >>> @declare_cost(event_dims=1, formula=NormFormula(order=1))
        ... def city_block(*, hypotheses, targets):
        ...     return (hypotheses.unsqueeze(-3) - targets.unsqueeze(-2)).abs().sum(dim=-1)
        >>> cost_declaration(city_block).formula
        NormFormula(order=1, power=1, mean_over_steps=False)
    """

    def declare(function: F) -> F:
        needed = _needs_of(function)
        declared = CostDeclaration(event_dims, target_dims, center, formula, needed, owner=function)
        function.declaration = declared  # type: ignore[attr-defined]
        return function

    return declare


def cost_declaration(cost_fn: Callable[..., Tensor]) -> CostDeclaration:
    """Return the declaration of a cost, including the arguments that it accepts.

    A `functools.partial` or a wrapper has the axes of its function, but may compute another formula.

    Example:
        >>> from torchmcl import pairwise_ade
        >>> cost_declaration(pairwise_ade).event_dims, cost_declaration(pairwise_ade).needs
        (2, ('mask',))
    """
    attached = getattr(cost_fn, "declaration", None)
    if isinstance(attached, CostDeclaration) and attached.owner is cost_fn:
        return attached
    return _read(cost_fn)


def needs(cost_fn: Callable[..., Tensor]) -> tuple[str, ...]:
    """Return the arguments that a cost accepts among `mask`, `scale`, `score_logits` and `event_dims`."""
    return cost_declaration(cost_fn).needs


def axes_of_a_target(cost_fn: Callable[..., Tensor], event_dims: int) -> int | None:
    """Return the number of axes of a target for hypotheses with `event_dims` axes; None if it is not declared."""
    declared = cost_declaration(cost_fn)
    if declared.event_dims not in (..., event_dims):
        return None
    return event_dims if declared.target_dims is None else declared.target_dims


# Attribute set by `torch.compiler.assume_constant_result`, without importing the compiler, which takes two seconds. The
# compiler does not trace the methods of a declaration.
needs._dynamo_marked_constant = True  # type: ignore[attr-defined]
axes_of_a_target._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _read(cost_fn: Callable[..., Tensor]) -> CostDeclaration:
    if isinstance(cost_fn, functools.partial):
        inner = cost_declaration(cost_fn.func)
        left = tuple(name for name in inner.needs if name not in cost_fn.keywords)
        return replace(inner, center=None, formula=None, needs=left)
    attached = getattr(cost_fn, "declaration", None)
    declared = attached if isinstance(attached, CostDeclaration) else CostDeclaration()
    if declared.owner is not None:  # copied by `functools.wraps`
        return replace(declared, center=None, formula=None, needs=_needs_of(cost_fn), owner=None)
    return declared if declared.needs else replace(declared, needs=_needs_of(cost_fn))


def _needs_of(cost_fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the optional parameters that a function has."""
    try:
        names = inspect.signature(cost_fn).parameters.keys()
    except (TypeError, ValueError):  # built-in functions have no readable signature
        return ()
    return tuple(name for name in _EXTRAS if name in names)


def with_targets_axis(
    owner: str, batch: Batch, hypotheses: Tensor, cost_fn: Callable[..., Tensor], event_dims: int = 1
) -> tuple[Tensor, Tensor | None]:
    """Return targets and mask with an axis of targets, which is added if the batch has one target per sample.

    Args:
        owner: Name of the caller in messages.
        batch: Batch with targets [..., targets, *event] or [..., *event], or class ids [..., targets] or [...]; the
            mask may lack the axis of targets if the targets do.
        hypotheses: Hypotheses, [..., hypotheses, *event], with the same leading axes.
        cost_fn: Cost function, whose declaration states the number of axes of a target. Without a declaration, a target
            has the axes of an event, and integer targets are class ids.
        event_dims: Number of axes of one hypothesis.

    Raises:
        ValueError: If the axis is missing and its position is ambiguous.
    """
    targets, mask, leading = batch.targets, batch.mask, hypotheses.shape[: -event_dims - 1]
    if not isinstance(targets, Tensor):
        check_tensor(owner, "targets", targets)
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
    """Insert an axis of targets into the mask if it has none."""
    if mask is None or tuple(mask.shape[len(leading) :]) != tuple(event[: mask.ndim - len(leading)]):
        return mask
    return mask.unsqueeze(len(leading))


def aligned_pair(owner: str, hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Check vectors, and return them with equal leading axes in a common dtype of at least single precision."""
    if isinstance(hypotheses, Tensor) and isinstance(targets, Tensor) and hypotheses.ndim >= 2:
        same_type = hypotheses.dtype == targets.dtype and hypotheses.dtype in (torch.float32, torch.float64)
        same_shape = hypotheses.shape[:-2] == targets.shape[:-2] and hypotheses.shape[-1] == targets.shape[-1]
        if same_type and same_shape:
            return hypotheses, targets
    check_event_pair(owner, hypotheses, targets)
    dtype = torch.promote_types(torch.promote_types(hypotheses.dtype, targets.dtype), torch.float32)
    hypotheses, targets = hypotheses.to(dtype), targets.to(dtype)
    if hypotheses.shape[:-2] != targets.shape[:-2]:
        leading = broadcast_shapes(hypotheses.shape[:-2], targets.shape[:-2])
        hypotheses = hypotheses.expand(*leading, *hypotheses.shape[-2:])
        targets = targets.expand(*leading, *targets.shape[-2:])
    return hypotheses, targets


def call_cost(
    owner: str,
    argument: str,
    cost_fn: Callable[..., Tensor],
    predictions: Predictions | Distributions,
    targets: Tensor,
    mask: Tensor | None,
    event_dims: int,
) -> Tensor:
    """Compute the cost of predictions, [..., targets, hypotheses], and check its shape.

    Args:
        owner: Name of the caller in messages.
        argument: Name of the argument `cost_fn` in messages.
        cost_fn: Cost function.
        predictions: Hypotheses, score logits and scales.
        targets: Targets, [..., targets, *event].
        mask: Valid steps of each target, or None.
        event_dims: Number of axes of one hypothesis.
    """
    hypotheses, logits = predictions.hypotheses, predictions.score_logits
    extras = needs(cost_fn)
    if mask is not None:
        check_takes_mask(owner, argument, cost_fn)
    if "score_logits" in extras and logits is None:
        rule = "return score logits for a cost that requires them"
        raise ValueError(bad_value(owner, "model", rule, f"none for {_name(cost_fn)}", "Use a head with scores=True."))
    keywords: dict[str, Any] = {}
    if extras:
        scale = predictions.scale if isinstance(predictions, Distributions) else None
        values = {"mask": mask, "scale": scale, "score_logits": logits, "event_dims": event_dims}
        keywords = {name: values[name] for name in extras}
    try:
        cost = cost_fn(hypotheses=hypotheses, targets=targets, **keywords)
    except TypeError as error:
        if "unexpected keyword argument 'hypotheses'" not in str(error):
            raise
        rule, advice = "take `hypotheses` and `targets` by keyword", "Wrap a loss of one pair in torchmcl.Pairwise."
        raise TypeError(bad_value(owner, argument, rule, _name(cost_fn), advice)) from error
    n_leading = hypotheses.ndim - event_dims - 1
    event = hypotheses.shape[n_leading + 1 :]
    if targets.shape[n_leading + 1 :] != event and axes_of_a_target(cost_fn, event_dims) == event_dims:
        _check_not_broadcast(owner, targets, event)
    shape = (*targets.shape[: n_leading + 1], hypotheses.shape[n_leading])
    if targets.shape[:n_leading] != hypotheses.shape[:n_leading]:
        shape = _shape_of_pairs(owner, hypotheses, targets, event_dims)
    if isinstance(cost, Tensor) and cost.shape == shape:
        return cost
    # A cost of all hypotheses together, the likelihood of a mixture for example, also requires their scores.
    takes_all = logits is None or "score_logits" in extras
    if not (takes_all and isinstance(cost, Tensor) and cost.shape == (*shape[:-1], 1)):
        rule = f"return a cost [..., targets, hypotheses] of shape {shape} for targets {tuple(targets.shape)}"
        got = tuple(cost.shape) if isinstance(cost, Tensor) else type(cost).__name__
        advice = "`torchmcl.Pairwise(loss)` makes a cost from a loss of one pair."
        if event_dims > 1:
            advice += " Paths need a cost of sequences, pairwise_sq_ade for example."
        raise ValueError(bad_value(owner, argument, rule, f"{got} from {_name(cost_fn)}", advice))
    return cost


def _check_not_broadcast(owner: str, targets: Tensor, event: Sequence[int]) -> None:
    """Check that targets and hypotheses of different shapes have not been broadcast within a cost."""
    sizes = targets.shape[-len(event) :]
    if event and all(t == h or 1 in (t, h) for t, h in zip(sizes, event, strict=True)):
        rule = f"end with the shape of one hypothesis, {tuple(event)}"
        advice = "If such targets are intended, declare their number of axes: target_dims=0 for single numbers."
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape), advice))


def _shape_of_pairs(owner: str, hypotheses: Tensor, targets: Tensor, event_dims: int) -> tuple[int, ...]:
    """Return the shape [..., targets, hypotheses] that a cost must have.

    Another shape means that the samples of a batch were broadcast against each other.
    """
    n_leading = hypotheses.ndim - event_dims - 1
    leading, others = hypotheses.shape[:n_leading], targets.shape[:n_leading]
    if targets.ndim <= n_leading or any(t not in (1, h) and h != 1 for h, t in zip(leading, others, strict=True)):
        rule = f"have shape [batch, targets, ...] with the batch of `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    both = (h if t == 1 else t for h, t in zip(leading, others, strict=True))
    return (*both, targets.shape[n_leading], hypotheses.shape[n_leading])


def check_takes_mask(owner: str, argument: str, cost_fn: Callable[..., Tensor]) -> None:
    """Check that a cost accepts a step mask, which it must not ignore."""
    if "mask" not in needs(cost_fn):
        rule = "accept `mask` for a batch with a step mask"
        advice = "pairwise_ade, pairwise_gaussian_nll and other costs of sequences accept it."
        raise ValueError(bad_value(owner, argument, rule, _name(cost_fn), advice))


def _name(cost_fn: Callable[..., Tensor]) -> str:
    return getattr(cost_fn, "__name__", repr(cost_fn))


class Aligned(NamedTuple):
    """Hypotheses and targets with the same leading axes.

    Attributes:
        hypotheses: Hypotheses, [..., hypotheses, *event], in at least single precision.
        targets: Targets, [..., targets, *event]; 0 where masked.
        mask: Valid steps, [..., targets, *steps], or None; `steps` are the first axes of an event, or all of them.
    """

    hypotheses: Tensor
    targets: Tensor
    mask: Tensor | None


def aligned_events(
    owner: str,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None,
    event_dims: int,
    *,
    ids: bool = False,
    whole_steps: bool = False,
) -> Aligned:
    """Check hypotheses and targets, and return them with the same leading axes.

    Args:
        owner: Name of the caller in messages.
        hypotheses: Hypotheses, [..., hypotheses, *event].
        targets: Targets, [..., targets, *event]; class ids lack the last axis.
        mask: Valid steps, [..., targets, *steps], or None.
        event_dims: Number of axes of one hypothesis.
        ids: Whether the targets are class ids.
        whole_steps: Whether the mask must have exactly one axis of steps, because a distance needs all coordinates of a
            step.
    """
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets, floating=not ids)
    target_dims = event_dims - ids
    names = ", ".join({1: ["dim"], 2: ["steps", "dim"]}.get(event_dims, [f"{event_dims} axes of an event"]))
    for argument, value, dims in (("hypotheses", hypotheses, event_dims), ("targets", targets, target_dims)):
        if value.ndim < dims + 1:
            rule = f"have shape [..., {argument}, {names if dims == event_dims else 'steps'}]"
            advice = "A batch of single targets has an axis of length 1 for them: targets.unsqueeze(1)."
            raise ValueError(bad_value(owner, argument, rule, tuple(value.shape), advice))
    event = hypotheses.shape[-event_dims:] if not ids else hypotheses.shape[-event_dims:-1]
    if event != targets.shape[targets.ndim - target_dims :]:
        rule = f"end with the shape of one event, {tuple(event)}, as `hypotheses` {tuple(hypotheses.shape)} do"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    left, right = hypotheses.shape[: -event_dims - 1], targets.shape[: targets.ndim - target_dims - 1]
    check_leading_axes(owner, hypotheses, targets, left, right)
    leading = broadcast_shapes(left, right)
    dtype = torch.promote_types(hypotheses.dtype, torch.float32)
    if not ids:
        dtype = torch.promote_types(dtype, targets.dtype)
        targets = targets.to(dtype)
    hypotheses = hypotheses.to(dtype).expand(*leading, *hypotheses.shape[-event_dims - 1 :])
    targets = targets.expand(*leading, *targets.shape[targets.ndim - target_dims - 1 :])
    if mask is None:
        return Aligned(hypotheses, targets, None)
    mask = aligned_mask(owner, mask, targets, target_dims, whole_steps=whole_steps)
    padded = ~mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim))
    return Aligned(hypotheses, targets.masked_fill(padded, 0), mask)


def aligned_mask(owner: str, mask: Tensor, targets: Tensor, target_dims: int, *, whole_steps: bool = False) -> Tensor:
    """Check the shape of a mask, and expand it to the leading axes of the targets."""
    check_boolean(owner, "mask", mask)
    n_leading = targets.ndim - target_dims
    shape = targets.shape[: n_leading + 1 if whole_steps else max(mask.ndim, n_leading + 1)]
    if mask.ndim != len(shape) or any(m not in (1, t) for m, t in zip(mask.shape, shape, strict=True)):
        rule = f"have shape {tuple(targets.shape[: n_leading + 1])} ([..., targets, steps])"
        raise ValueError(bad_value(owner, "mask", rule, tuple(mask.shape), "True marks a valid step."))
    return mask.expand(shape)


def step_weights(mask: Tensor | None, shape: torch.Size, like: Tensor) -> Tensor:
    """Return 1 / (number of valid steps) at each valid step and 0 elsewhere, [..., targets, steps]."""
    if mask is None:
        return like.new_full((), 1 / max(shape[-1], 1)).expand(shape)
    return mask.to(like.dtype) / mask.sum(dim=-1, keepdim=True).clamp_min(1)


def n_valid_steps(mask: Tensor | None, targets: Tensor, event_dims: int) -> Tensor | int:
    """Return the number of steps with a valid coordinate, at least 1, [..., targets, 1]; a vector is one step.

    Args:
        mask: Valid steps or coordinates, [..., targets, *steps], or None.
        targets: Targets, [..., targets, *event].
        event_dims: Number of axes of one target.
    """
    if event_dims == 1:
        return 1
    first = targets.ndim - event_dims
    if mask is None:
        return max(targets.shape[first], 1)
    return mask.unsqueeze(-1).flatten(first + 1).any(dim=-1).sum(dim=-1, keepdim=True).clamp_min(1)


def flattened(formula: Callable[..., Tensor], *tensors: tuple[Tensor | None, int]) -> Tensor:
    """Evaluate a formula on tensors whose leading axes are merged into one.

    Args:
        formula: Function of the tensors with a single leading axis, which the result has too.
        tensors: Pairs of a tensor (or None) and the number of its axes that belong to one sample.
    """
    first, n_axes = tensors[0]
    assert first is not None
    leading = first.shape[: first.ndim - n_axes]
    flat = [None if t is None else t.reshape(leading.numel(), *t.shape[t.ndim - n :]) for t, n in tensors]
    result = formula(*flat)
    return result.reshape(*leading, *result.shape[1:])
