"""The rows of an epoch: how many make a batch, in which order they come, and the batches themselves.

A shuffle depends on a model's seed and the epoch alone: each row gets a pseudo-random key by integer hashing, and rows
are sorted by it. That gives the same bits on every device, for every chunking of a fleet, and for any epoch without
the epochs before it.
"""

import math
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torchmcl._checks import check_positive_int
from torchmcl.fleet.data import FleetData, with_real_rows
from torchmcl.types import Batch

__all__ = ["BatchRows", "EpochRows", "batch_rows", "default_batch_size", "even_batch_size", "mixed", "shuffled_rows"]

_MIN_BATCH, _MAX_BATCH, _BATCH_PER_ROOT = 64, 1024, 3


class BatchRows(NamedTuple):
    """The rows of a batch: from `start` up to but not including `stop`, in the order of each model."""

    start: int
    stop: int


class EpochRows:
    """The rows of a chunk in training: shuffled or drawn anew for every epoch, and cut into batches.

    Args:
        data: rows of the models, on their device.
        seeds: [models], of the shuffles.
        batch_size: rows of a batch; the last one may have fewer.

    Attributes:
        order: [orders, rows], permutations of the rows in this epoch; None for rows as they are.
        order_of_model: [models]
    """

    def __init__(self, data: FleetData, seeds: Tensor, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size
        self.lengths, self.is_ragged = data.lengths, data.is_ragged
        n_rows, device = data.inputs.shape[1], data.inputs.device
        starts = range(0, n_rows, batch_size)
        self.batches = [BatchRows(start, min(start + batch_size, n_rows)) for start in starts]
        # Models with the same seed and the same number of rows share an order.
        streams = torch.stack([seeds.to(device), self.lengths])
        (self._seeds, self._stream_lengths), self.order_of_model = streams.unique(dim=1, return_inverse=True)
        # With one batch an epoch the order does not matter, and fresh rows have none but the one they were drawn in.
        in_order = len(self.batches) == 1 or data.source is not None
        self.order = None if in_order else torch.zeros(len(self._seeds), n_rows, dtype=torch.long, device=device)

    def begin(self, epoch: int) -> None:
        """Shuffle the rows for an epoch, or draw those of it."""
        if self.order is not None:
            self.order.copy_(shuffled_rows(self._seeds, epoch, self._stream_lengths, self.order.shape[1]))
        if self.data.source is not None:
            self.data.source.refill(self.data, epoch)

    def orders(self, first: int, stop: int) -> Tensor | None:
        """Return the orders [epochs, orders, rows] of some epochs at once; None for rows as they are."""
        if self.order is None:
            return None
        epochs = torch.arange(first, stop, device=self.order.device).unsqueeze(-1)
        return shuffled_rows(self._seeds, epochs, self._stream_lengths, self.order.shape[1])

    def batch(self, rows: BatchRows) -> tuple[Batch, Tensor | None]:
        """Return the rows of a batch [models, rows, ...] and their weights [models, rows]."""
        cut = slice(rows.start, rows.stop)
        if self.order is not None:
            batch, weights = self.data.rows(self.order[:, cut].index_select(0, self.order_of_model))
        else:
            whole, weights = self._as_they_are
            batch = Batch(*(None if part is None else part[:, cut] for part in whole))  # type: ignore[arg-type]
            weights = None if weights is None else weights[:, cut]
        if not self.is_ragged:
            return batch, weights
        inputs = batch.inputs
        real = torch.arange(inputs.shape[1], device=inputs.device) < self.n_real(rows)[:, None]
        inputs = inputs.masked_fill(~real.view(*real.shape, *[1] * (inputs.ndim - 2)), 0)
        return with_real_rows(batch._replace(inputs=inputs), real), weights

    def n_real(self, rows: BatchRows) -> Tensor:
        """Return how many rows of a batch each model has, [models]."""
        return (self.lengths - rows.start).clamp(0, rows.stop - rows.start)

    def share(self, rows: BatchRows) -> Tensor | float:
        """Return the share of a model's rows that a batch has; 0 for a model without rows in it."""
        if self.is_ragged:
            return self.n_real(rows) / self.lengths
        return (rows.stop - rows.start) / self.data.inputs.shape[1]

    @property
    def n_steps(self) -> Tensor:
        """How many batches of an epoch have rows of each model, [models]."""
        return torch.ceil(self.lengths / self.batch_size)

    def n_points(self, n_epochs: int) -> Tensor:
        """Return how many targets each model sees in a training, [models]."""
        return self.lengths * self.data.targets.shape[2] * (1 if self.data.source is None else n_epochs)

    @cached_property
    def _as_they_are(self) -> tuple[Batch, Tensor | None]:
        return self.data.rows()


def default_batch_size(n_rows: int) -> int:
    """Return three times the square root of the rows, between 64 and 1024: small tables need steps, large ones speed.

    Example:
        >>> [default_batch_size(n_rows) for n_rows in (100, 10_000, 1_000_000)]
        [64, 300, 1024]
    """
    return max(_MIN_BATCH, min(_MAX_BATCH, round(_BATCH_PER_ROOT * math.sqrt(n_rows))))


def batch_rows(owner: str, batch_size: int | Literal["all"] | None, n_rows: int) -> int:
    """Return how many rows a batch has: about `default_batch_size` by default, and never more than there are."""
    if batch_size is None:
        return _even(n_rows, default_batch_size(n_rows))
    if isinstance(batch_size, str) and batch_size == "all":
        return n_rows
    check_positive_int(owner, "batch_size", batch_size, "All rows are 'all'.")
    return min(batch_size, n_rows)


def even_batch_size(n_rows: int, at_most: int) -> int:
    """Return a size of batches that leaves no small one: the last has at least three quarters of the others' rows.

    What batches of a round number leave over may be a few rows, with a gradient far larger than the optimizer expects.

    Args:
        n_rows: to split.
        at_most: rows of a batch.

    Example:
        >>> even_batch_size(1027, 256)  # instead of four times 256 and then 3
        206
    """
    check_positive_int("even_batch_size", "n_rows", n_rows)
    check_positive_int("even_batch_size", "at_most", at_most)
    return _even(n_rows, at_most)


def _even(n_rows: int, at_most: int) -> int:
    evenly = math.ceil(n_rows / math.ceil(n_rows / at_most))
    return next(size for size in range(evenly, 0, -1) if n_rows % size == 0 or 4 * (n_rows % size) >= 3 * size)


# The constants of the SplitMix64 generator, as signed integers.
_GOLDEN = -7046029254386353131
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685


def shuffled_rows(seeds: Tensor, epoch: int | Tensor, lengths: Tensor, n_rows: int) -> Tensor:
    """Return a permutation of each model's rows, [..., models, n_rows]; padding stays behind.

    Args:
        seeds: [models], integers.
        epoch: of the training, or several [..., 1].
        lengths: [models], how many rows are real.
        n_rows: rows with padding.

    Example:
        >>> shuffled_rows(torch.tensor([0, 1]), 0, torch.tensor([4, 3]), 4)
        tensor([[2, 1, 3, 0],
                [2, 1, 0, 3]])
    """
    row = torch.arange(n_rows, device=seeds.device)
    stream = mixed(mixed(seeds + 1) + epoch)
    keys = mixed(stream.unsqueeze(-1) + row * _GOLDEN) >> 1  # room below for the sign: padding sorts last
    keys = keys & 0x3FFFFFFFFFFFFFFF
    keys = keys.masked_fill(row >= lengths[:, None], 0x7FFFFFFFFFFFFFFF)
    # A stable sort keeps the padding in order, so that results do not depend on the sorting algorithm.
    return keys.argsort(dim=-1, stable=True)


def mixed(number: Tensor) -> Tensor:
    """Return pseudo-random integers, a function of those given."""
    number = (number ^ (_logical_shift(number, 30))) * _MIX_1
    number = (number ^ (_logical_shift(number, 27))) * _MIX_2
    return number ^ _logical_shift(number, 31)


def _logical_shift(number: Tensor, bits: int) -> Tensor:
    return (number >> bits) & ((1 << (64 - bits)) - 1)
