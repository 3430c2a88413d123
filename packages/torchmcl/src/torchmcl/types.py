"""Data structures of a training step: Batch, Predictions (or Distributions), Matching, StepOutput.

All are named tuples of tensors, which `torch.compile`, `torch.vmap` and `torch.utils._pytree` treat as tuples.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import _register_namedtuple  # the only way to register named tuples in torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from torchmcl.errors import bad_value

__all__ = [
    "Batch",
    "Distributions",
    "Matching",
    "Predictions",
    "StepOutput",
    "as_batch",
    "check_predictions",
    "collate_batches",
    "default_collate_fn_map",
    "inputs_of",
]


class Batch(NamedTuple):
    """Training data of a step.

    Attributes:
        inputs: Inputs of the model, [batch, ...]: a tensor, or a tuple or dictionary of tensors, which the model
            receives as one argument. A `DataLoader` collates tuples to lists.
        targets: Targets, [batch, targets, dim]; sequences, [batch, targets, steps, dim]; or class ids, [batch,
            targets].
        mask: Valid targets, [batch, targets], or valid steps, [batch, targets, steps]; None if all are valid.
        scene: Integer scene numbers, [batch]; samples of the same scene share their winners, see `SceneWinners`. None
            if each sample has its own winners.
    """

    inputs: Any
    targets: Tensor
    mask: Tensor | None = None
    scene: Tensor | None = None


class Predictions(NamedTuple):
    """Output of a model.

    Attributes:
        hypotheses: Hypotheses f_1(x) ... f_n(x), [batch, hypotheses, dim]; sequences, [batch, hypotheses, steps, dim];
            or any other shape that the cost supports.
        score_logits: Logits of the scores, [batch, hypotheses]; None without a score head.
    """

    hypotheses: Tensor
    score_logits: Tensor | None = None


class Distributions(NamedTuple):
    """Predictions whose hypotheses are distributions; accepted wherever `Predictions` are.

    Attributes:
        hypotheses: Locations, [batch, hypotheses, ...].
        score_logits: Logits of the scores, [batch, hypotheses], or None.
        scale: Positive scales in a shape that broadcasts to that of `hypotheses`: standard deviations of normal
            distributions, or scales of Laplace distributions, depending on the cost.
    """

    hypotheses: Tensor
    score_logits: Tensor | None
    scale: Tensor


def check_predictions(owner: str, argument: str, value: object) -> None:
    """Check that `value` is `Predictions` or `Distributions`."""
    if not isinstance(value, Predictions | Distributions):
        raise TypeError(bad_value(owner, argument, "be Predictions", type(value).__name__))


class Matching(NamedTuple):
    """Assignment of hypotheses to targets.

    Attributes:
        cost: Matched cost, [..., targets, hypotheses], differentiable; rows of padded targets are 0.
        weights: Detached weights, [..., targets, hypotheses]; rows of valid targets sum to 1, padded rows to 0.
        mask: Valid targets, [..., targets]; a tensor, so that `torch.vmap` maps a matching.
    """

    cost: Tensor
    weights: Tensor
    mask: Tensor


class StepOutput(NamedTuple):
    """Result of a training step; call `.loss.backward()`.

    Attributes:
        loss: Total loss, `assignment_loss + score_weight * score_loss`.
        assignment_loss: Weighted cost of the matching.
        score_loss: Loss of the scores; None if the model has no scores.
        matching: Cost, weights and mask, for the metrics.
        predictions: Output of the model.
        batch: Batch with an axis of targets, and with 0 in place of padded targets and steps.
    """

    loss: Tensor
    assignment_loss: Tensor
    score_loss: Tensor | None
    matching: Matching
    predictions: Predictions | Distributions
    batch: Batch


def collate_batches(samples: Sequence[Batch], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Batch:
    """Collate samples of a dataset into one batch; a missing mask means that all targets are real.

    A `DataLoader` over a dataset of `Batch` calls it automatically.

    Args:
        samples: Samples of equal shapes, without the batch axis.
        collate_fn_map: Not used; passed by `torch.utils.data.default_collate`.

    Example:
        >>> samples = [Batch(torch.rand(3), torch.rand(1, 2)) for _ in range(5)]
        >>> collate_batches(samples).targets.shape
        torch.Size([5, 1, 2])
    """
    inputs, targets, masks, scenes = zip(*samples, strict=True)
    if any(scene is None for scene in scenes) and not all(scene is None for scene in scenes):
        raise ValueError(bad_value("collate_batches", "scene", "be set for all samples or for none", "some"))
    known = next((mask for mask in masks if mask is not None), None)
    if known is not None:
        known = torch.ones_like(torch.as_tensor(known))
    mask = None if known is None else default_collate([known if mask is None else mask for mask in masks])
    scene = None if scenes[0] is None else default_collate(list(scenes))
    return Batch(default_collate(list(inputs)), default_collate(list(targets)), mask, scene)


# PyTorch's registry for custom types; it cannot collate a named tuple that contains None.
default_collate_fn_map[Batch] = collate_batches

# `torch.export.save` stores the structure of a model's output under these names.
for _kind in (Batch, Predictions, Distributions):
    _register_namedtuple(_kind, serialized_type_name=f"torchmcl.{_kind.__name__}")


_FORMS = "be a Batch, (inputs, targets), (inputs, targets, mask), (inputs, targets, mask, scene), or a dictionary"


def as_batch(loaded: Any) -> Batch:
    """Return the output of a loader as a `Batch`.

    Args:
        loaded: A `Batch`; a tuple or list of its fields, at least `(inputs, targets)`, as from
            `DataLoader(TensorDataset(x, y))`; or a dictionary with the names of the fields.

    Raises:
        TypeError: If it is none of these.

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


def _in_words(loaded: Any) -> str:
    if isinstance(loaded, Mapping):
        return f"a dictionary with {sorted(map(str, loaded))}"
    if isinstance(loaded, (tuple, list)):
        return f"a {type(loaded).__name__} of {len(loaded)}"
    return type(loaded).__name__
