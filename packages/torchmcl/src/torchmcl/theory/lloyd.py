"""Lloyd's algorithm: winner-takes-all (T = 0) with free points instead of a network."""

from torch import Tensor

from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.rules.winners import WTA
from torchmcl.theory.free_energy import soft_barycentres


def distortion_of(samples: Tensor, points: Tensor) -> Tensor:
    """Return the mean squared distance of samples [..., samples, dim] to the nearest of points, [...]."""
    return pairwise_sq_euclidean(hypotheses=points, targets=samples).amin(dim=-1).mean(dim=-1)


def lloyd_steps(samples: Tensor, points: Tensor, n_steps: int, tolerance: float = 0.0) -> tuple[Tensor, int]:
    """Return points after steps of Lloyd's algorithm, and the number of steps; unused points stay.

    Args:
        samples: [..., samples, dim]
        points: [..., hypotheses, dim]
        n_steps: maximum number of steps.
        tolerance: stop when no point moves further.

    Example:
        >>> import torch
        >>> samples = torch.tensor([[0.0], [1.0], [9.0], [10.0]])
        >>> lloyd_steps(samples, torch.tensor([[0.0], [8.0]]), n_steps=10)
        (tensor([[0.5000],
                [9.5000]]), 2)
    """
    for step in range(n_steps):
        weights = WTA()(pairwise_sq_euclidean(hypotheses=points, targets=samples))
        moved = soft_barycentres(samples, weights, otherwise=points)
        far = float((moved - points).norm(dim=-1).max())
        points = moved
        if far <= tolerance:
            return points, step + 1
    return points, n_steps
