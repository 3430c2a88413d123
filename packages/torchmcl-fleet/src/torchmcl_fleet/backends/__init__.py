"""Backends of training runs: one list, the fastest first; each states its limits."""

from collections.abc import Callable
from dataclasses import dataclass

from torchmcl.errors import bad_value
from torchmcl_fleet.backends.captured import CapturedEpochs
from torchmcl_fleet.backends.cpu import (
    ClassStep,
    CompiledStep,
    CompiledTraining,
    why_not_compiled,
    why_not_in_closed_form,
)
from torchmcl_fleet.courses import TrainingPlan
from torchmcl_fleet.epochs import ChunkTraining
from torchmcl_fleet.steps import AutogradStep, TrainingFacts

__all__ = ["BACKENDS", "Backend", "choose_backend"]


@dataclass(frozen=True)
class Backend:
    """One implementation of training.

    Attributes:
        name: the value of `Fleet(backend=...)`.
        serves: returns why it does not support a training run, or None if it does.
        step: computes the losses, gradients and evaluations of a chunk.
        training: runs the epochs of a chunk.
        splits_models: whether its step itself splits the models across cores.
    """

    name: str
    serves: Callable[[TrainingFacts], str | None]
    step: type[AutogradStep] = AutogradStep
    training: type[ChunkTraining] = ChunkTraining
    splits_models: bool = False


class CapturedTraining(ChunkTraining):
    """A chunk whose epochs run as CUDA graphs, captured once and then replayed."""

    def __init__(self, step: AutogradStep, plan: TrainingPlan) -> None:
        super().__init__(step, plan)
        changed, device = list(self.state.tensors().values()), self.models.flat.device
        self._run_epoch = CapturedEpochs(self._epoch, changed, device)


def why_not_captured(training: TrainingFacts) -> str | None:
    """Return the reason why CUDA graphs do not support a training run, or None."""
    return None if training.device.type == "cuda" else f"CUDA graphs need a CUDA device, not {training.device}."


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("captured", why_not_captured, training=CapturedTraining),
        Backend("compiled", why_not_compiled, CompiledStep, CompiledTraining, splits_models=True),
        Backend("classes", why_not_in_closed_form, step=ClassStep),
        Backend("autograd", lambda _: None),  # the definition
    )
}


def choose_backend(asked: str | None, training: TrainingFacts) -> Backend:
    """Return the backend of a training run: the one named `asked`, or the fastest that supports it.

    Raises:
        ValueError: if `asked` does not support the training run.
    """
    if asked is None:
        return next(backend for backend in BACKENDS.values() if backend.serves(training) is None)
    if (reason := BACKENDS[asked].serves(training)) is not None:
        raise ValueError(bad_value("Fleet", "backend", "support this training run", repr(asked), reason))
    return BACKENDS[asked]
