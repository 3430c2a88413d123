"""The plan of a training: everything that is decided before it begins, and what makes it this very training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.fleet.courses import RuleCourses
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.identity import digest_of_tensors, identity_of
from torchmcl.fleet.stacked import StackedModules
from torchmcl.fleet.steps import StepSpec

__all__ = ["FleetPlan", "fingerprint_of"]


@dataclass(frozen=True)
class FleetPlan:
    """How models are trained; sequences and tensors have an entry per model."""

    n_epochs: int
    rules: Sequence[Any]
    learning_rates: Tensor  # [epochs, models]
    weight_decays: Tensor
    seeds: Tensor
    spec: StepSpec
    validate_every: Sequence[int]
    patience: int | None

    def of_models(self, models: slice) -> "FleetPlan":
        """Return the plan of a slice of the models."""
        if (models.start, models.stop) == (0, len(self.rules)):
            return self  # with the courses that it has worked out
        return replace(
            self,
            rules=self.rules[models],
            learning_rates=self.learning_rates[:, models],
            weight_decays=self.weight_decays[models],
            seeds=self.seeds[models],
            validate_every=self.validate_every[models],
        )

    @cached_property
    def courses(self) -> RuleCourses:
        """The rules at all epochs, on the CPU."""
        return RuleCourses(self.rules, self.n_epochs)

    @property
    def policies(self) -> list[AutoAnnealing]:
        """The rules that decide on the temperature in training."""
        return [rule for rule in self.rules if isinstance(rule, AutoAnnealing)]


def fingerprint_of(
    plan: FleetPlan, models: StackedModules, data: FleetData, validation: FleetData | None
) -> dict[str, Any]:
    """Return what of a training a folder of checkpoints is compared with, as JSON.

    Whatever decides the result counts by its values (learning rates and rules at every epoch, the structure of the
    modules, the rows), and functions by their code and what they close over, not by their names.

    Args:
        plan: of all models.
        models: their structure counts.
        data: rows of the training.
        validation: rows of the validation.
    """
    return {
        "n_models": len(models),
        "n_epochs": plan.n_epochs,
        "optimizer": repr(plan.spec.optimizer),
        "rule": identity_of([plan.courses.groups, plan.policies]),
        "learning_rate": digest_of_tensors({"rates": plan.learning_rates}),
        "weight_decay": plan.weight_decays.tolist(),
        "seeds": plan.seeds.tolist(),
        "score_weight": plan.spec.score_weight,
        "cost_fn": identity_of(plan.spec.cost_fn),
        "loss_fn": identity_of(plan.spec.loss_fn),
        "scores": identity_of(plan.spec.scores),
        "modules": identity_of(models.template),
        "rows": digest_of_tensors(data._asdict()),
        "source of rows": None if data.source is None else identity_of(data.source),
        "validation": None if validation is None else digest_of_tensors(validation._asdict()),
        "monitor": identity_of(plan.spec.monitor),
        "validate_every": list(plan.validate_every),
        "patience": plan.patience,
    }
