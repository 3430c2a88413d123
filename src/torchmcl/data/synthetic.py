"""Generated data: the three Gaussians of the paper, fixed or moving with the input, and an inverse problem."""

import math

import torch
from torch import Tensor

from torchmcl._checks import check_positive_int
from torchmcl.types import Batch

__all__ = ["CENTRES", "DEVIATION", "conditional_three_gaussians", "folded_response", "three_gaussians"]

CENTRES = ((-0.5, -0.5), (0.0, 0.5), (0.5, -0.5))
DEVIATION = 0.1


def three_gaussians(n_points: int, generator: torch.Generator | None = None) -> Tensor:
    """Return points [n_points, 2] of an equal mixture of three Gaussians.

    Example:
        >>> three_gaussians(5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 2])

    Reference:
        The setting of Figure 1 (appendix on synthetic data).
    """
    check_positive_int("three_gaussians", "n_points", n_points)
    component = torch.randint(3, (n_points,), generator=generator)
    return torch.tensor(CENTRES)[component] + DEVIATION * torch.randn(n_points, 2, generator=generator)


def conditional_three_gaussians(n_points: int, generator: torch.Generator | None = None) -> Batch:
    """Return a batch whose three Gaussians start together at x = 0 and reach their places at x = 1.

    Returns:
        Batch with inputs [n_points, 1], uniform in [0, 1], and targets [n_points, 1, 2].

    Reference:
        The setting of the paper's figures on phase transitions.
    """
    check_positive_int("conditional_three_gaussians", "n_points", n_points)
    inputs = torch.rand(n_points, 1, generator=generator)
    component = torch.randint(3, (n_points,), generator=generator)
    noise = DEVIATION * torch.randn(n_points, 2, generator=generator)
    return Batch(inputs, (inputs * torch.tensor(CENTRES)[component] + noise).unsqueeze(1))


def folded_response(n_points: int, generator: torch.Generator | None = None) -> Batch:
    """Return an inverse problem: which cause, in [0, 1], had this effect?

    The effect is `cause + gain * sin(4 pi cause)` with a little noise. Without gain it has one cause; the larger the
    gain, the more the response folds, and an effect has up to three causes.

    Returns:
        Batch with inputs [n_points, 2], the effect and the gain in [0, 0.3], and targets [n_points, 1, 1], the cause.

    Example:
        >>> inputs, causes, _ = folded_response(5, torch.Generator().manual_seed(0))
        >>> inputs.shape, causes.shape
        (torch.Size([5, 2]), torch.Size([5, 1, 1]))
    """
    check_positive_int("folded_response", "n_points", n_points)
    causes, gains = torch.rand(2, n_points, generator=generator)
    gains = 0.3 * gains
    noise = 0.01 * torch.randn(n_points, generator=generator)
    effects = causes + gains * torch.sin(4 * math.pi * causes) + noise
    return Batch(torch.stack([effects, gains], dim=-1), causes.view(-1, 1, 1))
