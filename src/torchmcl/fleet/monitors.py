"""What a validation set is watched for: one value per model from a step's output."""

import torch
from torch import Tensor

from torchmcl.types import StepOutput

__all__ = ["WeightedDistortion", "current_loss", "hard_distortion"]


def hard_distortion(output: StepOutput) -> Tensor:
    """Return the distortion (mean cost of the best hypothesis) of each model, [models]."""
    cost, _, mask = output.matching
    costs = cost.amin(dim=-1).masked_fill(~mask, 0).flatten(1)
    return costs.sum(dim=1) / mask.flatten(1).sum(dim=1).clamp_min(1)


def current_loss(output: StepOutput) -> Tensor:
    """Return the training loss of each model under its current rule, scores included, [models]."""
    return torch.as_tensor(output.loss)


class WeightedDistortion:
    """The monitor of weighted rows that all models share: the distortion of each model there."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights / weights.sum()

    def __call__(self, output: StepOutput) -> Tensor:
        """Return [models] from a cost [models, rows, 1, hypotheses]."""
        costs = output.matching.cost.amin(dim=-1).squeeze(-1)
        return costs @ self.weights.to(costs)
