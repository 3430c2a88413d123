"""The rows of a fleet: sets of them and which set each model trains on, and rows drawn anew for every epoch."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_boolean, check_callable, check_mask, check_positive_int, check_tensor
from torchmcl.types import Batch

__all__ = ["FleetData", "SampledData"]


class FleetData(NamedTuple):
    """Rows for many models, stored once for each set and not once for each model.

    Attributes:
        inputs: [sets, rows, ...], padded at the end where a set is shorter.
        targets: [sets, rows, targets, dim] (or class ids [sets, rows, targets]).
        n_rows: [sets], how many rows of each set are real.
        set_of_model: [models], which set each model has.
        weights: [sets, rows], how much each row counts in the loss, of mean 1; None when all count alike.
        mask: [sets, rows, targets], True where a target is real, or [sets, rows, targets, steps]; None when all are.
        source: where `Fleet.fit` draws the rows of each epoch from; None for rows that stay the same.
    """

    inputs: Tensor
    targets: Tensor
    n_rows: Tensor
    set_of_model: Tensor
    weights: Tensor | None = None
    mask: Tensor | None = None
    source: "SampledData | None" = None

    @classmethod
    def shared(
        cls,
        inputs: Tensor,
        targets: Tensor,
        n_models: int,
        *,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> "FleetData":
        """Return data in which all models train on the same rows, [rows, ...] and [rows, targets, dim].

        Args:
            inputs: [rows, ...]
            targets: [rows, targets, dim], or [rows, targets, steps, dim] for sequences.
            n_models: how many models share them.
            weights: [rows], how much each row counts in the loss, of mean 1.
            mask: [rows, targets] or [rows, targets, steps], True where a target, or a step of it, is real.

        Raises:
            ValueError: if there are no rows, or not as many inputs as targets and weights.

        Example:
            >>> data = FleetData.shared(torch.zeros(10, 3), torch.zeros(10, 1, 1), n_models=4)
            >>> data.inputs.shape, data.set_of_model.tolist()
            (torch.Size([1, 10, 3]), [0, 0, 0, 0])
        """
        check_positive_int("FleetData", "n_models", n_models)
        data = cls.of_sets([(inputs, targets) if mask is None else (inputs, targets, mask)], [0] * n_models)
        if weights is None:
            return data
        check_tensor("FleetData", "weights", weights, floating=False)
        if weights.shape != inputs.shape[:1]:
            rule = f"have shape ({len(inputs)},), one for each row"
            raise ValueError(bad_value("FleetData", "weights", rule, tuple(weights.shape)))
        return data._replace(weights=weights.unsqueeze(0))

    @classmethod
    def of_sets(cls, sets: Sequence[tuple[Tensor, ...]], set_of_model: Sequence[int]) -> "FleetData":
        """Return data from sets of (inputs, targets) or (inputs, targets, mask), of different length if need be.

        Raises:
            ValueError: if a set is empty, its inputs and targets differ in length, or a model's set does not exist.
            TypeError: if inputs or targets are not tensors, or differ in type between the sets.
        """
        if not sets:
            raise ValueError(bad_value("FleetData", "sets", "hold at least one set", "none"))
        set_of_model = [int(number) for number in set_of_model]
        for number, rows in enumerate(sets):
            _check_set(number, rows, sets[0])
        if missing := sorted(set(set_of_model) - set(range(len(sets)))):
            rule = f"name sets from 0 to {len(sets) - 1}"
            raise ValueError(bad_value("FleetData", "set_of_model", rule, missing))
        n_rows = max(len(inputs) for inputs, *_ in sets)
        inputs, targets, *mask = (
            torch.stack([_padded(part, n_rows) for part in parts]) for parts in zip(*sets, strict=True)
        )
        lengths = torch.tensor([len(inputs) for inputs, *_ in sets])
        return cls(inputs, targets, lengths, torch.tensor(set_of_model), mask=mask[0] if mask else None)

    @property
    def n_models(self) -> int:
        """How many models the data is for."""
        return len(self.set_of_model)

    def subset(self, models: slice, device: torch.device) -> "FleetData":
        """Return the data of some models on `device`, with the sets they do not use left out."""
        used, set_of_model = self.set_of_model[models].unique(return_inverse=True)
        n_rows = self.n_rows[used]
        longest = int(n_rows.max())
        return self._replace(
            inputs=self.inputs[used, :longest].to(device),
            targets=self.targets[used, :longest].to(device),
            n_rows=n_rows.to(device),
            set_of_model=set_of_model.to(device),
            weights=None if self.weights is None else self.weights[used, :longest].to(device),
            mask=None if self.mask is None else self.mask[used, :longest].to(device),
        )

    @property
    def lengths(self) -> Tensor:
        """How many rows each model has, [models]."""
        return self.n_rows[self.set_of_model]

    def rows(self, index: Tensor | None = None) -> tuple[Batch, Tensor | None]:
        """Return the rows `index` [models, batch] of each model's own set, and their weights.

        Without an index, all rows; where models share them, as views.
        """
        inputs, targets, weights, mask = (
            None if part is None else self._taken(part, index)
            for part in (self.inputs, self.targets, self.weights, self.mask)
        )
        assert inputs is not None
        assert targets is not None
        return Batch(inputs, targets, mask), weights

    def _taken(self, part: Tensor, index: Tensor | None) -> Tensor:
        """Return rows of a tensor [sets, rows, ...] for each model, [models, batch, ...]."""
        if index is None:
            shared = len(part) == 1  # a view, no copy
            return part.expand(self.n_models, *part.shape[1:]) if shared else part[self.set_of_model]
        flat = (index + (self.set_of_model * part.shape[1])[:, None]).reshape(-1)
        return part.flatten(0, 1).index_select(0, flat).unflatten(0, tuple(index.shape))

    @property
    def is_ragged(self) -> bool:
        """Whether the sets differ in length, or have padding in common."""
        return not bool((self.n_rows == self.inputs.shape[1]).all())

    def batch(self) -> Batch:
        """Return all rows [models, rows, ...], with a mask of the real ones where there is padding."""
        batch, _ = self.rows()
        if not self.is_ragged:
            return batch
        return with_real_rows(
            batch, torch.arange(batch.inputs.shape[1], device=batch.inputs.device) < self.lengths[:, None]
        )


def with_real_rows(batch: Batch, real: Tensor) -> Batch:
    """Return a batch [models, rows, ...] in which only the rows that are True in `real` [models, rows] count."""
    mask = batch.mask
    if mask is None:
        mask = torch.ones(batch.targets.shape[:3], dtype=torch.bool, device=real.device)
    return batch._replace(mask=mask & real.view(*real.shape, *[1] * (mask.ndim - 2)))


def _check_set(number: int, rows: tuple[Tensor, ...], first: tuple[Tensor, ...]) -> None:
    """Check the inputs, targets and mask of a set against those of the first one."""
    names = ("inputs", "targets", "mask")
    if len(rows) not in (2, 3) or len(rows) != len(first):
        rule = "be (inputs, targets) or (inputs, targets, mask), the same in all sets"
        raise ValueError(bad_value("FleetData", "sets", rule, f"{len(rows)} parts in set {number}"))
    for name, part, like in zip(names, rows, first, strict=False):
        _check_rows(name, part, like)
    if len({len(part) for part in rows}) > 1 or len(rows[0]) == 0:
        rule = "have as many inputs as targets, at least one"
        got = f"{' and '.join(str(len(part)) for part in rows)} in set {number}"
        raise ValueError(bad_value("FleetData", "sets", rule, got))
    for name, part, like in zip(names, rows, first, strict=False):
        if part.shape[1:] != like.shape[1:]:
            rule = f"have {name} of the same columns, {tuple(like.shape[1:])} in set 0"
            raise ValueError(bad_value("FleetData", "sets", rule, f"{tuple(part.shape[1:])} in set {number}"))
    if len(rows) == 3:
        check_boolean("FleetData", "mask", rows[2])
        check_mask("FleetData", rows[2], rows[1].shape[: rows[2].ndim])


def _check_rows(name: str, rows: Any, first: Tensor) -> None:
    """Check that rows are a tensor, of the type that those of the first set have."""
    if not isinstance(rows, Tensor) or rows.ndim == 0:
        advice = {np.ndarray: "torch.from_numpy makes one."}.get(type(rows), "")
        if isinstance(rows, tuple | list | dict):
            advice = "Several inputs become columns of one tensor, torch.cat(inputs, dim=-1), that the module splits."
        raise TypeError(bad_value("FleetData", name, "be a torch.Tensor with an axis of rows", _kind(rows), advice))
    if rows.dtype != first.dtype:
        raise TypeError(bad_value("FleetData", name, f"have one type in all sets, {first.dtype} in set 0", rows.dtype))


def _kind(rows: Any) -> str:
    return "a number" if isinstance(rows, Tensor) else type(rows).__name__


def _padded(rows: Tensor, n_rows: int) -> Tensor:
    padding = rows.new_zeros(n_rows - len(rows), *rows.shape[1:])
    return torch.cat([rows, padding])


@dataclass(frozen=True)
class SampledData:
    """A source of training rows: all models of a fleet see the same new rows in each epoch.

    The rows of an epoch depend on the seed and the epoch alone, so that chunks of a fleet and a training
    resumed from a checkpoint see what an uninterrupted one does. They are drawn where the fleet trains,
    before the epoch begins; random streams of CPUs and GPUs differ.

    Args:
        draw: called with a number of rows and a generator; returns a Batch of inputs [rows, ...] and targets
            [rows, targets, dim] on the device of the generator, and a mask in all epochs or in none.
        n_rows: rows of an epoch.
        n_models: how many models share them.
        seed: of the stream.

    Example:
        >>> from torchmcl.data.synthetic import conditional_three_gaussians
        >>> source = SampledData(conditional_three_gaussians, n_rows=1000, n_models=4)
        >>> first, second = source.epoch(0, torch.device("cpu")), source.epoch(1, torch.device("cpu"))
        >>> first.inputs.shape, bool((first.inputs == second.inputs).any())
        (torch.Size([1, 1000, 1]), False)
    """

    draw: Callable[[int, torch.Generator], Batch]
    n_rows: int
    n_models: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("SampledData", "draw", self.draw, "torchmcl.data.synthetic.conditional_three_gaussians")
        check_positive_int("SampledData", "n_rows", self.n_rows)
        check_positive_int("SampledData", "n_models", self.n_models)

    def epoch(self, number: int, device: torch.device) -> FleetData:
        """Return the rows of an epoch.

        Raises:
            ValueError: if `draw` returns another number of rows.
        """
        # A hash keeps the streams of neighbouring seeds and epochs apart.
        digest = hashlib.sha256(f"{self.seed} {number}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:6], "big"))
        inputs, targets, mask, scene = self.draw(self.n_rows, generator)
        if len(inputs) != self.n_rows or len(targets) != self.n_rows or scene is not None:
            rule = f"return {self.n_rows} inputs and targets, without scenes"
            got = f"{len(inputs)} and {len(targets)}{'' if scene is None else ' with scenes'}"
            raise ValueError(bad_value("SampledData", "draw", rule, got))
        return FleetData.shared(inputs, targets, self.n_models, mask=mask)

    def refill(self, data: FleetData, number: int) -> None:
        """Write the rows of an epoch over those of another, for what holds on to the tensors."""
        new = self.epoch(number, data.inputs.device)
        for part, fresh in ((data.inputs, new.inputs), (data.targets, new.targets), (data.mask, new.mask)):
            if part is not None and fresh is not None:
                part.copy_(fresh)
