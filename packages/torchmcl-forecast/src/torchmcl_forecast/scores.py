"""Scores of forecasts: CRPS of steps, energy and variogram scores of paths, and distortion of the nearest future."""

from typing import Any

import torch
from torch import Tensor

from torchmcl import Predictions
from torchmcl.metrics import energy_score

__all__ = ["distortion", "path_scores", "weighted_quantile_loss"]

# Maximum number of differences between pairs of steps in memory.
_AT_ONCE = 10_000_000


def weighted_quantile_loss(quantiles: Tensor, truth: Tensor, levels: Any) -> float:
    """Compute twice the pinball loss, averaged over levels and divided by the sum of |truth|: GIFT-Eval's CRPS.

    Args:
        quantiles: Predicted quantiles [levels, ...].
        truth: Target values [...], NaN where missing.
        levels: Quantile levels between 0 and 1.
    """
    column = torch.tensor(levels, dtype=truth.dtype).view(-1, *(1 for _ in truth.shape))
    error = truth - quantiles
    loss = 2 * torch.maximum(column * error, (column - 1) * error).nan_to_num().sum()
    return float(loss / len(column) / truth.nan_to_num().abs().sum())


def path_scores(paths: Tensor, truth: Tensor) -> dict[str, float]:
    """Compute the mean energy and variogram scores of sampled paths, both normalized by the path length.

    Args:
        paths: Sampled paths [groups, n, channels, horizon].
        truth: Target paths [groups, channels, horizon], NaN where missing.
    """
    known = (~truth.isnan()).flatten(1)
    filled, drawn = truth.nan_to_num().flatten(1), paths.flatten(2) * known.unsqueeze(1)
    length = known.sum(dim=1).clamp_min(1).double().sqrt().view(-1, 1, 1)
    energy = energy_score(Predictions(drawn / length), filled.unsqueeze(1) / length)
    variograms = [
        variogram_score(one[:, at], target[at]) for one, target, at in zip(paths.flatten(2), filled, known, strict=True)
    ]
    return {"energy": float(energy), "variogram": float(torch.stack(variograms).mean())}


def variogram_score(paths: Tensor, truth: Tensor, order: float = 0.5) -> Tensor:
    """Compute the variogram score of sampled paths, averaged over pairs of steps.

    Args:
        paths: Sampled paths [n, steps].
        truth: Target path [steps].
        order: Exponent of the absolute differences.

    Reference:
        Scheuerer and Hamill, Variogram-based proper scoring rules, 2015, with equal weights.

    Example:
        >>> variogram_score(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([5.0, 9.0]))
        tensor(1.)
    """
    n_steps = paths.shape[1]
    if n_steps < 2:  # there are no pairs
        return paths.new_zeros(())
    expected = torch.zeros(n_steps, n_steps, dtype=paths.dtype)
    for batch in paths.split(max(_AT_ONCE // n_steps**2, 1)):
        expected += (batch.unsqueeze(2) - batch.unsqueeze(1)).abs().pow(order).sum(dim=0) / len(paths)
    actual = (truth.unsqueeze(1) - truth).abs().pow(order)
    return (actual - expected).square().sum() / (n_steps * (n_steps - 1))


def distortion(futures: Tensor, truth: Tensor) -> float:
    """Compute the root mean squared error of the nearest future, averaged over groups.

    Args:
        futures: Futures [groups, n, channels, horizon].
        truth: Target paths [groups, channels, horizon], NaN where missing.
    """
    known = (~truth.isnan()).sum(dim=(1, 2)).clamp_min(1)
    square = (futures - truth.unsqueeze(1)).square().nan_to_num().sum(dim=(2, 3)) / known.unsqueeze(1)
    return float(square.amin(dim=1).sqrt().mean())
