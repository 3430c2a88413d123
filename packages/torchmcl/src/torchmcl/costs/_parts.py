"""Shared parts of costs: calls with declared arguments, precision, leading axes, inner products, sequence steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_boolean, check_leading_axes, check_tensor
from torchmcl.costs.declared import needs
from torchmcl.costs.distances import wide_dtype, wide_products
from torchmcl.dispatch import broadcast_shapes, in_forward_mode, without_autocast
from torchmcl.types import Distributions, Predictions

# A vector with less energy than this counts as zero (a waveform as silence): gradients would overflow float32.
SILENCE = 1e-30


class InnerProducts(NamedTuple):
    """Inner products and squared lengths of two sets of vectors.

    Attributes:
        cross: [..., targets, hypotheses], the inner product of each pair.
        hypothesis_energy: [..., hypotheses], squared lengths.
        target_energy: [..., targets], squared lengths.
    """

    cross: Tensor
    hypothesis_energy: Tensor
    target_energy: Tensor


def inner_products(hypotheses: Tensor, targets: Tensor) -> InnerProducts:
    """Return the products of all pairs, accumulated in float64 if the device supports it."""
    if not in_forward_mode():
        return InnerProducts(*wide_products(hypotheses, targets))
    h, t = hypotheses.to(wide_dtype(hypotheses)), targets.to(wide_dtype(targets))
    with without_autocast(h):
        return InnerProducts(t @ h.mT, h.square().sum(dim=-1), t.square().sum(dim=-1))


def aligned_pair(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors in one dtype of at least float32, leading axes expanded to match."""
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
    """Return the cost [..., targets, hypotheses] of predictions.

    Args:
        owner: named in messages.
        argument: the name of `cost_fn` in messages.
        cost_fn: any `pairwise_*` function.
        predictions: hypotheses, score logits, scale.
        targets: [..., targets, *event]
        mask: of the steps of each target, or None.
        event_dims: axes of one hypothesis.
    """
    extras = needs(cost_fn)
    if mask is not None:
        check_takes_mask(owner, argument, cost_fn)
    if "score_logits" in extras and predictions.score_logits is None:
        rule = "return score logits for a cost that takes them"
        raise ValueError(bad_value(owner, "model", rule, f"none for {_name(cost_fn)}", "Use a head with scores=True."))
    available: dict[str, Any] = {
        "mask": mask,
        "scale": predictions.scale if isinstance(predictions, Distributions) else None,
        "score_logits": predictions.score_logits,
        "event_dims": event_dims,
    }
    given = {name: available[name] for name in extras}
    try:
        cost = cost_fn(hypotheses=predictions.hypotheses, targets=targets, **given)
    except TypeError as error:
        if "unexpected keyword argument 'hypotheses'" not in str(error):
            raise
        rule, advice = "take `hypotheses` and `targets` by keyword", "Wrap a loss of one pair in torchmcl.Pairwise."
        raise TypeError(bad_value(owner, argument, rule, _name(cost_fn), advice)) from error
    # A cost may take all hypotheses together, the likelihood of a mixture for example, if it takes their scores too.
    together = predictions.score_logits is None or "score_logits" in extras
    shape = _shape_of_pairs(owner, predictions.hypotheses, targets, event_dims)
    shapes = (shape, (*shape[:-1], 1)) if together else (shape,)
    if not isinstance(cost, Tensor) or tuple(cost.shape) not in shapes:
        rule = f"return a cost [..., targets, hypotheses] of shape {shape} for targets {tuple(targets.shape)}"
        got = tuple(cost.shape) if isinstance(cost, Tensor) else type(cost).__name__
        advice = "`torchmcl.Pairwise(loss)` makes a cost from a loss of one pair."
        if event_dims > 1:
            advice += " Paths need a cost of sequences, pairwise_sq_ade for example."
        raise ValueError(bad_value(owner, argument, rule, f"{got} from {_name(cost_fn)}", advice))
    return cost


def _shape_of_pairs(owner: str, hypotheses: Tensor, targets: Tensor, event_dims: int) -> tuple[int, ...]:
    """Return the shape [..., targets, hypotheses] that a cost must have.

    Any other shape means that the samples of a batch were broadcast against each other.
    """
    n_leading = hypotheses.ndim - event_dims - 1
    leading, given = hypotheses.shape[:n_leading], targets.shape[:n_leading]
    if targets.ndim <= n_leading or any(t not in (1, h) and h != 1 for h, t in zip(leading, given, strict=True)):
        rule = f"have shape [batch, targets, ...] with the batch of `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    both = (h if t == 1 else t for h, t in zip(leading, given, strict=True))
    return (*both, targets.shape[n_leading], hypotheses.shape[n_leading])


def check_takes_mask(owner: str, argument: str, cost_fn: Callable[..., Tensor]) -> None:
    """Check that a cost takes the mask of the steps of each target, which must not be ignored."""
    if "mask" not in needs(cost_fn):
        rule = "take `mask`, the real steps of each target, where the mask of the batch has an axis of steps"
        advice = "pairwise_ade, pairwise_gaussian_nll and other costs of sequences do."
        raise ValueError(bad_value(owner, argument, rule, _name(cost_fn), advice))


def _name(cost_fn: Callable[..., Tensor]) -> str:
    return getattr(cost_fn, "__name__", repr(cost_fn))


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
    """Check the shape of the mask, and return it expanded to the leading axes of the targets."""
    check_boolean(owner, "mask", mask)
    n_leading = targets.ndim - target_dims
    shape = targets.shape[: n_leading + 1 if whole_steps else max(mask.ndim, n_leading + 1)]
    if mask.ndim != len(shape) or any(m not in (1, t) for m, t in zip(mask.shape, shape, strict=True)):
        rule = f"have shape {tuple(targets.shape[: n_leading + 1])} ([..., targets, steps])"
        raise ValueError(bad_value(owner, "mask", rule, tuple(mask.shape), "True marks a real step."))
    return mask.expand(shape)


def step_weights(mask: Tensor | None, shape: torch.Size, like: Tensor) -> Tensor:
    """Return 1 / (number of real steps) at each real step and 0 elsewhere, [..., targets, steps]."""
    if mask is None:
        return like.new_full((), 1 / max(shape[-1], 1)).expand(shape)
    return mask.to(like.dtype) / mask.sum(dim=-1, keepdim=True).clamp_min(1)


def flattened(formula: Callable[..., Tensor], *tensors: tuple[Tensor | None, int]) -> Tensor:
    """Evaluate a formula on tensors whose leading axes are merged into one.

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
