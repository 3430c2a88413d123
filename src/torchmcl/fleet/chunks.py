"""How many models to train at once."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from torchmcl.fleet.data import FleetData
from torchmcl.fleet.stacked import StackedModules, random_numbers_apart
from torchmcl.types import Predictions

__all__ = ["in_threads", "is_small_step", "models_at_once", "one_core"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# On CPUs a chunk's activations should stay in the last level of the cache.
_CPU_BYTES = 64 << 20
# On GPUs half of the free memory may go to activations; gradients and copies take as much again.
_GPU_SHARE = 0.3


def models_at_once(models: StackedModules, data: FleetData, batch_size: int, device: torch.device) -> int:
    """Return a chunk size from the bytes one model keeps for its backward pass."""
    per_model = max(1, _saved_bytes(models, data.inputs[:1, :batch_size]))
    budget = _CPU_BYTES
    if device.type == "cuda":
        budget = int(_GPU_SHARE * torch.cuda.mem_get_info(device)[0])
    if forced := os.environ.get("TORCHMCL_FLEET_BYTES"):
        budget = int(forced)
    n_chunks = max(1, -(-len(models) * per_model // budget))
    return -(-len(models) // min(n_chunks, len(models)))


# A step with fewer multiplications is over before a second core has begun to help. Measured on two cores: trainings
# with steps of 12 million took four times as long on both as on one, those with 37 million gained a quarter.
_SMALL_STEP = 30_000_000
# What the loss of a pair of target and hypothesis costs, in multiplications of the network.
_PAIR = 50


def is_small_step(models: StackedModules, n_rows: int, n_pairs: int) -> bool:
    """Return whether one core does a step of these models as fast as several.

    Args:
        models: all that train at once.
        n_rows: of a batch.
        n_pairs: targets times hypotheses of a row.
    """
    n_models, n_weights = models.flat.shape
    return n_models * n_rows * (n_weights + _PAIR * n_pairs) < _SMALL_STEP


@contextmanager
def one_core() -> Iterator[None]:
    """Work on one core inside a `with` block: operations of a few small networks are too short to be shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item], n_threads: int) -> list[_Result]:
    """Return `work` of each item in order, on several threads with one core each."""
    if n_threads == 1 or len(items) == 1:
        return [work(item) for item in items]
    before = torch.get_num_threads()

    def on_one_core(item: _Item) -> _Result:
        torch.set_num_threads(1)
        return work(item)

    try:
        with ThreadPoolExecutor(n_threads) as threads:
            return list(threads.map(on_one_core, items))
    finally:
        torch.set_num_threads(before)


def _saved_bytes(models: StackedModules, inputs: Tensor) -> int:
    n_bytes = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal n_bytes
        n_bytes += tensor.numel() * tensor.element_size()
        return tensor

    one = models.subset(slice(0, 1), models.flat.device, copy_rows=True)
    # The trial draws for dropout what the training is to draw: a resumed one, which makes no trial, would differ.
    with random_numbers_apart(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        predictions: Predictions = one(inputs.to(models.flat.device))
        (predictions.hypotheses**2).sum()
    return n_bytes
