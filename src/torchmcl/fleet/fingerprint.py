"""What makes a training this very training: the plan that a folder of checkpoints is compared with.

Whatever decides on the result counts by its values (learning rates and rules at every epoch, the structure of the
modules, the rows) and functions by their code and what they close over, not by their names.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.fresh import FreshRows
from torchmcl.fleet.identity import digest_of_tensors, identity_of
from torchmcl.fleet.loop import Plan
from torchmcl.fleet.stacked import StackedModules

__all__ = ["ADDED_FIELDS", "fingerprint_of"]

# What plans of earlier versions do not hold; where it is missing it is not compared.
ADDED_FIELDS = frozenset(
    {
        "values of lr",
        "values of rules",
        "code of cost_fn",
        "code of monitor",
        "structure of modules",
        "first weights",
        "first moments",
        "source of rows",
        "types of rows",
    }
)


def fingerprint_of(
    plan: Plan,
    models: StackedModules,
    data: FleetData,
    validation: FleetData | None,
    *,
    rules: Sequence[Any],
    rates: Sequence[Any],
    fresh: FreshRows | None,
    models_at_once: int,
    first_weights: str,
    first_moments: dict[str, Tensor],
) -> dict[str, Any]:
    """Return the plan of a training as JSON.

    Args:
        plan: of all models.
        models: untrained.
        data: rows of the training.
        validation: rows of the validation.
        rules: as they were given, one for each model.
        rates: as they were given.
        fresh: where the rows of later epochs come from.
        models_at_once: in a chunk.
        first_weights: checksum of the weights that the fleet was made with.
        first_moments: the state of the optimiser that the training begins with.
    """
    return {
        "n_models": len(models),
        "n_epochs": plan.n_epochs,
        "batch_size": plan.batch_size,
        "models_at_once": models_at_once,
        "patience": plan.patience,
        "optimizer": repr(plan.optimizer),
        "rules": [_name_of(rule) for rule in rules],
        "lr": [_name_of(rate) for rate in rates],
        "weight_decay": plan.weight_decays.tolist(),
        "seeds": plan.seeds.tolist(),
        "score_weight": plan.score_weight,
        "cost_fn": _name_of(plan.cost_fn),
        "modules": {name: list(shape) for name, shape in models.shapes.items()},
        "rows": _digest_of(data),
        "validation": {
            "every": list(plan.validate_every),
            "monitor": _name_of(plan.monitor),
            "rows": None if validation is None else _digest_of(validation),
        },
        "values of lr": digest_of_tensors({"lr": plan.learning_rates}),
        "values of rules": identity_of([plan.rules.groups, [r for r in rules if isinstance(r, AutoAnnealing)]]),
        "code of cost_fn": identity_of(plan.cost_fn),
        "code of monitor": identity_of(plan.monitor),
        "structure of modules": identity_of(models.template),
        "first weights": first_weights,
        "first moments": digest_of_tensors(first_moments),
        "source of rows": None if fresh is None else identity_of(fresh),
        "types of rows": [str(part.dtype) for part in (*data[:2], *(validation or ())[:2])],
    }


def _name_of(value: Any) -> str:
    """Return a name for people; a function's repr holds an address."""
    if " at 0x" in (text := repr(value)):
        return f"{type(value).__name__} {getattr(value, '__qualname__', '')}"
    return text


def _digest_of(data: FleetData) -> str:
    """Return a checksum of the rows and of who trains on them."""
    digest = hashlib.sha256()
    for part in data:
        if part is None:
            continue
        digest.update(repr(tuple(part.shape)).encode())
        digest.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
