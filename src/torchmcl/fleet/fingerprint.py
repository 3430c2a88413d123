"""What makes a training this very training: the plan that a folder of checkpoints is compared with.

Whatever decides the result counts by its values (learning rates and rules at every epoch, the structure of the
modules, the rows), and functions by their code and what they close over, not by their names.
"""

from typing import Any

from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.fleet.courses import RuleCourses
from torchmcl.fleet.data import FleetData, FreshRows
from torchmcl.fleet.epochs import ChunkPlan
from torchmcl.fleet.identity import digest_of_tensors, identity_of
from torchmcl.fleet.stacked import StackedModules

__all__ = ["fingerprint_of"]


def fingerprint_of(
    plan: ChunkPlan,
    models: StackedModules,
    data: FleetData,
    validation: FleetData | None,
    *,
    fresh: FreshRows | None,
    models_at_once: int,
    first_weights: str,
    first_moments: dict[str, Tensor],
) -> dict[str, Any]:
    """Return the plan of a training as JSON.

    Args:
        plan: of all models.
        models: their structure counts.
        data: rows of the training.
        validation: rows of the validation.
        fresh: where the rows of later epochs come from.
        models_at_once: models of a chunk.
        first_weights: checksum of the weights that the fleet was made with.
        first_moments: the state of the optimizer that the training begins with.
    """
    policies = [rule for rule in plan.rules if isinstance(rule, AutoAnnealing)]
    return {
        "n_models": len(models),
        "n_epochs": plan.n_epochs,
        "batch_size": plan.batch_size,
        "models_at_once": models_at_once,
        "backend": plan.backend,
        "optimizer": repr(plan.optimizer),
        "rule": identity_of([RuleCourses(plan.rules, plan.n_epochs).groups, policies]),
        "learning_rate": digest_of_tensors({"rates": plan.learning_rates}),
        "weight_decay": plan.weight_decays.tolist(),
        "seeds": plan.seeds.tolist(),
        "score_weight": plan.spec.score_weight,
        "cost_fn": identity_of(plan.spec.cost_fn),
        "modules": identity_of(models.template),
        "first weights": first_weights,
        "first moments": digest_of_tensors(first_moments),
        "rows": digest_of_tensors(data._asdict()),
        "source of rows": None if fresh is None else identity_of(fresh),
        "validation": None if validation is None else digest_of_tensors(validation._asdict()),
        "monitor": identity_of(plan.spec.monitor),
        "validate_every": list(plan.validate_every),
        "patience": plan.patience,
    }
