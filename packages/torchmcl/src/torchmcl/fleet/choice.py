"""The backend of a training: chosen once, the fastest that serves it."""

import torch

from torchmcl._checks import bad_value
from torchmcl.fleet.class_steps import ClassStep, why_not_in_closed_form
from torchmcl.fleet.courses import RuleCourses
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.epochs import ChunkTraining
from torchmcl.fleet.fused import FusedTraining, why_not_fused
from torchmcl.fleet.plan import FleetPlan
from torchmcl.fleet.stacked import StackedModules
from torchmcl.fleet.steps import AutogradStep, CompiledStep, StepSpec, why_not_compiled

__all__ = ["BACKENDS", "choose_backend", "training_of"]

BACKENDS = {
    "autograd": AutogradStep,
    "classes": ClassStep,
    "compiled": CompiledStep,
    "captured": AutogradStep,
    "fused": AutogradStep,
}


def training_of(backend: str, step: AutogradStep, plan: FleetPlan) -> ChunkTraining:
    """Return the training of a chunk by a backend."""
    if backend == "fused":
        return FusedTraining(step, plan)
    return ChunkTraining(step, plan, captured=backend == "captured")


def choose_backend(
    asked: str | None,
    device: torch.device,
    models: StackedModules,
    data: FleetData,
    spec: StepSpec,
    courses: RuleCourses,
    held_out: FleetData | None = None,
) -> str:
    """Return the backend of a training: the one that was asked for, or the fastest that serves it.

    Args:
        asked: a name of `BACKENDS`, or None.
        device: to train on.
        models: to train.
        data: their rows.
        spec: what is computed.
        courses: their rules.
        held_out: rows that they are evaluated on in training.

    Raises:
        ValueError: if the backend that was asked for cannot serve the training.
    """
    reasons = {
        "fused": why_not_fused(device, models, data, held_out, spec, courses),
        "captured": None if device.type == "cuda" else f"CUDA graphs need a CUDA device, not {device}.",
        "compiled": why_not_compiled(device, models, data, spec, courses),
        "classes": why_not_in_closed_form(device, models, data, spec),
        "autograd": None,
    }
    if asked is None:
        return next(name for name, reason in reasons.items() if reason is None)
    if (reason := reasons[asked]) is not None:
        raise ValueError(bad_value("Fleet", "backend", "serve this training", repr(asked), reason))
    return asked
