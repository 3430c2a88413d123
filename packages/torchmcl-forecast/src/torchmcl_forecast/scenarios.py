"""Reduction of sample paths of any forecaster to a few scenarios with probabilities, and the resulting loss."""

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
    """A few paths that represent many.

    Attributes:
        paths: [series, n, horizon], the most likely first; [n, horizon] for a single series.
        probabilities: [series, n], or [n].
        loss: [series], the root of the mean squared distance of a sample path to the nearest scenario, per step.
        spread: [series], the same with the mean of all samples as the only scenario.
        energy: [series], mean energy score of the scenarios with the samples as truth, minus that of the samples
            themselves: 0 for the full set.
    """

    paths: NDArray[Any]
    probabilities: NDArray[Any]
    loss: NDArray[Any]
    spread: NDArray[Any]
    energy: NDArray[Any]


def reduce_samples(samples: Any, n: int = 5, *, moved: bool = True) -> Scenarios:
    """Return n scenarios with probabilities that represent the sample paths of any forecaster.

    Args:
        samples: [samples, horizon] of one series, or [series, samples, horizon], array or tensor.
        n: the number of scenarios.
        moved: whether scenarios are means of groups of samples; otherwise n of the samples themselves.

    Raises:
        ValueError: for another shape, NaN, or fewer than n samples.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> level = rng.choice([5.0, 10.0], size=(1000, 1), p=[0.3, 0.7])
        >>> found = reduce_samples(level + 0.1 * rng.normal(size=(1000, 3)), n=2)
        >>> found.paths.round(), found.probabilities.round(1)
        (array([[10., 10., 10.],
               [ 5.,  5.,  5.]]), array([0.7, 0.3]))
    """
    checks.check_positive_int("reduce_samples", "n", n)
    given = np.asarray(samples.detach().cpu() if isinstance(samples, torch.Tensor) else samples)
    if given.dtype.kind not in "fiu" or given.ndim not in (2, 3) or 0 in given.shape:
        rule = "be numbers of shape [samples, horizon] or [series, samples, horizon]"
        raise ValueError(bad_value("reduce_samples", "samples", rule, f"{given.dtype} of shape {given.shape}"))
    paths = torch.from_numpy(given.astype(float)).view(-1, *given.shape[-2:])
    if not torch.isfinite(paths).all():
        raise ValueError(
            bad_value("reduce_samples", "samples", "be finite", "NaN or infinity", "Leave such samples out.")
        )
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
    return Scenarios(*(np.asarray(part[0] if given.ndim == 2 and part.ndim > 1 else part) for part in parts))


# Approximate number of samples that serve as truth for the scenarios.
_N_TRUTHS = 200


def _energy(few: torch.Tensor, logits: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
    """Return the excess of the energy score of the scenarios over that of the samples, divided by sqrt(horizon)."""
    truths = paths[:: max(len(paths) // _N_TRUTHS, 1)].unsqueeze(0)
    scores, length = SoftmaxScores(), paths.shape[1] ** 0.5
    ours = energy_score(Predictions(few.unsqueeze(0), logits.unsqueeze(0)), truths, scores=scores)
    theirs = energy_score(Predictions(paths.unsqueeze(0)), truths)
    return (ours - theirs) / length


# Rounds of Lloyd's algorithm.
_N_ROUNDS = 15


def settled(centers: torch.Tensor, samples: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return centers moved to the medians of the samples nearest to them, and the share of other samples near each.

    Lloyd's algorithm for the mean distance, not its square: in each round a center moves to the mean of its samples,
    weighted by the inverse of their distances. The centers of a group stay where they are unless the move brings them
    nearer to the other samples: medians of few samples with many numbers are no better than their start.

    Args:
        centers: [groups, n, numbers]
        samples: [groups, samples, numbers]
        others: of the same shape.

    Returns:
        Centers of the same shape, and positive shares [groups, n] in double precision; a center without samples stays
        in place.

    Example:
        >>> samples = torch.tensor([[[0.0], [1.0], [2.0], [10.0]]])
        >>> centers, shares = settled(torch.tensor([[[0.5], [9.0]]]), samples, samples)
        >>> centers.flatten().round(decimals=2), shares
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
    found = [torch.cdist(others, each).min(dim=-1) for each in (start, centers)]
    worse = found[0].values.mean(dim=-1) <= found[1].values.mean(dim=-1)
    centers = torch.where(worse[:, None, None], start, centers)
    nearest = torch.where(worse[:, None], found[0].indices, found[1].indices)
    # Half a sample more for each center, so that no share is 0.
    counts = torch.full(centers.shape[:2], 0.5, dtype=torch.float64, device=centers.device)
    counts.scatter_add_(1, nearest, torch.ones_like(nearest, dtype=torch.float64))
    return centers, counts / counts.sum(dim=1, keepdim=True)
