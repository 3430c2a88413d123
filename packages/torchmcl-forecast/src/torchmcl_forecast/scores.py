"""Scores of forecasts: CRPS of steps, energy and variogram scores of paths, and distortion of the nearest future."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchmcl import Predictions
from torchmcl.metrics import energy_score

__all__ = ["distortion", "mixture_crps", "path_scores", "random_crps", "weighted_quantile_loss"]

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


def mixture_crps(centers: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Compute the mean CRPS over the known steps from all pairs of hypotheses.

    Args:
        centers: Means of the hypotheses, [windows, hypotheses, steps].
        scales: Standard deviations of the same shape.
        probabilities: Probabilities of the hypotheses, [windows, hypotheses].
        truth: Finite target values, [windows, steps].
        known: Step mask [windows, steps], False for steps to leave out.

    Example:
        >>> one = torch.ones(1, 1)
        >>> mixture_crps(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1e-6), one, one, one.bool())
        tensor(1.0000)
    """
    one, other = torch.triu_indices(probabilities.shape[1], probabilities.shape[1], device=probabilities.device)
    both = (scales[:, one].square() + scales[:, other].square()).sqrt()
    twice = probabilities[:, one] * probabilities[:, other] * torch.where(one == other, 1.0, 2.0)
    spread = (twice.unsqueeze(-1) * _mean_distance(centers[:, one] - centers[:, other], both)).sum(dim=1)
    return _mean(_near(centers, scales, probabilities, truth) - spread / 2, known)


def random_crps(centers: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor, known: Tensor) -> Tensor:
    """Estimate `mixture_crps` without bias, by pairing each hypothesis with one other random hypothesis per window.

    Random pairs at all steps take less time than all pairs at a few steps, and the gradient of a path is smoother.
    """
    n = probabilities.shape[1]
    # The mean distance between two draws from the same hypothesis has a closed form.
    spread = (probabilities.square().unsqueeze(-1) * scales).sum(dim=1) * (2 / math.sqrt(math.pi))
    if n > 1:
        shift = torch.randint(1, n, (len(probabilities), 1), device=probabilities.device)
        partner = (torch.arange(n, device=probabilities.device) + shift) % n  # [windows, hypotheses]
        at = partner.unsqueeze(-1).expand_as(scales)
        both = (scales.square() + scales.gather(1, at).square()).sqrt()
        gap = _mean_distance(centers - centers.gather(1, at), both)
        weights = (n - 1) * probabilities * probabilities.gather(1, partner)
        spread = spread + (weights.unsqueeze(-1) * gap).sum(dim=1)
    return _mean(_near(centers, scales, probabilities, truth) - spread / 2, known)


def _near(centers: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor) -> Tensor:
    """Return the mean distance between a draw and the target, [windows, steps]."""
    return (probabilities.unsqueeze(-1) * _mean_distance(truth.unsqueeze(1) - centers, scales)).sum(dim=1)


def _mean(values: Tensor, known: Tensor) -> Tensor:
    return (values * known).sum() / known.sum().clamp_min(1)


class _MeanDistance(torch.autograd.Function):
    """Mean of |offset + scale z| for a standard normal z; the derivatives are by-products of the forward pass."""

    @staticmethod
    def forward(ctx: Any, offset: Tensor, scale: Tensor) -> Tensor:
        z = offset / scale
        sign = torch.erf(z * math.sqrt(0.5))
        bell = torch.exp(-z.square() / 2) * math.sqrt(2 / math.pi)
        ctx.save_for_backward(sign, bell)
        return offset * sign + scale * bell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        sign, bell = ctx.saved_tensors
        return gradient * sign, gradient * bell


def _mean_distance(offset: Tensor, scale: Tensor) -> Tensor:
    distance: Tensor = _MeanDistance.apply(offset, scale)
    return distance
