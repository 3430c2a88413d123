"""Shuffles that depend on nothing but a model's seed and the epoch.

Each row gets a pseudo-random key by integer hashing, and the rows are sorted by it: the same bits on
every device, for every chunking of a fleet, and for any epoch without going through those before.
"""

import torch
from torch import Tensor

__all__ = ["shuffled_rows"]

# The constants of the SplitMix64 generator, as signed integers.
_GOLDEN = -7046029254386353131
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685


def shuffled_rows(seeds: Tensor, epoch: int, lengths: Tensor, n_rows: int) -> Tensor:
    """Return a permutation of each model's rows, [models, n_rows]; padding stays behind.

    Args:
        seeds: [models], whole numbers.
        epoch: of the training.
        lengths: [models], how many rows are real.
        n_rows: rows with padding.

    Example:
        >>> shuffled_rows(torch.tensor([0, 1]), 0, torch.tensor([4, 3]), 4)
        tensor([[2, 1, 3, 0],
                [2, 1, 0, 3]])
    """
    row = torch.arange(n_rows, device=seeds.device)
    stream = _mixed(_mixed(seeds + 1) + epoch)
    keys = _mixed(stream[:, None] + row * _GOLDEN) >> 1  # room below for the sign: padding sorts last
    keys = keys & 0x3FFFFFFFFFFFFFFF
    keys = keys.masked_fill(row >= lengths[:, None], 0x7FFFFFFFFFFFFFFF)
    # A stable sort keeps the padding in order, so that results do not depend on the sorting algorithm.
    return keys.argsort(dim=-1, stable=True)


def _mixed(number: Tensor) -> Tensor:
    number = (number ^ (_logical_shift(number, 30))) * _MIX_1
    number = (number ^ (_logical_shift(number, 27))) * _MIX_2
    return number ^ _logical_shift(number, 31)


def _logical_shift(number: Tensor, bits: int) -> Tensor:
    return (number >> bits) & ((1 << (64 - bits)) - 1)
