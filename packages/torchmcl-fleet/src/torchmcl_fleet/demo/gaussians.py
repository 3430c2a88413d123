"""Synthetic data: the three Gaussians of the paper, fixed or moving with the input, and an inverse problem.

Points are drawn on the device of the generator.
"""

import math

import torch
from torch import Tensor

from torchmcl import Batch, checks

__all__ = [
    "CENTERS",
    "DEVIATION",
    "conditional_covariance",
    "conditional_three_gaussians",
    "folded_response",
    "three_gaussians",
]

CENTERS = ((-0.5, -0.5), (0.0, 0.5), (0.5, -0.5))
DEVIATION = 0.1


def three_gaussians(n_points: int, generator: torch.Generator | None = None) -> Tensor:
    """Return points [n_points, 2] of an equal mixture of three Gaussians.

    Example:
        >>> three_gaussians(5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 2])

    Reference:
        The setting of Figure 1 (appendix on synthetic data).
    """
    checks.check_positive_int("three_gaussians", "n_points", n_points)
    device = None if generator is None else generator.device
    component = torch.randint(3, (n_points,), generator=generator, device=device)
    noise = DEVIATION * torch.randn(n_points, 2, generator=generator, device=device)
    return torch.tensor(CENTERS, device=device)[component] + noise


def conditional_three_gaussians(n_points: int, generator: torch.Generator | None = None) -> Batch:
    """Return a batch from three Gaussians that coincide at x = 0 and reach their final positions at x = 1.

    Returns:
        Batch with inputs [n_points, 1], uniform in [0, 1], and targets [n_points, 1, 2].

    Reference:
        The setting of the paper's figures on phase transitions.
    """
    checks.check_positive_int("conditional_three_gaussians", "n_points", n_points)
    device = None if generator is None else generator.device
    inputs = torch.rand(n_points, 1, generator=generator, device=device)
    component = torch.randint(3, (n_points,), generator=generator, device=device)
    noise = DEVIATION * torch.randn(n_points, 2, generator=generator, device=device)
    return Batch(inputs, (inputs * torch.tensor(CENTERS, device=device)[component] + noise).unsqueeze(1))


def conditional_covariance(inputs: Tensor) -> Tensor:
    """Return the exact covariance of the targets of `conditional_three_gaussians` at each input.

    Args:
        inputs: Inputs, [...], in [0, 1]; at 1 the covariance equals the covariance of `three_gaussians`.

    Returns:
        Covariances [..., 2, 2].

    Example:
        >>> covariance = conditional_covariance(torch.tensor(1.0))
        >>> round(2 * float(torch.linalg.eigvalsh(covariance)[-1]), 3)
        0.464

    Reference:
        C(x) below Eq. (13); twice its largest eigenvalue is the local critical temperature at x.
    """
    centers = torch.tensor(CENTERS, dtype=inputs.dtype, device=inputs.device)
    spread = torch.cov(centers.mT, correction=0)
    noise = DEVIATION**2 * torch.eye(2, dtype=inputs.dtype, device=inputs.device)
    return inputs[..., None, None] ** 2 * spread + noise


def folded_response(n_points: int, generator: torch.Generator | None = None) -> Batch:
    """Return samples of an inverse problem: predict the cause, in [0, 1], of a given effect.

    The effect is `cause + gain * sin(4 pi cause)` with a little noise. Without gain, an effect has one cause; the
    response folds more with a larger gain, and an effect then has up to three causes.

    Returns:
        Batch with inputs [n_points, 2], the effect and the gain in [0, 0.3], and targets [n_points, 1, 1], the cause.

    Example:
        >>> inputs, causes, *_ = folded_response(5, torch.Generator().manual_seed(0))
        >>> inputs.shape, causes.shape
        (torch.Size([5, 2]), torch.Size([5, 1, 1]))
    """
    checks.check_positive_int("folded_response", "n_points", n_points)
    device = None if generator is None else generator.device
    causes, gains = torch.rand(2, n_points, generator=generator, device=device)
    gains = 0.3 * gains
    noise = 0.01 * torch.randn(n_points, generator=generator, device=device)
    effects = causes + gains * torch.sin(4 * math.pi * causes) + noise
    return Batch(torch.stack([effects, gains], dim=-1), causes.view(-1, 1, 1))
