"""Epochs of the definition as CUDA graphs: captured once, and replayed from then on."""

from torchmcl.accel.captured import CapturedEpochs
from torchmcl.fleet.courses import TrainingPlan
from torchmcl.fleet.eligibility import TrainingFacts
from torchmcl.fleet.epochs import ChunkTraining
from torchmcl.fleet.steps import AutogradStep

__all__ = ["CapturedTraining", "why_not_captured"]


class CapturedTraining(ChunkTraining):
    """A chunk whose epochs and measurements run as CUDA graphs."""

    def __init__(self, step: AutogradStep, plan: TrainingPlan) -> None:
        super().__init__(step, plan)
        changed, device = list(self.state.tensors().values()), self.models.flat.device
        self._run_epoch = CapturedEpochs(self._epoch, changed, device)
        self._run_measurement = CapturedEpochs(self._measure, changed, device)


def why_not_captured(training: TrainingFacts) -> str | None:
    """Return why graphs cannot serve a training, None if they can."""
    device = training.device
    return None if device.type == "cuda" else f"CUDA graphs need a CUDA device, not {device}."
