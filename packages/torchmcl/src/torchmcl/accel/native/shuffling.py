"""The order of the rows of an epoch in C: `c/shuffle.h`."""

import ctypes
from ctypes import Structure

import torch
from torch import Tensor

from torchmcl.accel.native.extension import available, integers, library, pointers


class _Shuffle(Structure):
    _fields_ = (*integers("n_orders n_rows epoch"), *pointers("seeds lengths orders scratch"))


def serves(seeds: Tensor, epoch: int | Tensor, lengths: Tensor, n_rows: int) -> bool:
    """Return whether the extension is available, and supports these arguments."""
    on_cpu = seeds.device.type == "cpu" and seeds.dtype == lengths.dtype == torch.int64
    return available() and on_cpu and seeds.ndim == 1 and isinstance(epoch, int) and 0 < n_rows < 2**32


def shuffled_rows(seeds: Tensor, epoch: int, lengths: Tensor, n_rows: int) -> Tensor:
    """Return a permutation of each model's rows, [models, n_rows]; padding stays at the end."""
    orders = torch.empty(len(seeds), n_rows, dtype=torch.int64, device="cpu")
    scratch = torch.empty(2 * n_rows, dtype=torch.int64, device="cpu")
    seeds, lengths = seeds.contiguous(), lengths.contiguous()
    places = (part.data_ptr() for part in (seeds, lengths, orders, scratch))
    library().torchmcl_shuffle(ctypes.byref(_Shuffle(len(seeds), n_rows, epoch, *places)))
    return orders
