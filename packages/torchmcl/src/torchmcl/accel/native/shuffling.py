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
    known = isinstance(epoch, int) or epoch.shape == (len(epoch), 1)
    return available() and on_cpu and seeds.ndim == 1 and known and 0 < n_rows < 2**32


def shuffled_rows(seeds: Tensor, epoch: int | Tensor, lengths: Tensor, n_rows: int) -> Tensor:
    """Return a permutation of each model's rows, [..., models, n_rows]; padding stays at the end."""
    epochs = [epoch] if isinstance(epoch, int) else epoch.flatten().tolist()
    orders = torch.empty(len(epochs), len(seeds), n_rows, dtype=torch.int64, device="cpu")
    scratch = torch.empty(2 * n_rows, dtype=torch.int64, device="cpu")
    seeds, lengths = seeds.contiguous(), lengths.contiguous()
    for number, own in zip(epochs, orders, strict=True):
        places = (part.data_ptr() for part in (seeds, lengths, own, scratch))
        library().torchmcl_shuffle(ctypes.byref(_Shuffle(len(seeds), n_rows, number, *places)))
    return orders[0] if isinstance(epoch, int) else orders
