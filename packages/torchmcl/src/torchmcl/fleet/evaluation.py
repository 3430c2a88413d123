"""What is measured of stacked models: monitors of a training, and the metrics of `Fleet.evaluate`."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.models import StackedModules
from torchmcl.fleet.placement import models_at_once
from torchmcl.rules.winners import WTA
from torchmcl.scoring import ScoreObjective
from torchmcl.step import mcl_step
from torchmcl.types import Batch, Matching, Predictions, StepOutput

__all__ = ["MixtureLogLoss", "WeightedDistortion", "current_loss", "evaluate_models", "hard_distortion", "matched"]


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


class MixtureLogLoss:
    """A monitor for `mixture_cost`: the log-loss of the mixtures on held-out rows.

    Args:
        weights: [rows] or [models, rows], how much each held-out row counts; 0 for padding. All alike by default.
        together: let all models have the mean of them, so that they keep the same epoch: on few rows the best epoch of
            one model is an accident. They must be trained in one chunk.
    """

    def __init__(self, weights: Tensor | None = None, *, together: bool = False) -> None:
        self.weights, self.together = weights, together

    def __call__(self, output: StepOutput) -> Tensor:
        """Return [models] from a cost [models, rows, 1, hypotheses]."""
        return self.of_costs(output.matching.cost)

    def of_costs(self, cost: Tensor) -> Tensor:
        """Return [models] from a cost [models, rows, 1, hypotheses]."""
        losses = -torch.logsumexp(-cost, dim=-1).squeeze(-1)
        weights = torch.ones_like(losses) if self.weights is None else self.weights.to(losses).expand_as(losses)
        total = (losses * weights).sum(dim=1)
        if self.together:
            return (total.sum() / weights.sum()).expand(len(cost))
        return total / weights.sum(dim=1)


@torch.no_grad()
def evaluate_models(
    models: StackedModules,
    data: FleetData,
    device: torch.device,
    cost_fn: Callable[..., Tensor],
    scores: ScoreObjective,
) -> dict[str, Tensor]:
    """Return distortion, rmse [models] and usage [models, hypotheses] on the CPU."""

    def rmse(targets: Tensor, hypotheses: Tensor, mask: Tensor, logits: Tensor | None = None) -> Tensor:
        return metrics.rmse_of_mean(Predictions(hypotheses, logits), targets, mask, scores=scores)

    chunk = models_at_once(models, data, data.inputs.shape[1], device)
    parts = []
    for low in range(0, len(models), chunk):
        chosen = slice(low, min(low + chunk, len(models)))
        stacked, rows = models.subset(chosen, device), data.subset(chosen, device)
        batch = rows.batch()
        with stacked.evaluating():
            output = mcl_step(stacked, batch, WTA(), cost_fn=cost_fn, score_weight=0, stacked=True)
        matching, (hypotheses, logits, *_) = output.matching, output.predictions
        events = (batch.targets, hypotheses, matching.mask if batch.mask is None else batch.mask)
        given = events if logits is None else (*events, logits)
        parts.append(
            {
                "distortion": torch.vmap(metrics.distortion)(matching).cpu(),
                "rmse": torch.vmap(rmse)(*given).cpu(),
                "usage": torch.vmap(metrics.hypothesis_usage)(matching).cpu(),
            }
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def matched(models: StackedModules, batch: Batch, cost_fn: Callable[..., Tensor]) -> Matching:
    """Return the cost of a batch [models, rows, ...] with winners that take all."""
    return mcl_step(models, batch, WTA(), cost_fn=cost_fn, score_weight=0, stacked=True).matching
