"""Epochs of a fleet as CUDA graphs.

A small model's epoch consists of a few hundred kernels of a few microseconds; launching them one by one from
Python takes ten times as long as running them. A captured graph replays them in one go.
"""

import threading
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from torchmcl.loop.cuda_graphs import without_garbage_collection
from torchmcl_fleet.backends.step import AutogradStep
from torchmcl_fleet.backends.training import ChunkTraining
from torchmcl_fleet.plan import TrainingPlan
from torchmcl_fleet.problem import TrainingProblem

__all__ = ["CapturedEpochs", "CapturedTraining", "why_not_captured"]

# A device cannot be synchronized while another thread captures on it.
_CAPTURING = threading.Lock()


class CapturedEpochs:
    """Runner of `epoch(key)` as a CUDA graph, captured once for each key and replayed afterwards.

    Args:
        epoch: Function that changes tensors in place, reads nothing on the host, and depends on Python values
            only through its key.
        state: Tensors that `epoch` changes; they are restored after the warm-up before a capture.
        device: Device that stores the tensors.
    """

    def __init__(self, epoch: Callable[[Any], None], state: list[Tensor], device: torch.device) -> None:
        self._epoch, self._state, self._device = epoch, state, device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}

    def __call__(self, key: Hashable) -> None:
        """Run one epoch."""
        if key not in self._graphs:
            with _CAPTURING:
                self._graphs[key] = self._capture(key)
        graph = self._graphs[key]
        if graph is None:
            self._epoch(key)
        else:
            graph.replay()

    def _capture(self, key: Hashable) -> torch.cuda.CUDAGraph | None:
        before = [tensor.clone() for tensor in self._state]
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._epoch(key)  # libraries initialize on first use, which a capture does not allow
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        captured: torch.cuda.CUDAGraph | None = graph
        try:
            torch.cuda.synchronize(self._device)
            # A separate stream: the default stream of torch is on one device, and other threads may use other devices.
            with (
                without_garbage_collection(),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._epoch(key)
        except RuntimeError as error:
            warnings.warn(
                f"Fleet: this epoch cannot be captured as a CUDA graph and runs eagerly: {error}", stacklevel=2
            )
            captured = None
            torch.cuda.synchronize(self._device)
        for tensor, value in zip(self._state, before, strict=True):
            tensor.copy_(value)
        return captured


class CapturedTraining(ChunkTraining):
    """A chunk whose epochs run as CUDA graphs, captured once and then replayed."""

    def __init__(self, step: AutogradStep, plan: TrainingPlan) -> None:
        super().__init__(step, plan)
        changed, device = list(self.state.tensors().values()), self.models.flat.device
        self._run_epoch = CapturedEpochs(self._epoch, changed, device)


def why_not_captured(training: TrainingProblem) -> str | None:
    """Return the reason why CUDA graphs do not support a training run, or None."""
    return None if training.device.type == "cuda" else f"CUDA graphs require a CUDA device, not {training.device}."
