"""Backends of training runs, the fastest first, each with a function that states its limits."""

from collections.abc import Callable
from dataclasses import dataclass

from torchmcl.errors import bad_value
from torchmcl_fleet.backends.cpu import (
    ClassStep,
    CompiledStep,
    CompiledTraining,
    why_not_compiled,
    why_not_in_closed_form,
)
from torchmcl_fleet.backends.step import AutogradStep
from torchmcl_fleet.backends.training import CapturedTraining, ChunkTraining, why_not_captured
from torchmcl_fleet.problem import TrainingProblem

__all__ = ["BACKENDS", "Backend", "choose_backend"]


@dataclass(frozen=True)
class Backend:
    """Implementation of training.

    Attributes:
        name: Name of the backend, as in `Fleet(backend=...)`.
        why_not: Function that returns the reason why a training run is not supported, or None if it is.
        step: Class that computes the losses, gradients and evaluations of a chunk.
        training: Class that runs the epochs of a chunk.
        splits_models: Whether the step itself splits the models across cores.
    """

    name: str
    why_not: Callable[[TrainingProblem], str | None]
    step: type[AutogradStep] = AutogradStep
    training: type[ChunkTraining] = ChunkTraining
    splits_models: bool = False


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("captured", why_not_captured, training=CapturedTraining),
        Backend("compiled", why_not_compiled, CompiledStep, CompiledTraining, splits_models=True),
        Backend("classes", why_not_in_closed_form, step=ClassStep),
        Backend("autograd", lambda _: None),  # the definition
    )
}


def choose_backend(requested: str | None, training: TrainingProblem) -> Backend:
    """Return the backend of a training run: the one named `requested`, or the fastest that supports it.

    Raises:
        ValueError: If `requested` does not support the training run.
    """
    if requested is None:
        return next(backend for backend in BACKENDS.values() if backend.why_not(training) is None)
    if (reason := BACKENDS[requested].why_not(training)) is not None:
        raise ValueError(bad_value("Fleet", "backend", "support this training run", repr(requested), reason))
    return BACKENDS[requested]
