"""Reduction of sample paths of any forecaster to a few scenarios with probabilities, and the loss of the reduction."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl import Predictions, SoftmaxScores, checks
from torchmcl.errors import bad_value
from torchmcl.metrics import energy_score
from torchmcl.postprocess import expected_cost, reduce

__all__ = ["Scenarios", "reduce_samples", "settled"]


@dataclass(frozen=True, eq=False)
class Scenarios:
    """Few paths that represent many sample paths.

    Attributes:
        paths: Scenarios [series, n, horizon], most likely first; [n, horizon] for a single series.
        probabilities: Probabilities [series, n]; [n] for a single series.
        loss: Root mean squared distance per step between a sample path and the nearest scenario, [series].
        spread: The same distance with the mean of all samples as the only scenario, [series].
        energy: Mean energy score of the scenarios, minus the mean energy score of all samples, [series]. The samples
            are the targets.
    """

    paths: NDArray[Any]
    probabilities: NDArray[Any]
    loss: NDArray[Any]
    spread: NDArray[Any]
    energy: NDArray[Any]


def reduce_samples(samples: Any, n: int = 5, *, moved: bool = True) -> Scenarios:
    """Reduce the sample paths of any forecaster to n scenarios with probabilities.

    Args:
        samples: Sample paths as an array or tensor, [samples, horizon] or [series, samples, horizon].
        n: Number of scenarios.
        moved: Whether scenarios are means of groups of samples; if False, they are n of the samples.

    Raises:
        ValueError: For other shapes, for NaN, and for fewer than n samples.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> level = rng.choice([5.0, 10.0], size=(1000, 1), p=[0.3, 0.7])
        >>> scenarios = reduce_samples(level + 0.1 * rng.normal(size=(1000, 3)), n=2)
        >>> scenarios.paths.round(), scenarios.probabilities.round(1)
        (array([[10., 10., 10.],
               [ 5.,  5.,  5.]]), array([0.7, 0.3]))
    """
    checks.check_positive_int("reduce_samples", "n", n)
    array = np.asarray(samples.detach().cpu() if isinstance(samples, torch.Tensor) else samples)
    if array.dtype.kind not in "fiu" or array.ndim not in (2, 3) or 0 in array.shape:
        rule = "be numbers of shape [samples, horizon] or [series, samples, horizon]"
        raise ValueError(bad_value("reduce_samples", "samples", rule, f"{array.dtype} of shape {array.shape}"))
    paths = torch.from_numpy(array.astype(float)).view(-1, *array.shape[-2:])
    if not torch.isfinite(paths).all():
        advice = "Leave these samples out."
        raise ValueError(bad_value("reduce_samples", "samples", "be finite", "NaN or infinity", advice))
    if n > paths.shape[1]:
        rule = f"be at most the number of samples, {paths.shape[1]}"
        raise ValueError(bad_value("reduce_samples", "n", rule, n))
    scores = SoftmaxScores()
    every = Predictions(paths, torch.zeros(paths.shape[:2], dtype=paths.dtype))
    few = reduce(every, n, moved=moved, scores=scores)
    one = Predictions(paths.mean(dim=1, keepdim=True))
    assert few.score_logits is not None
    loss, spread = (expected_cost(kept, every, scores=scores) / paths.shape[2] for kept in (few, one))
    energy = [_energy(few.hypotheses[row], few.score_logits[row], paths[row]) for row in range(len(paths))]
    parts = (few.hypotheses, scores.probabilities(few.score_logits), loss.sqrt(), spread.sqrt(), torch.stack(energy))
    return Scenarios(*(np.asarray(part[0] if array.ndim == 2 and part.ndim > 1 else part) for part in parts))


# Approximate number of samples that are the targets of the scenarios.
_N_TRUTHS = 200


def _energy(few: torch.Tensor, logits: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
    """Return the energy score of the scenarios minus the energy score of all samples, divided by sqrt(horizon)."""
    truths = paths[:: max(len(paths) // _N_TRUTHS, 1)].unsqueeze(0)
    scores, length = SoftmaxScores(), paths.shape[1] ** 0.5
    of_scenarios = energy_score(Predictions(few.unsqueeze(0), logits.unsqueeze(0)), truths, scores=scores)
    of_samples = energy_score(Predictions(paths.unsqueeze(0)), truths)
    return (of_scenarios - of_samples) / length


# Number of iterations of Lloyd's algorithm.
_N_ROUNDS = 15


def settled(centers: torch.Tensor, samples: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move centers to the medians of the samples nearest to them, and compute the fraction of other samples near each.

    This is Lloyd's algorithm for the mean distance, not the mean squared distance: in each iteration a center moves to
    the mean of its samples, weighted by the inverse of their distances. The centers of a group are not moved unless
    this reduces the mean distance to the other samples: the medians of few samples in many dimensions are no better
    than the initial centers.

    Args:
        centers: Initial centers [groups, n, dim].
        samples: Samples [groups, samples, dim].
        others: Other samples of the same shape.

    Returns:
        Centers of the same shape, and positive fractions [groups, n] in double precision. A center without samples is
        not moved.

    Example:
        >>> samples = torch.tensor([[[0.0], [1.0], [2.0], [10.0]]])
        >>> centers, fractions = settled(torch.tensor([[[0.5], [9.0]]]), samples, samples)
        >>> centers.flatten().round(decimals=2), fractions
        (tensor([ 1., 10.]), tensor([[0.7000, 0.3000]], dtype=torch.float64))
    """
    start = centers
    for _ in range(_N_ROUNDS):
        far, owner = torch.cdist(samples, centers).min(dim=-1)
        least = 1e-3 * far.mean(dim=-1, keepdim=True) + torch.finfo(far.dtype).tiny  # for a sample at a center
        weights = torch.zeros(*far.shape, centers.shape[1]).to(far)
        weights.scatter_(-1, owner.unsqueeze(-1), (least / far.maximum(least)).unsqueeze(-1))
        mass = weights.sum(dim=1).unsqueeze(-1)
        centers = torch.where(mass > 0, weights.mT @ samples / mass.clamp_min(1e-30), centers)
    before, after = (torch.cdist(others, places).min(dim=-1) for places in (start, centers))
    worse = before.values.mean(dim=-1) <= after.values.mean(dim=-1)
    centers = torch.where(worse[:, None, None], start, centers)
    nearest = torch.where(worse[:, None], before.indices, after.indices)
    # Half a sample more per center, so that no fraction is 0.
    counts = torch.full(centers.shape[:2], 0.5, dtype=torch.float64, device=centers.device)
    counts.scatter_add_(1, nearest, torch.ones_like(nearest, dtype=torch.float64))
    return centers, counts / counts.sum(dim=1, keepdim=True)
