"""Conversion of loaded tuples, lists and dictionaries to a `Batch`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.costs.declared import axes_of_a_target
from torchmcl.types import Batch

_FORMS = "be a Batch, (inputs, targets), (inputs, targets, mask), (inputs, targets, mask, scene), or a dictionary"


def as_batch(loaded: Any) -> Batch:
    """Return the output of a loader as a `Batch`.

    Args:
        loaded: a `Batch`; a tuple or list of its fields, `(inputs, targets)` at least, as
            `DataLoader(TensorDataset(x, y))` yields it; or a dictionary with their names.

    Raises:
        TypeError: if it is none of these.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> loader = DataLoader(TensorDataset(torch.rand(6, 3), torch.rand(6, 2)), batch_size=4)
        >>> [tuple(as_batch(loaded).targets.shape) for loaded in loader]
        [(4, 2), (2, 2)]
    """
    if isinstance(loaded, Batch):
        return loaded
    if isinstance(loaded, Mapping) and {"inputs", "targets"} <= loaded.keys() <= set(Batch._fields):
        return Batch(**loaded)
    if isinstance(loaded, (tuple, list)) and len(loaded) in (2, 3, 4):
        return Batch(*loaded)
    raise TypeError(bad_value("as_batch", "batch", _FORMS, _in_words(loaded), "Give the DataLoader a `collate_fn`."))


def inputs_of(loaded: Any) -> Any:
    """Return the inputs from the output of a loader, with or without targets, for predictions."""
    if isinstance(loaded, Mapping) and "inputs" in loaded:
        return loaded["inputs"]
    return loaded[0] if isinstance(loaded, (tuple, list)) and loaded else loaded


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


def _in_words(loaded: Any) -> str:
    if isinstance(loaded, Mapping):
        return f"a dictionary with {sorted(map(str, loaded))}"
    if isinstance(loaded, (tuple, list)):
        return f"a {type(loaded).__name__} of {len(loaded)}"
    return type(loaded).__name__
