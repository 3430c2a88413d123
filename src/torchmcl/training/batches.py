"""From what a loader yields to a `Batch`: tuples, lists and dictionaries in, `Batch` out; collating samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from torchmcl import costs
from torchmcl._checks import bad_value
from torchmcl.types import Batch

__all__ = ["as_batch", "collate_batches", "inputs_of", "with_targets_axis"]

_FORMS = "be a Batch, (inputs, targets), (inputs, targets, mask), or a dictionary with these names"


def as_batch(loaded: Any) -> Batch:
    """Return what a loader yields as a `Batch`.

    Args:
        loaded: a `Batch`; a tuple or list `(inputs, targets)` or `(inputs, targets, mask)`, as
            `DataLoader(TensorDataset(x, y))` yields it; or a dictionary with these names.

    Raises:
        TypeError: if it is something else.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> loader = DataLoader(TensorDataset(torch.rand(6, 3), torch.rand(6, 2)), batch_size=4)
        >>> [tuple(as_batch(loaded).targets.shape) for loaded in loader]
        [(4, 2), (2, 2)]
    """
    if isinstance(loaded, Batch):
        return loaded
    if isinstance(loaded, Mapping) and {"inputs", "targets"} <= loaded.keys() <= set(Batch._fields):
        return Batch(**loaded)
    if isinstance(loaded, (tuple, list)) and len(loaded) in (2, 3):
        return Batch(*loaded)
    raise TypeError(bad_value("as_batch", "batch", _FORMS, _in_words(loaded), "Give the DataLoader a `collate_fn`."))


def inputs_of(loaded: Any) -> Any:
    """Return the inputs of what a loader yields, with or without targets, for predictions."""
    if isinstance(loaded, Mapping) and "inputs" in loaded:
        return loaded["inputs"]
    return loaded[0] if isinstance(loaded, (tuple, list)) and loaded else loaded


def collate_batches(samples: Sequence[Batch], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Batch:
    """Collate samples of a dataset into one batch; a missing mask means that all targets are real.

    A `DataLoader` over a dataset of `Batch` calls it automatically.

    Args:
        samples: of equal shapes, without the axis of the batch.
        collate_fn_map: passed by `torch.utils.data.default_collate`; not used.

    Example:
        >>> samples = [Batch(torch.rand(3), torch.rand(1, 2)) for _ in range(5)]
        >>> collate_batches(samples).targets.shape
        torch.Size([5, 1, 2])
    """
    inputs, targets, masks = zip(*samples, strict=True)
    known = next((mask for mask in masks if mask is not None), None)
    if known is not None:
        known = torch.ones_like(torch.as_tensor(known))
    mask = None if known is None else default_collate([known if mask is None else mask for mask in masks])
    return Batch(default_collate(list(inputs)), default_collate(list(targets)), mask)


# The way that PyTorch documents for custom types; a plain namedtuple with a None in it cannot be collated.
default_collate_fn_map[Batch] = collate_batches


def with_targets_axis(owner: str, batch: Batch, hypotheses: Tensor, cost_fn: Callable[..., Tensor]) -> Tensor:
    """Return the targets with their axis of several targets, added where the batch has one target per sample.

    Args:
        owner: named in messages.
        batch: with targets [..., targets, dim] or [..., dim], or class ids [..., targets] or [...].
        hypotheses: [..., hypotheses, dim], with the same leading axes.
        cost_fn: decides how many axes a target has, if it is one of ours.

    Raises:
        ValueError: if the axis is missing and it is not clear where.
    """
    targets, leading = batch.targets, hypotheses.shape[:-2]
    n_axes = _axes_of_a_target(cost_fn)
    if batch.mask is not None or n_axes is None or targets.ndim != len(leading) + n_axes:
        scalars = n_axes == 1 and batch.mask is None and targets.shape == leading and hypotheses.shape[-1] == 1
        return targets[..., None, None] if scalars else targets
    if targets.shape[: len(leading)] != leading:
        return targets  # the cost says what does not fit
    if n_axes == 1 and targets.shape[-1] != hypotheses.shape[-1]:
        rule = f"have shape [batch, targets, dim] or [batch, dim] for `hypotheses` {tuple(hypotheses.shape)}"
        advice = "Add the missing axis: targets.unsqueeze(-1) for several targets of one dimension."
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape), advice))
    return targets.unsqueeze(len(leading))


def _axes_of_a_target(cost_fn: Callable[..., Tensor]) -> int | None:
    if isinstance(cost_fn, costs.pairwise):
        return cost_fn.target_dims if cost_fn.hypothesis_dims == 1 else None
    if cost_fn is costs.pairwise_cross_entropy:
        return 0
    return 1 if cost_fn in _VECTOR_COSTS else None


_VECTOR_COSTS = {getattr(costs, name) for name in costs.__all__ if name not in ("pairwise", "pairwise_cross_entropy")}


def _in_words(loaded: Any) -> str:
    if isinstance(loaded, Mapping):
        return f"a dictionary with {sorted(map(str, loaded))}"
    if isinstance(loaded, (tuple, list)):
        return f"a {type(loaded).__name__} of {len(loaded)}"
    return type(loaded).__name__
