"""Forward and backward passes of a model as CUDA graphs."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.types import Distributions, Predictions

__all__ = ["CUDAGraphModel", "without_garbage_collection"]


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, because freeing a CUDA graph or event would invalidate a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CUDAGraphModel:
    """Model whose training passes are captured as CUDA graphs and replayed.

    A GPU waits for Python in a network of many small kernels, such as `torchmcl_speech.nn.DPRNN`. The passes of the
    first training batch are captured and replayed for every later batch of the same shape; for other shapes, evaluation
    and other devices, the model itself is called. Parameters and gradients are those of the model, so that optimizers,
    clipping and checkpoints work as usual.

    The model must perform the same operations for every batch of a shape: no random numbers other than those of
    PyTorch, and no data-dependent control flow. The next batch overwrites the predictions.

    Args:
        model: Function of one tensor that returns `Predictions`.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2), nn.Unflatten(-1, (2, 1)))
        >>> CUDAGraphModel(lambda inputs: Predictions(model(inputs)))(torch.zeros(4, 3)).hypotheses.shape
        torch.Size([4, 2, 1])
    """

    def __init__(self, model: Callable[[Tensor], Predictions | Distributions]) -> None:
        self.model = model
        self._replay: Callable[[Tensor], tuple[Tensor, ...]] | None = None
        self._key: object = None
        self._form: tuple[Any, tuple[str, ...]] = (
            Predictions,
            (),
        )  # type of the predictions, names of fields other than None

    def __call__(self, inputs: Tensor) -> Predictions | Distributions:
        """Return the predictions of the model."""
        model = self.model
        on_gpu = isinstance(inputs, Tensor) and inputs.is_cuda  # several inputs are not captured
        if not (isinstance(model, nn.Module) and model.training and on_gpu and torch.is_grad_enabled()):
            return model(inputs)
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        key = (inputs.shape, inputs.dtype, inputs.device, half)
        if self._replay is None:
            self._key = key
            wrapped = _Tensors(model)
            self._replay = _captured(wrapped, inputs, half)
            self._form = wrapped.form
        if key != self._key:
            return model(inputs)
        kind, names = self._form
        predictions: Predictions | Distributions = kind(
            **dict.fromkeys(kind._fields) | dict(zip(names, self._replay(inputs), strict=True))
        )
        return predictions


class _Tensors(nn.Module):
    """Model that returns its predictions as a tuple of tensors, as a capture requires."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.form: tuple[Any, tuple[str, ...]] = (Predictions, ())

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        predictions = self.model(inputs)
        fields = {name: value for name, value in predictions._asdict().items() if value is not None}
        self.form = (type(predictions), tuple(fields))
        return tuple(fields.values())


def _captured(wrapped: nn.Module, inputs: Tensor, half: torch.dtype | None) -> Callable[[Tensor], tuple[Tensor, ...]]:
    # The capture keeps gradient accumulation nodes of another stream alive. If a batch of another shape calls the model
    # itself, autograd synchronizes with that stream, which is correct and needs no warning.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    # A cached cast would be computed only once, in the capture.
    with torch.autocast("cuda", dtype=half or torch.bfloat16, enabled=half is not None, cache_enabled=False):
        wrapped.train()
        sample = torch.zeros_like(inputs).normal_()  # never the batch itself, which must not change
        with without_garbage_collection():
            replay: Any = torch.cuda.make_graphed_callables(wrapped, (sample,), allow_unused_input=True)
    return replay
