"""Sharding a fleet: its chunks of models are dealt out to devices that train them side by side."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

from torchmcl._checks import bad_value, device_of
from torchmcl.fleet.chunks import in_threads

__all__ = ["Device", "chunks_of", "devices_of", "on_devices"]

Device = str | torch.device
_Result = TypeVar("_Result")

# Fewer models than this are not worth a device of their own: it has to be set up first.
_MIN_SHARD = 8


def devices_of(device: Device | Sequence[Device], n_models: int) -> tuple[torch.device, ...]:
    """Return the devices that `n_models` models are trained on.

    Args:
        device: one; "cuda" without a number stands for all visible ones, as far as there are models for them; or a
            sequence, of which all are used.
        n_models: how many models there are.

    Raises:
        ValueError: for a name that is none, an empty sequence, or one with devices of several types.
    """
    if isinstance(device, str | torch.device):
        one = device_of("Fleet", device)
        if one.type != "cuda" or one.index is not None or torch.cuda.device_count() < 2:
            return (one,)
        n_devices = min(torch.cuda.device_count(), max(1, n_models // _MIN_SHARD))
        return tuple(torch.device("cuda", number) for number in range(n_devices))
    devices = tuple(device_of("Fleet", each) for each in device)
    if not devices or len({each.type for each in devices}) > 1:
        rule = "name at least one device, all of one type"
        raise ValueError(bad_value("Fleet", "device", rule, [str(each) for each in devices]))
    return devices


def chunks_of(n_models: int, at_once: int) -> list[slice]:
    """Return the models as slices of at most `at_once`."""
    return [slice(low, min(low + at_once, n_models)) for low in range(0, n_models, at_once)]


def on_devices(
    work: Callable[[int, slice, torch.device], _Result],
    chunks: Sequence[slice],
    devices: Sequence[torch.device],
    n_threads: int,
) -> list[_Result]:
    """Return `work(number, chunk, device)` of every chunk, in order.

    Chunk i is trained on device i modulo their number, whoever is first: so a training does not depend on how fast
    the devices are, and one that goes on finds its random numbers again.

    Args:
        work: trains a chunk.
        chunks: of the fleet.
        devices: to train on.
        n_threads: how many chunks to train side by side; each device trains one at a time.
    """

    def one(item: tuple[int, slice]) -> _Result:
        device = devices[item[0] % len(devices)]
        with _current(device):
            return work(*item, device)

    numbered = list(enumerate(chunks))
    if len(devices) == 1 or n_threads == 1:
        return in_threads(one, numbered, n_threads)
    lanes = [numbered[lane :: len(devices)] for lane in range(min(len(devices), len(numbered)))]
    of_lanes = in_threads(lambda lane: [one(item) for item in lane], lanes, len(lanes))
    return [of_lanes[number % len(devices)][number // len(devices)] for number, _ in numbered]


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the one that kernels and captures of this thread go to."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
