"""Metrics of every model of a fleet at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl.assignment import WTA
from torchmcl.fleet.chunks import models_at_once
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.stacked import StackedModules
from torchmcl.losses import match
from torchmcl.types import Predictions

__all__ = ["evaluate_models"]


def _rmse(*parts: Tensor) -> Tensor:
    *predictions, targets, mask = parts
    return metrics.rmse_of_mean(Predictions(*predictions), targets, mask)


@torch.no_grad()
def evaluate_models(
    models: StackedModules, data: FleetData, device: torch.device, cost_fn: Callable[..., Tensor]
) -> dict[str, Tensor]:
    """Return distortion, rmse [models] and usage [models, hypotheses] on the CPU."""
    chunk = models_at_once(models, data, data.inputs.shape[1], device)
    parts = []
    for low in range(0, len(models), chunk):
        rows = slice(low, min(low + chunk, len(models)))
        some, own = models.subset(rows, device), data.subset(rows, device)
        inputs, targets = own.all_rows()
        real = torch.arange(inputs.shape[1], device=device) < own.lengths[:, None]
        mask = real.unsqueeze(-1).expand(targets.shape[:3])
        with some.evaluating():
            predictions: Predictions = some(inputs)
        cost = cost_fn(hypotheses=predictions.hypotheses, targets=targets)
        matching = match(cost, WTA(), mask)
        parts.append(
            {
                "distortion": torch.vmap(metrics.distortion)(matching).cpu(),
                "rmse": torch.vmap(_rmse)(*(part for part in predictions if part is not None), targets, mask).cpu(),
                "usage": torch.vmap(metrics.hypothesis_usage)(matching).cpu(),
            }
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
