"""What is measured of stacked models: monitors of a training, and the metrics of `Fleet.evaluate`."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl.assignment import WTA
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.placement import models_at_once
from torchmcl.fleet.stacked import StackedModules
from torchmcl.losses import match
from torchmcl.types import Predictions, StepOutput

__all__ = ["WeightedDistortion", "current_loss", "evaluate_models", "hard_distortion"]


def hard_distortion(output: StepOutput) -> Tensor:
    """Return the distortion (mean cost of the best hypothesis) of each model, [models]."""
    cost, _, mask = output.matching
    costs = cost.amin(dim=-1).masked_fill(~mask, 0).flatten(1)
    return costs.sum(dim=1) / mask.flatten(1).sum(dim=1).clamp_min(1)


def current_loss(output: StepOutput) -> Tensor:
    """Return the training loss of each model under its current rule, scores included, [models]."""
    return torch.as_tensor(output.loss)


class WeightedDistortion:
    """A monitor for weighted rows that all models share: the distortion of each model on them.

    Args:
        weights: [rows]
    """

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights / weights.sum()

    def __call__(self, output: StepOutput) -> Tensor:
        """Return [models] from a cost [models, rows, 1, hypotheses]."""
        costs = output.matching.cost.amin(dim=-1).squeeze(-1)
        return costs @ self.weights.to(costs)


@torch.no_grad()
def evaluate_models(
    models: StackedModules, data: FleetData, device: torch.device, cost_fn: Callable[..., Tensor]
) -> dict[str, Tensor]:
    """Return distortion, rmse [models] and usage [models, hypotheses] on the CPU."""
    chunk = models_at_once(models, data, data.inputs.shape[1], device)
    parts = []
    for low in range(0, len(models), chunk):
        chosen = slice(low, min(low + chunk, len(models)))
        stacked, rows = models.subset(chosen, device), data.subset(chosen, device)
        inputs, targets, mask = rows.batch()
        mask = torch.ones(targets.shape[:3], dtype=torch.bool, device=device) if mask is None else mask
        with stacked.evaluating():
            predictions: Predictions = stacked(inputs)
        matching = match(cost_fn(hypotheses=predictions.hypotheses, targets=targets), WTA(), mask)
        parts.append(
            {
                "distortion": torch.vmap(metrics.distortion)(matching).cpu(),
                "rmse": torch.vmap(_rmse)(*(part for part in predictions if part is not None), targets, mask).cpu(),
                "usage": torch.vmap(metrics.hypothesis_usage)(matching).cpu(),
            }
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _rmse(*parts: Tensor) -> Tensor:
    *predictions, targets, mask = parts
    return metrics.rmse_of_mean(Predictions(*predictions), targets, mask)
