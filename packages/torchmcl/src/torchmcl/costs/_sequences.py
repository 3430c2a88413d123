"""Preparation shared by the costs of sequences: checks, one set of leading axes, weights of the steps."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_boolean, check_leading_axes, check_tensor
from torchmcl._eager import broadcast_shapes

__all__ = ["Aligned", "aligned_events", "aligned_mask", "flattened", "step_weights"]


class Aligned(NamedTuple):
    """Two sets of events with the same leading axes.

    Attributes:
        hypotheses: [..., hypotheses, *event], at least float32.
        targets: [..., targets, *event], 0 where masked.
        mask: [..., targets, *steps], or None; `steps` are the first axes of an event, or all of them.
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
    """Check two sets of events and return them with the same leading axes.

    Args:
        owner: named in messages.
        hypotheses: [..., hypotheses, *event]
        targets: [..., targets, *event]; class ids lack the last axis.
        mask: [..., targets, *steps], True where a step is real, or None.
        event_dims: axes of one hypothesis.
        ids: whether the targets are class ids.
        whole_steps: whether the mask has one axis of steps and no more, as a distance needs all coordinates of a step.
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
        rule = f"end in the axes of one event, {tuple(event)}, as `hypotheses` {tuple(hypotheses.shape)} do"
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
    """Return the mask with the leading axes of the targets, after a check of its shape."""
    check_boolean(owner, "mask", mask)
    n_leading = targets.ndim - target_dims
    shape = targets.shape[: n_leading + 1 if whole_steps else max(mask.ndim, n_leading + 1)]
    if mask.ndim != len(shape) or any(m not in (1, t) for m, t in zip(mask.shape, shape, strict=True)):
        rule = f"have shape {tuple(targets.shape[: n_leading + 1])} ([..., targets, steps])"
        raise ValueError(bad_value(owner, "mask", rule, tuple(mask.shape), "True marks a real step."))
    return mask.expand(shape)


def step_weights(mask: Tensor | None, shape: torch.Size, like: Tensor) -> Tensor:
    """Return 1 / (number of real steps) at each real step and 0 elsewhere, [..., targets, steps]; 0 without any."""
    if mask is None:
        return like.new_full((), 1 / max(shape[-1], 1)).expand(shape)
    return mask.to(like.dtype) / mask.sum(dim=-1, keepdim=True).clamp_min(1)


def flattened(formula: Callable[..., Tensor], *tensors: tuple[Tensor | None, int]) -> Tensor:
    """Return a formula of tensors with all leading axes merged into one.

    Args:
        formula: of the tensors with a single leading axis, which the result has too.
        tensors: pairs of a tensor (or None) and how many axes of it belong to one sample.
    """
    first, n_axes = tensors[0]
    assert first is not None
    leading = first.shape[: first.ndim - n_axes]
    flat = [None if t is None else t.reshape(leading.numel(), *t.shape[t.ndim - n :]) for t, n in tensors]
    result = formula(*flat)
    return result.reshape(*leading, *result.shape[1:])
