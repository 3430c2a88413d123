"""Placement of a fleet: chunks of models, and the threads and devices that train them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from torchmcl import Predictions, checks
from torchmcl.errors import bad_value
from torchmcl_fleet.modules.layers import formula_of_attention
from torchmcl_fleet.modules.stacked import StackedModules, random_numbers_apart
from torchmcl_fleet.problem import FleetData

__all__ = ["Device", "Placement", "devices_of", "in_threads", "models_at_once", "on_cores"]

Device = str | torch.device
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Fewer models than this are not worth a thread, or a device that has to be set up first.
_MIN_CHUNK = 8
# On CPUs the activations of a chunk should fit into the last-level cache.
_CPU_BYTES = 64 << 20
# On GPUs activations may use a third of the free memory; gradients and copies need as much again.
_GPU_FRACTION = 0.3
# A step with fewer multiplications is too short to benefit from a second core. Measured on two cores: steps with 12
# million multiplications took four times as long as on one core; steps with 37 million were a quarter faster.
_SMALL_STEP = 30_000_000
# Cost of the loss per (target, hypothesis) pair, relative to a multiplication of the network.
_PAIR = 50


def devices_of(device: Device | Sequence[Device], n_models: int) -> tuple[torch.device, ...]:
    """Return the devices for `n_models` models.

    Args:
        device: Device, or sequence of devices, all of which are used; "cuda" without a number means all visible GPUs
            if there are enough models.
        n_models: Number of models.

    Raises:
        ValueError: For an unknown name, an empty sequence, or devices of several types.
    """
    if isinstance(device, str | torch.device):
        single = checks.device_of("Fleet", device)
        if single.type != "cuda" or single.index is not None or torch.cuda.device_count() < 2:
            return (single,)
        n_devices = min(torch.cuda.device_count(), max(1, n_models // _MIN_CHUNK))
        return tuple(torch.device("cuda", number) for number in range(n_devices))
    devices = tuple(checks.device_of("Fleet", entry) for entry in device)
    if not devices or len({entry.type for entry in devices}) > 1:
        rule = "name at least one device, all of one type"
        raise ValueError(bad_value("Fleet", "device", rule, [str(entry) for entry in devices]))
    return devices


@dataclass(frozen=True)
class Placement:
    """Chunks of a training run and their devices.

    Attributes:
        chunks: Slice of the models of each chunk.
        devices: Devices; chunk i is trained on device i modulo their number.
        n_threads: Number of chunks that are trained in parallel.
        single_core: Whether operations are too short to be split across cores.
    """

    chunks: list[slice]
    devices: tuple[torch.device, ...]
    n_threads: int
    single_core: bool

    @classmethod
    def of(
        cls,
        models: StackedModules,
        data: FleetData,
        devices: tuple[torch.device, ...],
        *,
        batch_size: int,
        n_hypotheses: int,
        chunk_size: int | None,
        splits_models: bool,
        in_order: bool,
    ) -> "Placement":
        """Return the placement of a training run.

        Args:
            models: All models.
            data: Rows of the models.
            devices: Devices to train on.
            batch_size: Number of rows per step.
            n_hypotheses: Number of hypotheses of each model.
            chunk_size: Number of models per chunk; None to derive it from memory and threads.
            splits_models: Whether the step itself splits the models across cores.
            in_order: Whether chunks must be trained one after the other.
        """
        on_cpu = devices[0].type == "cpu"
        n_pairs = n_hypotheses * (data.targets.shape[2] if data.targets.ndim > 2 else 1)
        small = on_cpu and not splits_models and _is_small_step(models, batch_size, n_pairs)
        n_threads = 1 if small or in_order else _n_threads(models, devices)
        if chunk_size is None:
            room = min(models_at_once(models, data, batch_size, device) for device in set(devices))
            chunk_size = min(room, -(-len(models) // max(n_threads, len(devices))))
        chunks = [slice(low, min(low + chunk_size, len(models))) for low in range(0, len(models), chunk_size)]
        return cls(chunks, devices, n_threads, small or (on_cpu and splits_models and n_threads > 1))

    @property
    def chunk_size(self) -> int:
        """Number of models per chunk; the last one may have fewer."""
        return self.chunks[0].stop

    def run(self, train: Callable[[int, slice, torch.device], _Result]) -> list[_Result]:
        """Return `train(number, models, device)` of every chunk, in order.

        The device of a chunk does not depend on which device is faster, so that a resumed run draws the same
        random numbers.
        """

        def on_its_device(item: tuple[int, slice]) -> _Result:
            device = self.devices[item[0] % len(self.devices)]
            with _current(device):
                return train(*item, device)

        numbered = list(enumerate(self.chunks))
        # Around all threads, because the choice of kernels is global.
        with _one_core() if self.single_core else nullcontext(), formula_of_attention():
            if len(self.devices) == 1 or self.n_threads == 1:
                return in_threads(on_its_device, numbered, self.n_threads)
            n_lanes = min(len(self.devices), len(numbered))
            lanes = [numbered[lane :: len(self.devices)] for lane in range(n_lanes)]
            by_lane = in_threads(lambda lane: [on_its_device(item) for item in lane], lanes, n_lanes)
        return [by_lane[number % len(self.devices)][number // len(self.devices)] for number, _ in numbered]


def models_at_once(models: StackedModules, data: FleetData, batch_size: int, device: torch.device) -> int:
    """Return the chunk size from the memory per model that is saved for the backward pass."""
    per_model = max(1, _saved_bytes(models, data.inputs[:1, :batch_size]))
    budget = _CPU_BYTES
    if device.type == "cuda":
        budget = int(_GPU_FRACTION * torch.cuda.mem_get_info(device)[0])
    n_chunks = max(1, -(-len(models) * per_model // budget))
    return -(-len(models) // min(n_chunks, len(models)))


def _n_threads(models: StackedModules, devices: tuple[torch.device, ...]) -> int:
    """Return the number of chunks to train in parallel: one per device, or one per core of a single CPU.

    CPU libraries use a single core for a batch of small products. Random numbers have to be drawn in order.
    """
    if devices[0].type == "cpu" and not models.is_deterministic():
        return 1
    if devices[0].type != "cpu" or len(devices) > 1:
        return len(devices)
    return max(1, min(torch.get_num_threads(), len(models) // _MIN_CHUNK))


def _is_small_step(models: StackedModules, n_rows: int, n_pairs: int) -> bool:
    """Return whether one core is as fast as several for a step of these models, with `n_pairs` pairs per row."""
    n_models, n_weights = models.flat.shape
    return n_models * n_rows * (n_weights + _PAIR * n_pairs) < _SMALL_STEP


@contextmanager
def _one_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item], n_threads: int) -> list[_Result]:
    """Return the results of `work` for all items in order, on several threads with one core each."""
    if n_threads == 1 or len(items) == 1:
        return [work(item) for item in items]

    def on_one_core(item: _Item) -> _Result:
        torch.set_num_threads(1)  # a per-thread setting
        return work(item)

    with _one_core(), ThreadPoolExecutor(n_threads) as threads:
        try:
            return list(threads.map(on_one_core, items))
        except BaseException:  # a signal, too, ends the work after the current items
            threads.shutdown(cancel_futures=True)
            raise


def on_cores(work: Callable[[_Item], _Result], items: Sequence[_Item], device: torch.device) -> list[_Result]:
    """Return the results of `work` for all items in order; on a CPU, each free core takes the next item.

    Threads inside an operation wait for each other; a program that delays one of them by milliseconds delays them all.
    """
    if device.type != "cpu":
        return [work(item) for item in items]
    n_threads = torch.get_num_threads()
    with _one_core():
        return in_threads(work, items, n_threads)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Select the device for kernels and captures of this thread."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _saved_bytes(models: StackedModules, inputs: Tensor) -> int:
    n_bytes = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal n_bytes
        n_bytes += tensor.numel() * tensor.element_size()
        return tensor

    single = models.subset(slice(0, 1), models.flat.device, copy_rows=True)
    # The trial must not use the random numbers of the training: a resumed run has no trial.
    with random_numbers_apart(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        predictions: Predictions = single(inputs.to(models.flat.device))
        (predictions.hypotheses**2).sum()
    return n_bytes
