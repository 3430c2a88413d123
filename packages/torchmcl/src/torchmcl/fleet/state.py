"""The state of a chunk in training: what checkpoints keep and captured epochs change."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.fleet.stacked import StackedModules

__all__ = ["ChunkState"]


@dataclass
class ChunkState:
    """Everything that a training changes, in tensors that are changed in place."""

    models: dict[str, Tensor]
    best: dict[str, Tensor]  # the models at their best evaluation; empty without validation
    optimizer: dict[str, Tensor]
    annealing: dict[str, Tensor]
    epoch: Tensor
    losses: Tensor  # [epochs, models], and so are the next three
    watched: Tensor
    temperatures: Tensor
    learning_rates: Tensor
    best_value: Tensor  # [models], and so are the next three
    best_epoch: Tensor
    stopped_epoch: Tensor
    failed_step: Tensor

    @classmethod
    def of(
        cls,
        models: StackedModules,
        n_epochs: int,
        *,
        optimizer: dict[str, Tensor],
        annealing: dict[str, Tensor],
        keep_best: bool,
    ) -> "ChunkState":
        """Return the state before the first epoch."""
        n_models, device = len(models), models.flat.device
        # What is decided and recorded has at least single precision, whatever the models have.
        number: dict[str, Any] = {"dtype": torch.promote_types(models.flat.dtype, torch.float32), "device": device}
        return cls(
            models=models.state,
            best={name: value.clone() for name, value in models.state.items()} if keep_best else {},
            optimizer=optimizer,
            annealing=annealing,
            epoch=torch.zeros((), dtype=torch.long, device=device),
            losses=torch.zeros(n_epochs, n_models, **number),
            watched=torch.full((n_epochs, n_models), torch.nan, **number),
            temperatures=torch.full((n_epochs, n_models), torch.nan, **number),
            learning_rates=torch.full((n_epochs, n_models), torch.nan, **number),
            best_value=torch.full((n_models,), torch.inf, **number),
            best_epoch=torch.full((n_models,), -1, device=device),
            stopped_epoch=torch.full((n_models,), -1, device=device),
            failed_step=torch.full((n_models,), -1, device=device),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name: what a checkpoint keeps and a captured epoch changes."""
        named: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            named |= {name: value} if isinstance(value, Tensor) else {f"{name}.{key}": v for key, v in value.items()}
        return named
